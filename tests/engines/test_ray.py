"""Real runs with `engine=ray`: one fails after a round, two are interrupted. They take 30 s.

`tests/test_own_package.py` compares a run that ends normally with a run on the local engine.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.run_pb2 import RunStatus
from safetensors.torch import load_file

from edgewire.engines.control import cause_of
from edgewire.engines.ray import refuse, run_on_ray
from edgewire.machine.errors import EngineError, UsageError
from edgewire.machine.job import Job
from tests.proxied import dead_proxies
from tests.runs import ROOT, often, result_of, told_to_end
from tests.simulation.any_app.apps import write

CONFIG = """
config = ""
mode = ""
told = ""
"""
INCLUDED = 'fab-include = ["toy_*/**/*.py", "toy_conf/**/*.yaml"]'

CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def answer(message, context):
    record = ConfigRecord({"partition": context.node_config["partition-id"]})
    return Message(RecordDict({"reply": record}), reply_to=message)
"""

SERVER = """
import json, os, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    told, mode = Path(context.run_config["told"]), context.run_config["mode"]
    if mode == "sleep":
        told.write_text("awake")
        time.sleep(600)
    while len(nodes := list(grid.get_nodes())) < 5:
        time.sleep(0.1)
    nodes.sort(key=lambda node: node.registered_at)
    question = RecordDict({"question": ConfigRecord()})
    replies = grid.send_and_receive(
        [Message(question, node.node_id, MessageType.QUERY) for node in nodes]
    )
    partitions = {r.metadata.src_node_id: r.content["reply"]["partition"] for r in replies}
    app = Path(__file__).parent.parent
    print("a line for the log")
    told.write_text(json.dumps({
        "partitions": [partitions[node.node_id] for node in nodes],
        "config": json.loads(context.run_config["config"]),
        "folder": os.getcwd(),
        "token": os.environ["RAY_AUTH_TOKEN"] if os.environ["RAY_AUTH_MODE"] == "token" else "",
        "files": [str(p.relative_to(app)) for p in app.rglob("*") if "pycache" not in str(p)],
    }))
    raise KeyError("accuracy")
"""

FILES = {
    "toy_client/__init__.py": "",
    "toy_client/app.py": CLIENT,
    "toy_server/__init__.py": "",
    "toy_server/app.py": SERVER,
    "toy_conf/config.yaml": "a: 1\n",
    "outputs/result.yaml": "left behind by a run\n",
    ".venv/lib/python3/site-packages/toy_client/module.py": "",
}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    apps = "toy_server.app:app", "toy_client.app:app"
    return write(tmp_path / "app", FILES, *apps, CONFIG, INCLUDED)


