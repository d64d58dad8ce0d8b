"""Mistakes, apps that fail, and an interrupt end the command with one line."""

import signal
import sys

import pytest

from edgewire.simulation import stall
from edgewire.simulation.any_app import main
from tests.simulation.any_app.apps import APPS, CLIENT, OLD_SERVER, SERVER, start, write


@pytest.fixture
def cli(monkeypatch, capfd, at_home):
    """Return a function that runs the command in this process; it returns exit code and output."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["simulation", *map(str, words)])
        code = main.main(0.0)
        return code, capfd.readouterr()

    return call


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "path"),
        (["/nowhere"], "there is no folder /nowhere"),
        (["docs"], "docs is no Flower app"),
        (["--nodes", "0"], "--nodes must be at least 1, not 0"),
        (["--nodes", "many"], "--nodes: invalid int value: 'many'"),
        (["--workers", "-1"], "--workers must be at least 0"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--network", "isdn"], "there is no network isdn; there are: adsl"),
        (["--run-config", "rate=1"], "there is no rate in"),
        (["--wrokers", "1"], "--wrokers 1"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2(cli, words, part):
    app = [] if len(words) < 2 else [APPS / "sklearn_float64"]
    code, printed = cli(*app, *words)
    assert code == 2
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert part in line
    assert not printed.out


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("assert 1 > 2", "AssertionError"),
        ("x = (", "SyntaxError: '(' was never closed"),
        ("app = 3", "is no ServerApp, but int"),
        ("ap = 3", "has no attribute 'app'"),
    ],
)
@pytest.mark.parametrize("verbose", [False, True])
def test_an_app_that_cannot_be_imported_is_named_with_the_reason(
    cli, tmp_path, text, part, verbose
):
    files = {"broken_server.py": text, "broken_client.py": CLIENT}
    app = write(tmp_path / "toy", files, "broken_server:app", "broken_client:app")
    code, printed = cli(app, *["--verbose"] * verbose)
    assert code == 2
    *before, line = printed.err.splitlines()
    assert line.startswith("error: ")
    assert f"broken_server:app of {app}" in line
    assert part in line
    assert line[-1] != ":"  # an error without a text has its type only
    assert bool(before) == verbose
    assert ("Traceback" in printed.err) == verbose


def test_a_serverapps_error_is_logged_in_full_and_ends_the_run(tmp_path):
    server = (
        SERVER + "    grid.send_and_receive(ask(grid, 'train'))\n    raise KeyError('accuracy')"
    )
    client = CLIENT + "\n@app.train()\ndef train(m, c):\n    raise RuntimeError('no power')\n"
    app = write(tmp_path / "toy", {"server.py": server, "client.py": client})
    process = start(app, "--nodes", "2", "--workers", "2")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert not out
    assert err.splitlines()[-1] == "error: the ServerApp raised KeyError: 'accuracy'"
    assert err.count("Traceback") == 3
    assert err.count("RuntimeError: no power") == 2


def test_a_run_without_a_usable_reply_fails(cli, tmp_path):
    server = SERVER + "    grid.send_and_receive(ask(grid, 'train'))\n"
    client = CLIENT + "\n@app.train()\ndef train(m, c):\n    raise RuntimeError('no power')\n"
    files = {"failing_server.py": server, "failing_client.py": client}
    app = write(tmp_path / "toy", files, "failing_server:app", "failing_client:app")
    code, printed = cli(app, "--nodes", "2", "--workers", "1")
    assert code == 1
    assert "2 failed" in printed.out
    assert printed.err.splitlines()[-1].startswith("error: not one reply was of use")


STRATEGY = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
app = ServerApp()

@app.main()
def main(grid, context):
    FedAvg(min_available_nodes=7).start(grid, ArrayRecord([np.zeros(3)]))
"""
LOOP = f"""
import time
{SERVER}
    while len(list(grid.get_node_ids())) < 7:
        time.sleep(0.001)
"""
CASES = {"strategy": STRATEGY, "loop": LOOP, "old": OLD_SERVER}


@pytest.mark.parametrize("kind", CASES)
def test_an_app_that_waits_for_missing_nodes_gets_an_error(cli, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(stall, "SECONDS", 0.02)
    server, client = f"waits_{kind}", f"asked_{kind}"
    files = {f"{server}.py": CASES[kind], f"{client}.py": CLIENT}
    app = write(tmp_path / kind, files, f"{server}:app", f"{client}:app")
    code, printed = cli(app, "--nodes", "1", "--workers", "1")
    assert code == 1
    line = printed.err.splitlines()[-1]
    wanted = {"strategy": "waits for 7 nodes", "loop": "1 node,", "old": "waits for 2 nodes"}
    assert line.startswith("error: the ServerApp")
    assert wanted[kind] in line
    assert "--nodes" in line
    assert "Traceback" not in printed.err


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path, listening):
    client = CLIENT + (
        "\nimport time\n@app.train()\ndef train(m, c):\n"
        "    print('at work', flush=True)\n    time.sleep(600)\n"
    )
    server = SERVER + "    grid.send_and_receive(ask(grid, 'train'))\n"
    app = write(tmp_path / "toy", {"server.py": server, "client.py": client})
    process = start(app, "--nodes", "1", "--workers", "1")
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "stopped: this run has no checkpoint: the same command starts it again\n"


@pytest.mark.parametrize("place", ["server", "client"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_the_app_is_imported_is_not_blamed_on_it(
    listening, cli, tmp_path, place, number
):
    names = {each: f"{each}_stopped_{place}_{int(number)}" for each in ("server", "client")}
    files = {names["server"]: SERVER + "    pass\n", names["client"]: CLIENT}
    files[names[place]] = f"import os\nos.kill(os.getpid(), {int(number)})\n"
    app = write(
        tmp_path / "toy",
        {f"{name}.py": text for name, text in files.items()},
        *(f"{name}:app" for name in names.values()),
    )
    code, printed = cli(app, "--nodes", 2, "--workers", 1)
    assert (code, printed.out) == (128 + number, "")
    assert printed.err == "stopped: this run has no checkpoint: the same command starts it again\n"
