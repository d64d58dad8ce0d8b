"""The progress of a run and of a sweep's jobs, from the files that they write."""

import io
import json
import os
import shutil
import time

import pytest
from rich.console import Console

from edgewire.report.metric import ACCURACY, MainMetric
from edgewire.report.progress import RUNNING, STARTING, VIEW, RunProgress, SweepView, sweep_progress
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


def shown(view, rows=20, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(view.table(rows))
    return console.file.getvalue()


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
    run = RunProgress(tmp_path, ACCURACY, MainMetric("mae"), MainMetric("rmse"))
    assert reached(run) == 10
    assert run.values == {"accuracy": row(9)["accuracy"], "mae": 10}


def test_each_job_has_a_line_with_its_state_and_newest_row(tmp_path):
    job(tmp_path, 0, 8, stopped=None)
    job(tmp_path, 1, 4, overrides="- seed=[1]\n- lr=0.1\n")
    (job(tmp_path, 2) / "failed.json").write_text("{}")
    job(tmp_path, 10)
    job(tmp_path, 3, 2, stopped="interrupted")
    lines = shown(SweepView(tmp_path, 0.0, 12)).splitlines()
    assert lines[0].startswith(
        "3 of 12 jobs done, 2 running, 1 failed or diverged, 0 s so far, about 0 s left"
    )
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2", "3", "10"]
    assert lines[2].split()[1:7] == ["seed=0", "finished", "7", "of", "8", "accuracy"]
    assert lines[3].split()[1:4] == ["seed=[1]", "lr=0.1", "running"]
    assert "3 kB" in lines[3]
    assert [lines[n].split()[2] for n in (4, 5, 6)] == ["failed", "stopped", "starting"]


def test_new_rows_move_a_job_on_and_give_its_time_left(tmp_path):
    view = SweepView(tmp_path, 0.0)
    folder = job(tmp_path, 0, 1)
    assert view.jobs()[0].left is None
    with (folder / "history.jsonl").open("a") as file:
        file.write(lines([row(4, 8, accuracy=None, seconds=3.0)]))
    (found,) = view.jobs()
    assert (found.row["round"], found.left, found.measured) == (4, 3.0, "accuracy 50.00 %")


@pytest.mark.parametrize("rows", [0, 1, 3, 500])
def test_a_huge_sweep_shows_the_running_jobs_first(tmp_path, rows):
    for number in range(30):
        job(tmp_path, number, 1, **({} if number == 4 else {"stopped": None}))
    lines = shown(SweepView(tmp_path, 0.0), rows).splitlines()[2:]
    assert len(lines) == min(max(rows, 1), 30)
    assert any(line.split()[0] == "4" for line in lines)


def test_jobs_of_an_earlier_sweep_and_damaged_files_do_no_harm(tmp_path):
    old = job(tmp_path, 0, 8)
    os.utime(old / ".hydra" / "overrides.yaml", (1, 1))
    folder = job(tmp_path, 1, overrides="- name=[bold]x[/]\n- <script>\n")
    (folder / "result.json").write_text("{")
    (folder / "history.jsonl").write_text('{"round": 1, "rou')
    text = shown(SweepView(tmp_path, 100.0))
    assert "name=[bold]x[/] <script>" in text
    assert text.splitlines()[0].startswith("0 jobs done, 1 running")


def test_on_a_terminal_the_jobs_are_told_to_be_silent(tmp_path):
    job(tmp_path, 0, 3)
    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    with sweep_progress(tmp_path, 0.0, console, 4, every=0.05):
        assert VIEW in os.environ
        time.sleep(0.3)
    assert VIEW not in os.environ
    assert "0 of 4 jobs done, 1 running" in console.file.getvalue()
