"""The texts that a user reads: progress and units."""

import io
import json
import time

import pytest
from rich.console import Console

from edgewire.report import progress
from edgewire.report.format import human_bytes, human_seconds
from edgewire.report.progress import RunProgress, progress_line, run_progress
from edgewire.task.metric import ACCURACY, Metric


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        *((human_bytes, 0, "0 B"), (human_bytes, 999, "999 B"), (human_bytes, 61706, "61.7 kB")),
        *(
            (human_bytes, 2.5e9, "2.5 GB"),
            (human_seconds, None, "-"),
            (human_seconds, 0.5, "0.5 s"),
        ),
        *((human_seconds, 245, "4 min 05 s"), (human_seconds, 7380, "2 h 03 min")),
        *((ACCURACY.text, 0.97312, "97.31 %"), (ACCURACY.text, None, "-")),
    ],
)
def test_units(form, value, text):
    assert form(value) == text


ROW = {
    "round": 3,
    "rounds": 10,
    "accuracy": 0.5,
    "uplink_bytes": 60006,
    "uplink_other_bytes": 1500,
    "uplink_header_bytes": 200,
    "downlink_bytes": 0,
    "downlink_other_bytes": 2_000_000,
}


def test_the_bar_follows_the_history(tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with run_progress(tmp_path, 10, console), (tmp_path / "history.jsonl").open("w") as file:
        file.write(json.dumps(ROW) + "\n" + json.dumps({**ROW, "round": 4})[:20])
        file.flush()
        time.sleep(0.6)
        half = screen.getvalue()
        file.write(json.dumps({**ROW, "round": 4, "accuracy": None})[20:] + "\n")
    for part in ("3 of 10", "50.00 %", "61.7 kB", "2 MB"):
        assert part in half
    assert "4 of 10" not in half
    assert "4 of 10" in screen.getvalue()


@pytest.mark.parametrize("shared", [False, True])
def test_a_short_run_prints_no_line_where_there_is_no_bar(tmp_path, shared):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=shared)
    with run_progress(tmp_path, 10, console, shared=shared):
        pass
    assert screen.getvalue() == ""


def test_a_log_has_lines(tmp_path, monkeypatch):
    """A run that takes longer than `FIRST_LINE` seconds logs lines of progress."""
    monkeypatch.setattr(progress, "FIRST_LINE", 0.05)
    screen = io.StringIO()
    (tmp_path / "history.jsonl").write_text(json.dumps(ROW) + "\n")
    with run_progress(tmp_path, 10, Console(file=screen, width=20), name="job 3: "):
        deadline = time.monotonic() + 60
        while screen.getvalue().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    said = "job 3: round 3 of 10, accuracy 50.00 %, up 61.7 kB, down 2 MB, 0 s so far\n"
    assert screen.getvalue() == f"files in {tmp_path}\n{said}"


def test_a_line_shows_the_known_values(tmp_path):
    run, history = RunProgress(tmp_path, ACCURACY), tmp_path / "history.jsonl"
    assert progress_line(run, 10.4, 10) == "round 0 of 10, 10 s so far"
    rest = "accuracy 50.00 %, up 61.7 kB, down 2 MB"
    for done, seconds, said in [
        (1, 40, f"{rest}, 40 s so far"),
        (2, 70, f"{rest}, 1 min 10 s so far, about 4 min 00 s left"),
        (4, 100, f"{rest}, 1 min 40 s so far, about 2 min 00 s left"),
    ]:
        row = {**ROW, "round": done, "seconds": seconds, "accuracy": None if done == 4 else 0.5}
        with history.open("a") as file:
            file.write(json.dumps(row) + "\n")
        assert progress_line(run, seconds, 10) == f"round {done} of 10, {said}"


def test_a_history_of_an_earlier_run_may_lack_the_metric(tmp_path):
    (tmp_path / "history.jsonl").write_text(json.dumps(ROW) + "\n")
    run = RunProgress(tmp_path, Metric("rmse"))
    assert progress_line(run, 1, 10) == "round 3 of 10, rmse -, up 61.7 kB, down 2 MB, 1 s so far"
