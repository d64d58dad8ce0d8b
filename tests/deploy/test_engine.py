"""`engine=superlink` with a real server process, its ServerApp, and nodes in this process."""

import json
import signal
from itertools import pairwise

import pytest

from tests.deploy.served import Fleet
from tests.deploy.servers import Field
from tests.runs import result_of, told_to_end, write_photos

SHORT = ["engine=superlink", "nodes=2", "eval_every=3", "lr=0.1"]
WORDS = [*SHORT, "algorithm=esgd"]
DELTAS = ["strategy=sparse_averaging", "strategy.update=delta", "local_steps=3"]
SCAFFOLD = [*SHORT, *DELTAS, "local=scaffold"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start `python -m edgewire.deploy.server`; return its address."""
    folder = tmp_path_factory.mktemp("server")
    with Field(folder) as field:
        field.serve(["--insecure", "--host", "127.0.0.1", "--state", str(folder / "s")])
        yield f"127.0.0.1:{field.port}"


@pytest.mark.few(1)
@pytest.mark.parametrize("words", [WORDS, SCAFFOLD], ids=["esgd", "scaffold"])
def test_a_run_ends_as_on_the_local_engine(words, server, command):
    """A third node joins after the run has two nodes; the result is as on the local engine."""
    with Fleet(server, 2, late=4):
        code, said, folder = command(*words, "rounds=6", f"engine.address={server}")
    assert code == 0
    assert "takes no part unless one goes: there are nodes=2" in " ".join(said.out.split())
    ids = [str(each["node"]) for each in json.loads((folder / "nodes.json").read_text())["nodes"]]
    assert min(map(len, ids)) > 15
    assert not any(each in said.out + said.err for each in ids)
    _, _, local = command(*words, "rounds=6", "engine=local", "engine.workers=1")
    here, there = result_of(folder), result_of(local)
    for key in ("accuracy", "loss", "uplink_bytes", "downlink_bytes", "client_updates", "ended"):
        assert here[key] == there[key]
    lines = [(each / "history.jsonl").read_text().splitlines() for each in (folder, local)]
    assert len(lines[0]) == len(lines[1]) == 7
    assert (folder / "model.safetensors").read_bytes() == (local / "model.safetensors").read_bytes()
    assert "Starting SparseAveraging" in (folder / "superlink.log").read_text()


def test_a_failed_run_gives_one_line(server, command, tmp_path, monkeypatch):
    """If photos exist where `run.py` runs but not at the server, one line reports the error."""
    write_photos(tmp_path / "not-there")
    monkeypatch.setenv("EDGEWIRE_DATA", str(tmp_path))
    words = [*WORDS, "dataset=imagefolder", "dataset.root=not-there", "dataset.size=8"]
    with Fleet(server, 2):
        code, said, folder = command(*words, f"engine.address={server}")
    assert code == 1
    assert "not-there is not a folder" in said.err
    assert said.err.count("\n") == 1
    assert not (folder / "result.json").exists()


@pytest.mark.system
def test_without_test_photos_accuracy_is_not_measured(server, command, tmp_path):
    """Without test photos at the server, accuracy is null and no node is asked to evaluate."""
    write_photos(tmp_path / "photos")
    words = [*WORDS, "rounds=4", "dataset=imagefolder", "dataset.classes=[cat,dog]"]
    with Fleet(server, 2, folders=[tmp_path / "photos"] * 2):
        code, said, folder = command(*words, "dataset.size=8", f"engine.address={server}")
    assert code == 0, said
    assert "no data at the server to test on: accuracy is not measured" in said.out
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [row["accuracy"] for row in rows] == [None] * 5
    assert rows[4]["train_loss"] < rows[1]["train_loss"]
    result = result_of(folder)
    assert (result["accuracy"], result["best_accuracy"], result["diverged"]) == (None, None, False)
    assert (result["client_updates"], result["ended"]) == (8, "finished")
    assert (folder / "model.safetensors").exists()


@pytest.mark.system
def test_a_stopped_run_keeps_its_files(server, command, tmp_path):
    with Fleet(server, 2, pause=0.3), told_to_end(tmp_path):
        code, _, folder = command(*WORDS, "rounds=100000", f"engine.address={server}")
    assert code == 128 + signal.SIGTERM
    assert result_of(folder)["ended"] == "interrupted"


@pytest.mark.system
def test_a_deadline_bounds_the_rounds(server, command):
    """Without the deadline, 2,000 epochs of a round would take 30 seconds and more."""
    words = ["engine=superlink", "algorithm=edgewire", "nodes=2", "rounds=4", "eval_every=1"]
    words += ["local_epochs=2000", "strategy.deadline=0.5", f"engine.address={server}"]
    with Fleet(server, 2):
        code, _, folder = command(*words)
    assert code == 0
    lines = (folder / "history.jsonl").read_text().splitlines()
    ends = [json.loads(line)["seconds"] for line in lines]
    assert result_of(folder)["failures"] == 0
    assert max(b - a for a, b in pairwise(ends[1:])) < 10
