"""A thread gives loggers every row once, also after failures and in resumed runs."""

import logging
import threading

import pytest

from edgewire.report.loggers import Logger, LoggerError, final, following, grouped
from edgewire.report.loggers.following import how_ended, logging_run
from tests.report.loggers.runs import finish, made_run, row, write


class Kept(Logger):
    """Keeps rows in memory; `fails`: the number of calls of `log` that raise; `waits`: its end."""

    def __init__(self, fails=0, waits=0):
        self.rounds, self.fails, self.waits, self.end, self.run = [], fails, waits, None, None

    def begin(self, run):
        self.run = run
        return {"id": 7}

    def log(self, rows):
        if self.fails:
            self.fails -= 1
            raise OSError("no\nspace")
        self.rounds += [row["round"] for row in rows]

    def finish(self, ended, result):
        threading.Event().wait(self.waits)
        self.end = ended, result.get("round")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(following, "OFTEN", 0.01)


@pytest.fixture
def warned(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("edgewire"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_logger_that_fails_warns_once_and_gets_the_rows_again(tmp_path, warned):
    flaky, sound = Kept(fails=3), Kept()
    with logging_run({"flaky": flaky, "sound": sound}, made_run(tmp_path)):
        write(tmp_path, [row(n) for n in range(3)])
        while flaky.fails:
            threading.Event().wait(0.01)
        finish(tmp_path, [row(3)])
    assert flaky.rounds == sound.rounds == [0, 1, 2, 3]
    assert flaky.end == sound.end == ("finished", 3)
    assert warned() == ["logger flaky: OSError: no space; the run goes on"]


def test_a_dead_logger_tells_what_lacks_and_delays_only_the_end_for_a_while(
    tmp_path, warned, monkeypatch
):
    monkeypatch.setattr(following, "LAST", 0.2)
    dead, sound = Kept(fails=10**9, waits=20), Kept()
    with logging_run({"dead": dead, "sound": sound}, made_run(tmp_path)):
        write(tmp_path, [row(0)])
        while dead.fails == 10**9:
            threading.Event().wait(0.01)
        finish(tmp_path, [row(n) for n in range(1, 4)])
    assert (dead.end, sound.end) == (None, ("finished", 3))
    assert warned()[-2] == "logger dead lacks 4 rows of this run"
    assert "take too long to end" in warned()[-1]


def test_a_resumed_run_repeats_no_row_and_gets_what_was_saved(tmp_path):
    with logging_run({"kept": Kept()}, made_run(tmp_path, name="first")):
        finish(tmp_path, [row(n) for n in range(5)])
    again = Kept()
    with logging_run({"kept": again}, made_run(tmp_path, resumed=True, name="x", group=None)):
        write(tmp_path, [row(n) for n in range(3)], "w")  # back to the checkpoint of round 2
        threading.Event().wait(0.05)
        finish(tmp_path, [row(n) for n in range(3, 8)])
    assert again.rounds == [5, 6, 7]
    assert (again.run.saved["id"], again.run.name, again.run.group) == (7, "first", "sweep")


def test_a_logger_new_in_a_resumed_run_begins_with_the_first_row(tmp_path):
    write(tmp_path, [row(n) for n in range(3)])
    new = Kept()
    with logging_run({"new": new}, made_run(tmp_path, resumed=True)):
        finish(tmp_path, [row(3)])
    assert (new.rounds, new.run.resumed) == ([0, 1, 2, 3], False)


def test_a_truncation_in_the_middle_of_a_line_is_read_again(tmp_path):
    kept = Kept()
    with logging_run({"kept": kept}, made_run(tmp_path)):
        write(tmp_path, [row(n) for n in range(3)])
        threading.Event().wait(0.05)
        longer = [row(n, text="x" * 200) for n in range(4)]
        write(tmp_path, longer, "w")
        threading.Event().wait(0.05)
        finish(tmp_path, [row(4)])
    assert kept.rounds == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(KeyboardInterrupt, "interrupted"), (SystemExit, "interrupted"), (OSError, "failed")],
)
def test_the_end_of_a_run_by_an_exception_is_told(tmp_path, error, expected):
    kept = Kept()

    def fail():
        with logging_run({"kept": kept}, made_run(tmp_path)):
            write(tmp_path, [row(0)])
            raise error

    with pytest.raises(error):
        fail()
    assert (kept.rounds, kept.end[0]) == ([0], expected)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"client_updates": 3, "stopped": None}, "finished"),
        ({"client_updates": 0, "stopped": None}, "failed"),
        ({"client_updates": 3, "stopped": "no update"}, "failed"),
        ({"client_updates": 3, "stopped": "interrupted"}, "interrupted"),
        ({"client_updates": 3, "stopped": "no update", "diverged": True}, "diverged"),
        ({}, "failed"),
    ],
)
def test_how_a_run_ended(result, expected):
    assert how_ended("finished", result) == expected


class Bad(Kept):
    def begin(self, run):
        raise ValueError("no such\nplace")


def test_a_logger_that_cannot_begin_is_one_line_and_ends_the_others(tmp_path):
    first = Kept()
    with (
        pytest.raises(LoggerError, match=r"^logger bad cannot begin: ValueError: no such place$"),
        logging_run({"first": first, "bad": Bad()}, made_run(tmp_path)),
    ):
        raise AssertionError("the run began")
    assert first.end == ("failed", None)


def test_names_of_values_are_grouped():
    by_segment = {"uplink_bytes_by_segment": [1, 2], "seconds_by_segment": [0.5]}
    found = grouped(row(2, own_score=3, flag=True, **by_segment))
    assert found == {
        "metrics/accuracy": 0.2, "metrics/loss": 1.0, "metrics/own_score": 3.0,
        "bytes/uplink_bytes": 200.0, "bytes/uplink_bytes_by_segment/0": 1.0,
        "bytes/uplink_bytes_by_segment/1": 2.0, "metrics/client_updates": 2.0, "metrics/lr": 0.1,
        "time/virtual_seconds": 4.0, "time/seconds": 0.02, "time/seconds_by_segment/0": 0.5,
    }  # fmt: skip
    result = {"round": 2, "loss": 1.0, "top5": None, "uplink_ratio": 4.0, "up_mbps": [1.0] * 900}
    assert final(result) == {"result/loss": 1.0, "result/uplink_ratio": 4.0}


def test_parameters_are_dotted_and_without_null(tmp_path):
    found = made_run(tmp_path).parameters()
    assert found == {"lr": 0.1, "model.name": "mlp", "packages": "['a', 'b']"}


def test_loggers_whose_names_are_paths_keep_their_state_in_the_folder(tmp_path):
    names = ("../../up", "/abs", "a/b", "A", "a", "é" * 300)
    folder = tmp_path / "in" / "run"
    folder.mkdir(parents=True)
    with logging_run({name: Kept() for name in names}, made_run(folder)):
        finish(folder, [row(0), row(1)])
    assert len({each.name.lower() for each in (folder / ".loggers").iterdir()}) == len(names)
    assert [each.name for each in tmp_path.rglob("*.json") if folder not in each.parents] == []
