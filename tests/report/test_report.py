"""What a person reads."""

import io
import json
import time

import pytest
from rich.console import Console

from report.format import human_bytes, human_seconds, percent
from report.progress import RunProgress
from report.summary import read_result, summary_table


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (61706, "61.7 kB"), (2.5e9, "2.5 GB")]
)
def test_bytes(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.5, "0.5 s"), (245, "4 min 05 s"), (7380, "2 h 03 min")],
)
def test_seconds(seconds, text):
    assert human_seconds(seconds) == text


def test_percent():
    assert percent(0.97312) == "97.31 %"
    assert percent(None) == "-"


ROW = {
    "round": 3,
    "rounds": 10,
    "accuracy": 0.5,
    "uplink_bytes": 61706,
    "downlink_bytes": 2_000_000,
}


def test_the_bar_follows_the_history(tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with RunProgress(tmp_path, 10, console):
        with (tmp_path / "history.jsonl").open("w") as file:
            file.write(json.dumps(ROW) + "\n" + json.dumps({**ROW, "round": 4})[:20])
            file.flush()
            time.sleep(0.6)
            half = screen.getvalue()
            file.write(json.dumps({**ROW, "round": 4, "accuracy": None})[20:] + "\n")
        time.sleep(0.6)
    for part in ("3/10", "50.00 %", "61.7 kB", "2 MB"):
        assert part in half
    assert "4/10" not in half
    assert "4/10" in screen.getvalue()


def test_no_bar_where_there_is_no_terminal(tmp_path):
    screen = io.StringIO()
    with RunProgress(tmp_path, 10, Console(file=screen)):
        pass
    assert screen.getvalue() == ""


def test_the_summary_names_what_counts(tmp_path):
    result = {
        **ROW,
        "algorithm": "fedavg_f2i",
        "model": "lenet5",
        "dataset": "mnist",
        "seed": 1,
        "best_accuracy": 0.6,
        "uplink_ratio": 7.6,
        "downlink_ratio": 3.1,
        "client_updates": 30,
        "failures": 2,
        "seconds": 12.0,
        "virtual_seconds": 90.0,
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    screen = io.StringIO()
    Console(file=screen, width=120).print(summary_table(read_result(tmp_path), tmp_path))
    for part in ("fedavg_f2i", "50.00 %", "60.00 %", "7.60 times", "2 failed", "1 min 30 s"):
        assert part in screen.getvalue()
