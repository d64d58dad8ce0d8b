"""Writes Flower apps into folders, and runs them with `python -m edgewire.simulation`."""

import re
import subprocess
import sys
from contextlib import contextmanager
from tempfile import gettempdir

from edgewire.simulation.any_app import main
from tests import fork_server
from tests.runs import ROOT

APPS = ROOT / "tests" / "apps"

PYPROJECT = """
[project]
name = "{name}"
version = "1.2.3"

[tool.flwr.app]
publisher = "somebody"
{included}

[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "{client}"

[tool.flwr.app.config]
{config}
"""

# The start of an app's two files; a test appends the main function to the first.
SERVER = """
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

def ask(grid, kind, nodes=None):
    content = RecordDict()
    nodes = nodes or grid.get_node_ids()
    return [Message(content, node, kind, group_id="1") for node in nodes]

@app.main()
def main(grid, context):
"""

CLIENT = """
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
"""

OLD_SERVER = """
import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

class Told(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        found = super().aggregate_fit(server_round, results, failures)
        print("round", server_round, len(results), len(failures))
        return found

def server_fn(context):
    strategy = Told(initial_parameters=ndarrays_to_parameters([np.zeros(500)]))
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

app = ServerApp(server_fn=server_fn)
"""


def write(folder, files, server="server:app", client="client:app", config="", included=""):
    """Write an app; return its folder. `included`: which files its bundle holds."""
    given = {"server": server, "client": client, "config": config, "included": included}
    project = PYPROJECT.format(name=folder.name, **given)
    for name, text in {"pyproject.toml": project, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def start(app, *words, cwd=ROOT):
    """Start `python -m edgewire.simulation` for an app, in the folder `cwd`; return the process."""
    return fork_server.Popen(
        [sys.executable, "-m", "edgewire.simulation", str(app), *words],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def simulate(app, *words, cwd=ROOT):
    """Run an app in a new process; return its output."""
    process = start(app, *words, cwd=cwd)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def simulate_here(monkeypatch, capfd, app, *words):
    """Run an app in this process, which has imported most modules already; return the output.

    `app`: a folder in a temporary one; its module names are used by no other app in this process.
    """
    monkeypatch.setattr(sys, "argv", ["simulation", str(app), *map(str, words)])
    capfd.readouterr()
    with at_home():
        code = main.main(0.0)
    out, err = capfd.readouterr()
    assert code == 0, err
    return out


@contextmanager
def at_home():
    """Undo what an imported app changes in this process: the module search path and the modules."""
    path, finders, modules = sys.path[:], sys.meta_path[:], set(sys.modules)
    try:
        yield
    finally:
        sys.path[:], sys.meta_path[:] = path, finders
        kept = f"{ROOT}/", f"{sys.prefix}/"
        for name in sys.modules.keys() - modules:
            file = str(getattr(sys.modules[name], "__file__", ""))
            # The checkout may lie there, too. Libraries such as triton cannot be imported twice.
            if file.startswith(gettempdir()) and not file.startswith(kept):
                del sys.modules[name]


def summary(printed):
    """Return the numbers of the summary by name."""
    found = re.search(
        r"virtual +(?P<virtual>[\d.]+) s, .*\n"
        r"messages +(?P<sent>\d+) sent, (?P<answered>\d+) answered, (?P<failed>\d+) failed\n"
        r"bytes +(?P<down>[\d,]+) down, (?P<up>[\d,]+) up\n"
        r"real +(?P<real>[\d.]+) s\n$",
        printed,
    )
    return {key: float(value.replace(",", "")) for key, value in found.groupdict().items()}
