"""The rungs of successive halving: the order of their runs, and the runs that they make."""

from pathlib import Path

import pytest

from edgewire.command.trial import judge, preset_overrides, run_rung
from edgewire.conf.network import Network
from edgewire.report.reader import ResultsError
from edgewire.report.runs import Run
from tests.runs import configured


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


def order(runs, goal=None):
    trials, level = judge(runs, runs[0].metric, goal)
    return [each.name for each in trials], level


def test_the_soonest_at_a_level_that_most_reach_comes_first():
    names, level = order(RUNS)
    assert level == 0.84
    assert names == ["quick", "fast", "slow", "weak", "lost", "blind"]


def test_a_goal_that_enough_runs_reach_is_the_level():
    names, level = order(RUNS[:4], 0.85)
    assert level == 0.85
    assert names == ["fast", "slow", "quick", "weak"]
    assert order(RUNS[:4], 0.9)[1] == 0.84  # only one run reaches it


def test_less_is_better_for_an_error():
    metrics = {"metrics": {"mae": {"name": "mae", "higher": False, "share": False}}}
    runs = []
    for name, last in (("good", 0.1), ("fair", 0.11), ("bad", 3.0)):
        run = finished(name, [9, 1], **metrics)
        rows = [{"round": 1, "mae": last, "virtual_seconds": 1.0}]
        runs.append(Run(run.overrides, run.result, lambda rows=rows: rows, run.folder))
    names, level = order(runs)
    assert names[-1] == "bad"
    assert level < 1


def test_a_goal_that_the_untrained_model_reaches_is_refused():
    with pytest.raises(ResultsError, match=r"already reaches the goal, accuracy 10\.00 %"):
        order(RUNS[:4], 0.1)


def test_runs_without_any_value_are_refused():
    with pytest.raises(ResultsError, match="diverged"):
        order([RUNS[4], RUNS[5]])


@pytest.mark.parametrize("name", ["fedavg", "edgewire_async"])
def test_each_case_is_a_valid_configuration(name):
    words = preset_overrides(name, Network(1.0, 10.0), 8, 4)
    config = configured(*words, "nodes=4")
    assert (config.network.down_mbps, config.network.up_mbps) == (10, 1)
    assert config.network.waiting == "none"
    if name == "fedavg":
        assert config.rounds == 8
    else:
        assert config.strategy["pushes"] == 32


@pytest.mark.system
def test_a_rung_makes_a_run_of_each_preset(tmp_path):
    network, folder = Network(0.5, 1.0, latency_ms=20.0), tmp_path / "it's a, folder=1"
    own = ["nodes=3", "local_steps=4", "engine.workers=1"]
    runs = run_rung(["fedavg", "edgewire"], own, network, 2, 3, folder)
    assert sorted(run.overrides["algorithm"] for run in runs) == ["edgewire", "fedavg"]
    assert {run.overrides["network.up_mbps"] for run in runs} == {"0.5"}
    with pytest.raises(ResultsError, match="no run has finished"):
        run_rung(["fedavg"], ["lr=x"], network, 2, 3, tmp_path / "none")
