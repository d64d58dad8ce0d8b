"""`engine=ray`, for real: a run that fails at its end and one interrupted, 20 s each.

Runs that end well are those of `tests/test_engines.py`.
"""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.proto.run_pb2 import RunStatus

from simulation.control import cause_of
from simulation.errors import EngineError, UsageError
from simulation.ray import run_ray

PYPROJECT = """
[project]
name = "toy"
version = "0.1.0"

[tool.flwr.app]
publisher = "edgewire"
fab-include = ["toy_client/**/*.py", "toy_server/**/*.py", "toy_conf/**/*.yaml"]

[tool.flwr.app.components]
serverapp = "toy_server.app:app"
clientapp = "toy_client.app:app"

[tool.flwr.app.config]
config = ""
mode = ""
output = ""
"""

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
    output, mode = Path(context.run_config["output"]), context.run_config["mode"]
    if mode == "sleep":
        output.write_text("awake")
        time.sleep(600)
    while len(nodes := list(grid.get_nodes())) < 5:
        time.sleep(0.05)
    nodes.sort(key=lambda node: node.registered_at)
    question = RecordDict({"question": ConfigRecord()})
    replies = grid.send_and_receive(
        [Message(question, node.node_id, MessageType.QUERY) for node in nodes]
    )
    partitions = {r.metadata.src_node_id: r.content["reply"]["partition"] for r in replies}
    app = Path(__file__).parent.parent
    print("a line for the log")
    output.write_text(json.dumps({
        "partitions": [partitions[node.node_id] for node in nodes],
        "config": json.loads(context.run_config["config"]),
        "folder": os.getcwd(),
        "token": os.environ["RAY_AUTH_TOKEN"] if os.environ["RAY_AUTH_MODE"] == "token" else "",
        "files": [str(p.relative_to(app)) for p in app.rglob("*") if "pycache" not in str(p)],
    }))
    raise KeyError("accuracy")
"""

FILES = {
    "pyproject.toml": PYPROJECT,
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
    for name, text in FILES.items():
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "app"


def test_a_run_does_its_work_and_fails_at_its_end(
    app: Path,
    tmp_path: Path,
    left_over: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, output = tmp_path / "home", tmp_path / "out.json"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    config = {'it\'s "quoted"': "x" * 10_000, "n": [1, {"a": "\n\t\\ é"}]}
    running: list[int] = []

    with pytest.raises(EngineError, match=r"^KeyError: 'accuracy' \(log: (\S+)\)$") as caught:
        run_ray(
            app,
            run_config={"config": json.dumps(config), "output": str(output)},
            num_nodes=5,
            actors=1,
            on_poll=lambda: running.append(len(left_over())),
        )

    result = json.loads(output.read_text())
    assert result["partitions"] == [0, 1, 2, 3, 4]
    assert result["config"] == config
    assert result["folder"] == str(tmp_path)
    travels = {name for name in FILES if not name.startswith((".venv", "outputs"))}
    assert set(result["files"]) == travels | {"toy_client", "toy_conf", "toy_server"}
    log = Path(str(caught.value).rpartition("log: ")[2].rstrip(")"))
    assert "a line for the log" in log.read_text()
    assert len(result["token"]) == 64  # without which nobody gets into this run's Ray
    assert result["token"] not in log.read_text()
    assert "Traceback" in log.read_text()
    log.unlink()
    assert max(running) > 5  # SuperLink, SuperExec, simulation, Ray's: the search does find them
    assert left_over() == []
    assert not (home / ".flwr").exists()


def test_an_interrupted_run(app: Path, tmp_path: Path, left_over: Callable[[], list[str]]) -> None:
    output = tmp_path / "awake"

    def interrupt() -> None:
        if output.exists():
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        run_ray(
            app,
            run_config={"mode": "sleep", "output": str(output)},
            num_nodes=2,
            actors=1,
            log_file=tmp_path / "ray.log",
            on_poll=interrupt,
        )
    assert caught.value.code == 128 + signal.SIGTERM
    assert left_over() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 0}, "at least one node, not 0"),
        ({"actors": -1}, "at least one actor, not -1"),
        ({"actors": 2, "address": "127.0.0.1:9"}, "number of actors is the cluster's"),
        ({"address": "127.0.0.1:9"}, "no Ray cluster answers at 127.0.0.1:9"),
        ({"run_config": {"lr": 0.1}}, r"lr: not in \[tool.flwr.app.config\] of .*pyproject.toml"),
    ],
)
def test_wrong_arguments(app: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_ray(app, **{"run_config": {}, "num_nodes": 2, **arguments})


def test_another_apps_package_in_the_way(app: Path, tmp_path: Path) -> None:
    (tmp_path / "toy_client.py").write_text("")
    with pytest.raises(UsageError, match="Ray would take `toy_client` from"):
        run_ray(app, run_config={}, num_nodes=2)


def test_a_folder_without_an_app(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is no Flower app"):
        run_ray(tmp_path, run_config={}, num_nodes=2)


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
