"""`--try` keeps the faster half, and what it writes can be run."""

import json
import shlex
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from edgewire.report.advise import trial
from edgewire.report.advise.__main__ import main
from edgewire.report.advise.trial import judge, preset_overrides
from edgewire.report.errors import ResultsError
from edgewire.report.link_time import parse_link
from edgewire.report.runs import Run
from tests.fork_server import run as run_program
from tests.runs import ROOT, configured

NO_GOAL = Namespace(accuracy=None, loss=None, reach=None)


def finished(name, values, seconds=1.0, **result):
    """Return a run whose rounds take `seconds` each."""
    rows = [
        {"round": n, "accuracy": value, "virtual_seconds": n * seconds}
        for n, value in enumerate(values)
    ]
    full = {"seed": 0, "diverged": False, **result}
    return Run({"algorithm": name}, full, lambda: rows, Path("nowhere"))


RUNS = [
    finished("slow", [0.1, 0.8, 0.9], seconds=9),
    finished("fast", [0.1, 0.5, 0.8, 0.85], seconds=1),
    finished("weak", [0.1, 0.2, 0.3], seconds=0.1),
    finished("quick", [0.1, 0.7, 0.84], seconds=0.5),
    finished("lost", [0.1, 0.99], seconds=0.1, diverged=True),
    finished("blind", [None, None]),
]


def order(runs, **goal):
    trials, level = judge(runs, Namespace(**{**vars(NO_GOAL), **goal}))
    return [each.name for each in trials], level


def test_the_soonest_at_a_level_that_most_reach_comes_first():
    names, (metric, level) = order(RUNS)
    assert metric == "accuracy"
    assert level == 0.84
    assert names == ["quick", "fast", "slow", "weak", "lost", "blind"]


def test_a_goal_that_enough_runs_reach_is_the_level():
    names, (_, level) = order(RUNS[:4], accuracy=85.0)
    assert level == 0.85
    assert names == ["fast", "slow", "quick", "weak"]
    assert order(RUNS[:4], reach=0.9)[1][1] == 0.84  # only one run reaches it


def test_less_is_better_for_an_error():
    metrics = {"metrics": {"mae": {"name": "mae", "higher": False, "share": False}}}
    runs = []
    for name, last in (("good", 0.1), ("fair", 0.11), ("bad", 3.0)):
        run = finished(name, [9, 1], **metrics)
        rows = [{"round": 1, "mae": last, "virtual_seconds": 1.0}]
        runs.append(Run(run.overrides, run.result, lambda rows=rows: rows, run.folder))
    names, (metric, level) = order(runs)
    assert metric == "mae"
    assert names[-1] == "bad"
    assert level < 1
    with pytest.raises(ResultsError, match="--reach"):
        order(runs, accuracy=0.9)


def test_a_goal_that_the_untrained_model_reaches_is_refused():
    with pytest.raises(ResultsError, match=r"already reaches the goal, accuracy 10\.00 %"):
        order(RUNS[:4], accuracy=10.0)
    with pytest.raises(ResultsError, match=r"would be 1\.2 %"):
        order(RUNS[:4], reach=1.2)


def test_runs_are_written_to_the_current_folder(tmp_path, monkeypatch):
    made = []

    def no_run(tried, own, network, rounds, nodes, folder):
        made.append(folder)
        raise ResultsError("no run")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "run_rung", no_run)
    assert main(["--link", "10/1", "--try"]) == 2
    assert made[0].parents[1] == tmp_path / "outputs"


def test_runs_without_any_value_are_refused():
    with pytest.raises(ResultsError, match="diverged"):
        order([RUNS[4], RUNS[5]])


@pytest.mark.parametrize("name", ["fedavg", "edgewire_async"])
def test_each_case_is_a_valid_configuration(name):
    words = preset_overrides(name, parse_link("10/1"), 8, 4)
    config = configured(*words, "nodes=4")
    assert (config.network.down_mbps, config.network.up_mbps) == (10, 1)
    assert config.network.waiting == "none"
    if name == "fedavg":
        assert config.rounds == 8
    else:
        assert config.strategy["pushes"] == 32


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--presets", "nothing"], "algorithm=nothing"),
        (["--rounds", "0"], "at least 1"),
        (["--accuracy", "1.5", "--presets", "fedavg"], "would be 1.5 %"),
        (["--accuracy", "-3", "--presets", "fedavg"], "share"),
        (["--", "algorithm=fedavg"], "--presets"),
        (["--", "network=lte"], "--link"),
        (["--", "network.up_mbps=1"], "--link"),
        (["--", "engine=ray"], "engine=local"),
        (["--", "-m"], "overrides"),
        (["--", "rounds=0"], "rounds"),
        (["--", "nodes=many"], "nodes"),
    ],
)
def test_odd_requests_get_one_line(words, said, capsys):
    assert main(["--link", "10/1", "--try", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Search among two presets on digits; return the folder and the JSON that was printed."""
    out = tmp_path_factory.mktemp("try") / "it's a, folder=1"
    words = ["--link", "1/0.5", "--latency", "20", "--try", "--rounds", "8", "--out", str(out)]
    command = ["-m", "edgewire.report.advise", *words,
               "--presets", "fedavg,fedavg_f2i_both,edgewire",
               "--json", "--", "nodes=3", "local_steps=4", "engine.workers=1"]  # fmt: skip
    done = run_program([sys.executable, *command], text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


@pytest.mark.system
def test_a_search_halves_the_presets(searched):
    out, found = searched
    runs = [len(list((out / f"rung{n}").glob("*/result.json"))) for n in range(3)]
    assert runs == [3, 2, 1]
    assert len(found["settings"]) == 1
    assert found["settings"][0]["overrides"]["network.up_mbps"] == "0.5"


@pytest.mark.system
def test_the_written_configuration_runs(searched, tmp_path):
    out, _ = searched
    words = ["--config-path", str(out), "--config-name", "advised", f"hydra.run.dir={tmp_path}"]
    program = [sys.executable, "run.py", *words]
    done = run_program(program, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    (folder,) = (out / "rung2").glob("*/result.json")
    first = json.loads(folder.read_text())
    same = ("accuracy", "uplink_bytes", "downlink_bytes", "virtual_seconds", "algorithm")
    assert {key: result[key] for key in same} == {key: first[key] for key in same}
    assert not list(ROOT.glob("run.log"))


@pytest.mark.system
def test_the_command_for_devices_is_a_valid_run(searched):
    words = shlex.split(searched[1]["devices"])
    assert words[:2] == ["python", "run.py"]
    config = configured(*words[2:])
    assert config.network.up_mbps is None
    assert config.nodes == 3
    assert config.rounds == 8
