"""The example in docs/use-in-your-flower-app.md runs unchanged in its own folder."""

import re
import shutil
import sys
from pathlib import Path

from tests import fork_server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "use-in-your-flower-app.md"
RUN = """
from client_app import app as client_app
from server_app import app as server_app
from flwr.app import Context, RecordDict
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool
grid = LocalGrid(make_pool(NodeHostSpec(client_app, 4, 1, {}), 1), 4)
server_app(grid, Context(1, 0, {}, RecordDict(), {}))
"""


def test_the_example_runs(tmp_path):
    files = re.findall(r"## (\w+\.py)\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["client_app.py", "server_app.py"]
    for name, code in files:
        (tmp_path / name).write_text(code)
    for name in ("__init__.py", "import_names.py"):  # with pip, as the page instructs
        (tmp_path / "edgewire").mkdir(exist_ok=True)
        shutil.copy(ROOT / "edgewire" / name, tmp_path / "edgewire")
    for name in ("compression", "conf", "edgewire/machine", "edgewire/simulation"):
        shutil.copytree(ROOT / name, tmp_path / "edgewire" / Path(name).name)  # these run it here
    (tmp_path / "run.py").write_text(RUN)
    done = fork_server.run([sys.executable, "run.py"], cwd=tmp_path, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    accuracy = float(re.search(r"accuracy ([\d.]+)", done.stdout)[1])
    sent = int(re.search(r"to the server: (\d+)", done.stdout)[1])
    plain = int(re.search(r"uncompressed: (\d+) bytes; left out: 0", done.stdout)[1])
    assert accuracy > 0.9
    assert 2 * sent < plain