@pytest.mark.system
def test_a_run_that_fails_after_a_round(
    app: Path,
    tmp_path: Path,
    left_over: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead_proxies(monkeypatch)  # as in a company's network; all connections here are on this machine
    home, told = tmp_path / "home", tmp_path / "out.json"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    config = {'it\'s "quoted"': "x" * 10_000, "n": [1, {"a": "\n\t\\ é"}]}
    running: list[int] = []
    values = {"config": json.dumps(config), "told": str(told)}
    with (
        often(lambda: running.append(len(left_over())), 0.5),
        pytest.raises(EngineError, match=r"^KeyError: 'accuracy' \(log: (\S+)\)$") as caught,
    ):
        run_on_ray(Job(app, values, 5, tmp_path), actors=1)

    result = json.loads(told.read_text())
    assert result["partitions"] == [0, 1, 2, 3, 4]
    assert result["config"] == config
    assert result["folder"] == str(tmp_path)
    travels = {
        name for name in [*FILES, "pyproject.toml"] if not name.startswith((".venv", "outputs"))
    }
    folders = {"toy_client", "toy_conf", "toy_server"}
    assert set(result["files"]) == travels | folders
    log = Path(str(caught.value).rpartition("log: ")[2].rstrip(")"))
    assert "a line for the log" in log.read_text()
    assert len(result["token"]) == 64  # only with this token can one join the run's Ray
    assert result["token"] not in log.read_text()
    assert "Traceback" in log.read_text()
    # `left_over` has found the processes of SuperLink, SuperExec, the simulation and Ray.
    assert max(running) > 5
    assert left_over() == []
    assert not (home / ".flwr").exists()


@pytest.mark.system
def test_an_interrupted_run(app: Path, tmp_path: Path, left_over: Callable[[], list[str]]) -> None:
    output = tmp_path / "awake"

    def interrupt() -> None:
        if output.exists():
            output.unlink()
            os.kill(os.getpid(), signal.SIGTERM)

    values = {"mode": "sleep", "told": str(output)}
    with often(interrupt, 0.5), pytest.raises(SystemExit) as caught:
        run_on_ray(Job(app, values, 2, tmp_path), actors=1)
    assert caught.value.code == 128 + signal.SIGTERM
    assert left_over() == []


@pytest.mark.system
def test_a_stopped_asynchronous_run_can_be_resumed(
    command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    left_over: Callable[[], list[str]],
    tmp_path: Path,
) -> None:
    """On Ray the ServerApp is a thread that gets no signals; a new run resumes its checkpoint."""
    monkeypatch.chdir(ROOT)
    words = ["algorithm=adacomp", "network=ideal", "nodes=4", "strategy.pushes=100000"]
    with told_to_end(tmp_path, rows=3):
        code, printed, folder = command(*words, "eval_every=8", "engine=ray", "engine.actors=1")
    assert code == 128 + signal.SIGTERM
    assert "ends after the round in hand" in printed.out
    result = result_of(folder)
    assert (result["ended"], result["failures"]) == ("interrupted", 0)
    assert result["client_updates"] >= 16
    assert result["virtual_seconds"] is None
    assert (folder / "ray.log").exists()
    assert all(w.isfinite().all() for w in load_file(folder / "model.safetensors").values())
    assert (folder / "checkpoint").exists()
    assert not (folder / "stop").exists()
    assert left_over() == []


VIRTUAL = {"only_virtual": "network.loss=0.1: give network.loss=0"}


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [
        ({}, {"actors": -1}, "at least one actor, not -1"),
        ({}, {"actors": 2, "address": "127.0.0.1:9"}, "number of actors is the cluster's"),
        ({}, {"address": "127.0.0.1:9"}, "no Ray cluster answers at 127.0.0.1:9"),
        ({"run_config": {"lr": 0.1}}, {}, r"lr: not in \[tool.flwr.app.config\] of .*pyproject.t"),
        (VIRTUAL, {}, r"network\.loss=0\.1: give network\.loss=0, or engine=local$"),
        ({"verbose": True}, {}, r"ray\.log in the run folder"),
        ({"device": "cuda:0"}, {}, r"device=cuda:0 without engine\.gpus_per_client="),
    ],
)
def test_wrong_arguments(
    app: Path, job: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"run_config": {}, **job}
    with pytest.raises(UsageError, match=message):
        run_on_ray(Job(app, nodes=2, folder=app, **given), **arguments)


def test_a_cluster_elsewhere_may_have_the_gpus() -> None:
    job = Job(Path(), {}, 3, Path(), device="cuda:0")
    refuse(job, gpus_per_client=0.5, address="auto")


def test_another_checkout_in_the_way(app: Path, tmp_path: Path) -> None:
    (tmp_path / "edgewire").mkdir()
    with pytest.raises(UsageError, match="Ray would take `edgewire` from"):
        run_on_ray(Job(app, {}, 2, tmp_path))


def test_a_folder_without_an_app(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is no Flower app"):
        run_on_ray(Job(tmp_path, {}, 2, tmp_path))


LOG = """\
\x1b[92mINFO \x1b[0m:      Starting Flower Simulation
Traceback (most recent call last):
  File "app.py", line 1, in <module>
package.errors.FirstError: in an actor

The above exception was the direct cause of the following exception:

ValueError: no such dataset
"""


@pytest.mark.parametrize(
    ("details", "log", "cause"),
    [
        ("no such dataset", LOG, "ValueError: no such dataset"),
        ("said\nnowhere else", LOG, "said nowhere else"),
        ("An error was encountered. Ending simulation.", LOG, "FirstError: in an actor"),
        (
            "No heartbeat received from the task",
            "",
            "the run's process died: out of memory?",
        ),
        ("", "", "the run failed without saying why"),
    ],
)
def test_the_cause_is_one_line(details: str, log: str, cause: str) -> None:
    if details:
        details = f"Simulation failed with exception: {details}"
    status = RunStatus(status="finished", sub_status="failed", details=details)
    assert cause_of(status, log) == cause
