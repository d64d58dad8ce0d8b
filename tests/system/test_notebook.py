"""Notebooks: docs/notebook.ipynb runs, a cell can be interrupted and its run resumed."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
from jupyter_client.manager import start_new_kernel  # noqa: E402
from nbclient import NotebookClient  # noqa: E402

from edgewire.report.notebook_card import card, curve_svg  # noqa: E402
from edgewire.task.metric import ACCURACY  # noqa: E402

pytestmark = pytest.mark.system
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "python.md").read_text()


def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    kept = [list(kinds(cell)) for cell in notebook.cells]
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    assert [list(kinds(cell)) for cell in notebook.cells] == kept
    assert any("image/png" in shown for each in kept for shown in each)


def kinds(cell):
    """Yield the kinds of a cell's outputs."""
    for output in cell.get("outputs", ()):
        yield tuple(sorted(output.get("data", {}))) or output["output_type"]


def test_a_card_shows_all_its_text_in_400_pixels(browser):
    rows = {"balanced_accuracy": "96.4 % " * 9, "files": "outputs/" + "long-name" * 12, "up": "1 B"}
    points = [(n, 1 - 1 / (n + 1)) for n in range(20)]
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.set_content(f"<body>{card('digits · mlp · ' * 9, curve_svg(points, ACCURACY), rows)}")
    wide = "[...document.querySelectorAll('*')].filter(e => e.scrollWidth > e.clientWidth + 1 && "
    assert page.evaluate(f"{wide} e.clientWidth).map(e => e.outerHTML)") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    edges = "[...document.querySelectorAll('text')].map(e => e.getBoundingClientRect())"
    boxes = page.evaluate(f"{edges}.map(b => [b.left, b.right])")
    assert all(0 <= left < right <= 400 for left, right in boxes)


@pytest.fixture
def kernel(tmp_path):
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def until_idle(client):
    """Return the texts and the errors that a cell prints until it has ended."""
    texts, errors = [], []
    while True:
        message = client.get_iopub_msg(timeout=90)
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return "".join(texts), errors
        if kind == "stream":
            texts.append(content["text"])
        if kind == "error":
            errors.append((content["ename"], content["evalue"]))
        if kind == "execute_result":
            texts.append(content["data"]["text/plain"])


def test_a_cell_is_interrupted_and_its_run_resumed(kernel, tmp_path):
    manager, client = kernel
    words = "'algorithm=edgewire', 'checkpoint_every=1', 'hydra.run.dir=run', rounds=100000"
    client.execute(f"from edgewire import train\ntrain({words})")
    deadline = time.monotonic() + 90
    while not (tmp_path / "run" / "checkpoint").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    manager.interrupt_kernel()
    text, errors = until_idle(client)
    assert [name for name, _ in errors] == ["KeyboardInterrupt"]
    call = re.search(r"`(train\(resume=.*\))` resumes it", text)[1]
    rows = len((tmp_path / "run" / "history.jsonl").read_text().splitlines())
    client.execute(call)
    while len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) < rows + 3:
        assert time.monotonic() < deadline + 90
        time.sleep(0.1)
    manager.interrupt_kernel()
    assert [name for name, _ in until_idle(client)[1]] == ["KeyboardInterrupt"]
    client.execute("train(rounds=1).metrics['accuracy'] > 0")  # the kernel works on
    assert until_idle(client) == ("True", [])


def test_the_pages_code_runs(tmp_path):
    first, *_, last = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for name, code in (("first.py", first), ("last.py", last)):
        (tmp_path / name).write_text(code)
        done = subprocess.run(
            [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"sent to the server: \d+ bytes", done.stdout)
