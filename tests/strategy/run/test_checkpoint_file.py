"""The checkpoint file has a checked format, and is written at intervals."""

import json
import math
from types import SimpleNamespace

import pytest

from edgewire.compression.base import PayloadError
from edgewire.conf.schema import ConfigError
from edgewire.strategy.federated import Federated
from edgewire.strategy.run import checkpoint_file, checkpointer
from edgewire.strategy.run.checkpoint_file import read, write
from edgewire.strategy.run.checkpointer import RunCheckpointer
from tests.local_runs import at_row, local_run, raising
from tests.runs import result_of
from tests.strategy.test_checkpoints import SMALL

FULL = OSError(28, "No space left on device")
PARTS = {"a": b"first", "b": b"", "c": bytes(range(256)) * 100}


def keeping(folder, every, strategy=None, parts=lambda: {"a": b"next"}):
    """Return the `RunCheckpointer` of a run in a folder, whose checkpoints have these `parts`."""
    run = SimpleNamespace(
        strategy=strategy or SimpleNamespace(save=None, done=2),
        records=SimpleNamespace(folder=folder),
        config=SimpleNamespace(checkpoint_every=every, rounds=100),
    )
    made = RunCheckpointer(run, None, SimpleNamespace(wanted=False, go=lambda: None))
    made.parts = lambda strategy, done: parts()
    return made


def test_a_written_checkpoint_is_read_back(tmp_path):
    write(tmp_path, PARTS)
    assert read(tmp_path) == PARTS
    write(tmp_path, {"a": b"next"})
    assert read(tmp_path) == {"a": b"next"}
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint_file.FILE]


def test_the_last_checkpoint_stays_until_the_next_is_complete(tmp_path, monkeypatch, caplog):
    write(tmp_path, PARTS)
    monkeypatch.setattr("os.fsync", raising(FULL))
    keeping(tmp_path, 1).state_complete()
    assert "No space left" in caplog.text
    assert read(tmp_path) == PARTS
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint_file.FILE]


HUGE = json.dumps({checkpoint_file.MARK: checkpoint_file.FORMAT, "parts": [["a", 9e99]]})


def test_another_version_of_the_format_is_named(tmp_path):
    write(tmp_path, PARTS)
    path = tmp_path / checkpoint_file.FILE
    mark = f'"{checkpoint_file.MARK}": '
    newest, older = f"{mark}{checkpoint_file.FORMAT}".encode(), f"{mark}1".encode()
    path.write_bytes(path.read_bytes().replace(newest, older))
    with pytest.raises(ConfigError, match="of another version"):
        read(tmp_path)


@pytest.mark.parametrize("head", ["[]", "5", "{}", HUGE])
def test_invalid_file_heads_are_refused(tmp_path, head):
    (tmp_path / checkpoint_file.FILE).write_text(f"{head}\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize("every", [None, 0])
def test_checkpoints_can_be_switched_off(tmp_path, every):
    keeping(tmp_path, every).state_complete()
    keeping(None, 1).state_complete()
    assert not list(tmp_path.iterdir())


def test_checkpoints_are_due_at_intervals_within_their_share_of_time(tmp_path, monkeypatch):
    now, found = 100.0, []
    monkeypatch.setattr(checkpointer.time, "perf_counter", lambda: now)

    def parts():  # they take a second
        nonlocal now
        now += 1.0
        found.append(strategy.done)
        return PARTS

    strategy = SimpleNamespace(save=None, done=0)
    kept = keeping(tmp_path, 10, strategy, parts)

    def kept_at(*units):
        found.clear()
        for strategy.done in units:
            kept.state_complete()
        return found

    assert kept_at(0, 5) == []
    assert kept_at(12) == [12]
    assert kept_at(19, 25) == []  # no time has passed since the last checkpoint
    now += 1.0 / checkpointer.SHARE - 0.1
    assert kept_at(25) == []
    now += 0.2
    assert kept_at(19) == []
    assert kept_at(25) == [25]


def run(folder, *words, **options):
    local_run(folder, "algorithm=fedavg", *SMALL, "nodes=2", "local_steps=1", *words, **options)


def parts_seen(monkeypatch):
    """Return a list to which each checkpoint that can be written adds the number of rounds done."""
    found, parts_of = [], RunCheckpointer.parts
    monkeypatch.setattr(checkpointer, "SHARE", math.inf)

    def noting(self, strategy, done):
        parts = parts_of(self, strategy, done)
        found.append(done)
        return parts

    monkeypatch.setattr(RunCheckpointer, "parts", noting)
    return found


def test_a_run_writes_checkpoints_at_intervals_and_removes_them(tmp_path, monkeypatch):
    found = parts_seen(monkeypatch)
    run(tmp_path, "rounds=7", "checkpoint_every=2")
    assert found == [2, 4, 6]
    assert not (tmp_path / checkpoint_file.FILE).exists()
    run(tmp_path, "rounds=3", "checkpoint_every=null")
    assert found == [2, 4, 6]


def test_a_strategy_that_cannot_be_saved_is_named_once_and_still_trains(
    tmp_path, monkeypatch, caplog
):
    found, begin = parts_seen(monkeypatch), Federated.__init__

    def with_more(self, strategy, *options, **named):
        strategy.accountant = object()
        begin(self, strategy, *options, **named)

    monkeypatch.setattr(Federated, "__init__", with_more)
    run(tmp_path, "rounds=3")
    assert found == []
    assert caplog.text.count("no checkpoints of this run: FedAvg.accountant") == 1
    assert result_of(tmp_path)["ended"] == "finished"


def test_a_checkpoint_of_another_engine_or_strategy_is_refused(tmp_path, monkeypatch):
    parts_seen(monkeypatch)
    at_row(monkeypatch, 3, raising(PayloadError("enough")))
    with pytest.raises(PayloadError):
        run(tmp_path, "rounds=3")
    parts = read(tmp_path)
    rows = (tmp_path / "history.jsonl").read_bytes()
    for changed, said in (
        ({k: v for k, v in parts.items() if k != "grid"}, "on another engine"),
        ({k: v for k, v in parts.items() if k != "strategy"}, "no state of this strategy"),
        ({**parts, "strategy": parts["grid"]}, "hold a GridState, not a FederatedState"),
        ({**parts, "run": b"x"}, "hold no strategy's state"),
    ):
        write(tmp_path, changed)
        with pytest.raises(ConfigError, match=said):
            run(tmp_path, "rounds=3", resume=True)
        assert (tmp_path / "history.jsonl").read_bytes() == rows
