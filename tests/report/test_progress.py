"""The progress of a run and of a sweep's jobs, from the files that they write."""

import io
import json
import os
import shutil

import pytest
from rich.console import Console

from edgewire.report.progress import RUNNING, STARTING, VIEW, Jobs, RunProgress, sweep_progress
from edgewire.task.metric import ACCURACY, Metric
from tests.report.made_runs import lines, row, write_history


def job(top, name, rows=0, overrides="- seed=0\n", **result):
    folder = top / str(name)
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    (folder / ".hydra" / "overrides.yaml").write_text(overrides)
    told = [row(at, 8, accuracy=0.5, uplink_bytes=1000 * at) for at in range(rows)]
    (folder / "history.jsonl").write_text(lines(told))
    if result:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def reached(run):
    run.update()
    return run.row.get("round")


def test_a_row_counts_when_its_line_is_complete(tmp_path):
    write_history(tmp_path, 3)
    run, text = RunProgress(tmp_path, ACCURACY), lines([row(3)])
    for part, expected in (("", 2), (text[:50], 2), (text[50:], 3)):
        with (tmp_path / "history.jsonl").open("a") as history:
            history.write(part)
        assert reached(run) == expected


def test_a_resumed_run_and_a_folder_that_vanishes_are_followed(tmp_path):
    folder = tmp_path / "run"
    run = RunProgress(folder, ACCURACY)
    run.update()
    assert run.state == STARTING
    write_history(folder, 20)
    assert reached(run) == 19
    rows = [row(n) if n < 10 else row(n, accuracy=0.5) for n in range(12)]
    (folder / "history.jsonl").write_text(lines(rows))
    assert (reached(run), run.values) == (11, {"accuracy": 0.5})
    shutil.rmtree(folder)
    run.update()
    write_history(folder, 4)
    assert (reached(run), run.state) == (3, RUNNING)


def test_the_time_left_is_known_at_once_from_the_times_of_rows(tmp_path):
    write_history(tmp_path, 25)
    run = RunProgress(tmp_path)
    assert (reached(run), run.left) == (24, pytest.approx(16 * 0.4))
    write_history(tmp_path, 41)
    assert (reached(run), run.left) == (40, None)


def test_values_are_the_last_that_are_known(tmp_path):
    rows = [row(n, **{} if n % 3 == 0 else {"accuracy": None}, mae=n) for n in range(11)]
    (tmp_path / "history.jsonl").write_text(lines(rows) + '{"round": 11, "accuracy": "<b>"}\n')
    run = RunProgress(tmp_path, ACCURACY, Metric("mae"), Metric("rmse"))
    assert reached(run) == 10
    assert run.values == {"accuracy": row(9)["accuracy"], "mae": 10}


def test_each_running_job_has_a_line_below_the_number_in_each_state(tmp_path):
    job(tmp_path, 0, 8, stopped=None)
    job(tmp_path, 1, 4, overrides="- seed=[1]\n- lr=0.1\n")
    (job(tmp_path, 2) / "failed.json").write_text("{}")
    job(tmp_path, 10)
    job(tmp_path, 3, 2, stopped="interrupted")
    first, line = Jobs([tmp_path]).lines()
    assert first == "1 finished, 1 running, 1 starting, 1 failed, 1 stopped"
    assert line.startswith("1 running, round 3 of 8, accuracy 50.00 %, up 3 kB, down ")


def test_jobs_of_an_earlier_sweep_and_damaged_files_do_no_harm(tmp_path):
    old = job(tmp_path, 0, 8)
    os.utime(old / ".hydra" / "overrides.yaml", (1, 1))
    folder = job(tmp_path, 1, overrides="- name=[bold]x[/]\n- <script>\n")
    (folder / "result.json").write_text("{")
    (folder / "history.jsonl").write_text('{"round": 1, "rou')
    assert list(Jobs([tmp_path], 100.0).lines()) == ["starting"]


def test_on_a_terminal_the_jobs_are_told_to_be_silent(tmp_path):
    job(tmp_path, 0, 3)
    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    with sweep_progress(tmp_path, 0.0, console):
        assert VIEW in os.environ
    assert VIEW not in os.environ
    assert "running, round 2 of 8" in console.file.getvalue()
