"""The texts that a user reads: progress, summary and units."""

import io
import json
import time

import pytest
from rich.console import Console

from edgewire.report import progress
from edgewire.report.format import human_bytes, human_seconds, percent
from edgewire.report.metric import ACCURACY, MainMetric
from edgewire.report.progress import RunProgress, progress_line, run_progress
from edgewire.report.run_result import summary_table
from edgewire.report.runs import read_result


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
        *((percent, 0.97312, "97.31 %"), (percent, None, "-")),
    ],
)
def test_units(form, value, text):
    assert form(value) == text


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
    with run_progress(tmp_path, 10, console), (tmp_path / "history.jsonl").open("w") as file:
        file.write(json.dumps(ROW) + "\n" + json.dumps({**ROW, "round": 4})[:20])
        file.flush()
        time.sleep(0.6)
        half = screen.getvalue()
        file.write(json.dumps({**ROW, "round": 4, "accuracy": None})[20:] + "\n")
    for part in ("3/10", "50.00 %", "61.7 kB", "2 MB"):
        assert part in half
    assert "4/10" not in half
    assert "4/10" in screen.getvalue()


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
    run = RunProgress(tmp_path, MainMetric("rmse"))
    assert progress_line(run, 1, 10) == "round 3 of 10, rmse -, up 61.7 kB, down 2 MB, 1 s so far"


RESULT = {
    **ROW,
    "algorithm": "fedavg_f2i",
    "strategy": "FedAvg",
    "model": "lenet5",
    "dataset": "mnist",
    "nodes": 12,
    "seed": 1,
    "best_accuracy": 0.6,
    "uplink_bytes_float32": 468_965,
    "downlink_bytes_float32": 6_200_000,
    "uplink_ratio": 7.6,
    "downlink_ratio": 3.1,
    "client_updates": 30,
    "failures": 2,
    "seconds": 12.0,
    "virtual_seconds": 90.0,
}


@pytest.fixture
def summary(tmp_path):
    """Return a function: it returns a run's summary as printed, for overrides."""

    def printed(*overrides, **result):
        (tmp_path / ".hydra").mkdir()
        (tmp_path / ".hydra" / "overrides.yaml").write_text(json.dumps(overrides))
        (tmp_path / "result.json").write_text(json.dumps(RESULT | result))
        screen = io.StringIO()
        Console(file=screen, width=120).print(summary_table(read_result(tmp_path), tmp_path))
        return screen.getvalue()

    return printed


def test_the_summary_names_the_main_results(summary):
    text = summary()
    for part in (
        "fedavg_f2i", "lenet5 on mnist, 12 devices, 10 rounds, seed 1", "50.00 %", "60.00 %",
        "61.7 kB; Flower would have sent 469 kB, 7.60 times as much",
        "2 MB; Flower would have sent 6.2 MB, 3.10 times as much",
        "30 used, 2 failed", "12 s here; 1 min 30 s on the virtual network",
    ):  # fmt: skip
        assert part in text
    assert "on a link" not in text  # the time over a link is unknown


def test_the_summary_counts_all_bytes(summary):
    """The sum includes payloads, headers, and other data that Flower would also send."""
    text = summary(uplink_other_bytes=1_000_000, uplink_header_bytes=38_294)
    assert "sent up 1.1 MB; Flower would have sent 1.47 MB" in " ".join(text.split())


LINE = {"link_down_mbps": 10.0, "link_seconds": 100.0, "link_seconds_float32": 250.0}


def test_the_summary_shows_the_time_over_a_link(summary):
    text = summary(**LINE, link_up_mbps=2.0)
    assert "1 min 40 s at 10 Mbit/s down, 2 Mbit/s up; 4 min 10 s without compression" in text
    assert "virtual" not in text


def test_the_link_is_the_runs_network_if_that_has_limits(summary):
    text = summary(**LINE, link_up_mbps=None, virtual_seconds=100.0)
    assert "1 min 40 s at 10 Mbit/s down, no limit up; 4 min 10 s without compression" in text


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["algorithm=fedavg_f2i", "lr=0.1"], "fedavg_f2i"),
        (["+strategy=mine", "downlink=topk"], "fedavg_f2i with strategy=mine, downlink=topk"),
        (["experiment=front"], "experiment=front (FedAvg)"),
        (["algorithm=fedavg_f2i", "experiment=front"], "fedavg_f2i"),
    ],
)
def test_a_run_is_named_by_its_overrides(summary, overrides, name):
    first = summary(*overrides).splitlines()[0]
    assert first.split("run", 1)[1].strip() == name
