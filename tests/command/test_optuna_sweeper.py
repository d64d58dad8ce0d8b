"""`hydra/sweeper=optuna`: the search space, the front, and studies that are continued."""

import json

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from edgewire.command import optuna_sweeper
from edgewire.command.optuna_sweeper import consecutive, distribution_of, value_of
from edgewire.conf.schema import ConfigError
from tests.runs import result_of

pytest.importorskip("optuna")
SMALL = ["hydra/sweeper=optuna", "nodes=2", "rounds=1", "engine.workers=1"]


def space(word):
    (override,) = OverridesParser.create().parse_overrides([word])
    return distribution_of(override)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lr=interval(0.01,1)", "FloatDistribution(high=1.0, log=False, low=0.01, step=None)"),
        ("lr=tag(log,interval(0.01,1))", "FloatDistribution(high=1.0, log=True, low=0.01"),
        ("nodes=int(interval(1,9))", "IntDistribution(high=9, log=False, low=1, step=1)"),
        ("nodes=range(2,9,3)", "IntDistribution(high=8, log=False, low=2, step=3)"),
        ("nodes=2,8", "CategoricalDistribution(choices=('2', '8'))"),
        ("compression=choice(topk,int8)", "CategoricalDistribution(choices=('topk', 'int8'))"),
        ("lr=range(0.5,2,0.5)", "CategoricalDistribution(choices=('0.5', '1.0', '1.5'))"),
    ],
)
def test_hydras_sweeps_are_optunas_distributions(word, expected):
    assert str(space(word)).startswith(expected)


@pytest.mark.parametrize("word", ["lr=interval(1,0.1)", "lr=tag(log,interval(0,1))"])
def test_an_empty_range_is_one_line(word):
    with pytest.raises(ConfigError, match="lr="):
        space(word)


def test_jobs_are_launched_in_groups_of_consecutive_numbers():
    assert consecutive({4: ["d"], 0: ["a"], 1: ["b"], 5: ["e"]}) == [
        (0, [["a"], ["b"]]), (4, [["d"], ["e"]])
    ]  # fmt: skip


def test_values_of_a_result():
    result = {"accuracy": 0.5, "loss": None, "diverged": True, "model": "mlp"}
    result |= {f"{way}link_{what}": 1 for way in ("up", "down") for what in (
        "bytes", "other_bytes", "header_bytes", "bytes_float32")}  # fmt: skip
    assert value_of(result, "accuracy") == 0.5
    assert value_of(result, "sent_bytes") == 6
    assert [value_of(result, key) for key in ("loss", "diverged", "model", "x")] == [None] * 4


@pytest.mark.system
def test_a_search_prints_its_front_and_is_continued(command, cli):
    words = ["lr=tag(log,interval(0.01,0.5))", "compression=topk,int8", "hydra.sweeper.trials=3"]
    code, printed, folder = command("-m", *SMALL, *words)
    assert (code, printed.err) == (0, "")
    first = [result_of(folder / job)["accuracy"] for job in "012"]
    code, printed = cli(f"continue={folder}", "hydra.sweeper.trials=5")
    assert (code, printed.err) == (0, "")
    results = [result_of(folder / job) for job in "01234"]
    assert [result["accuracy"] for result in results[:3]] == first
    assert len({result["accuracy"] for result in results}) > 3
    front = json.loads((folder / "front.json").read_text())
    assert f"The front, {len(front)} of 5 jobs:" in printed.out
    points = [(result["accuracy"], value_of(result, "sent_bytes")) for result in results]
    best = [
        number
        for number, (accuracy, sent) in enumerate(points)
        if not any(a >= accuracy and b <= sent and (a, b) != (accuracy, sent) for a, b in points)
    ]
    assert sorted(entry["job"] for entry in front) == best
    again, _, other = command("-m", *SMALL, *words)
    assert again == 0
    assert [result_of(other / job)["accuracy"] for job in "012"] == first


@pytest.mark.system
def test_a_failed_job_is_run_again_and_a_stopped_search_goes_on(command, cli):
    words = ["nodes=choice(0,2,3)", "hydra.sweeper.trials=6", "stop_on_failure=true"]
    words += ["hydra.sweeper.sampler=random", "hydra.sweeper.seed=1"]
    code, printed, folder = command("-m", *SMALL, *words)
    assert code == 2
    begun = len(list(folder.glob("*/failed.json"))), len(list(folder.glob("*/result.json")))
    assert begun[0] == 1
    code, printed = cli(f"continue={folder}", "stop_on_failure=false")
    assert code == 2
    assert printed.out.count("not run again") == 0  # Optuna knows the results of finished trials
    found = [(folder / str(job) / "result.json").exists() for job in range(6)]
    failed = [(folder / str(job) / "failed.json").exists() for job in range(6)]
    assert [not each for each in found] == failed
    assert sum(found) > begun[1]


def test_a_wrong_objective_is_one_line(command):
    code, printed, _ = command("-m", *SMALL, "lr=0.1,0.2", "hydra.sweeper.maximize=[acuracy]")
    assert code == 2
    (line,) = printed.err.strip().splitlines()
    assert "runs have no number acuracy" in line


def test_a_missing_package_is_one_line(command, monkeypatch):
    monkeypatch.setattr(optuna_sweeper, "find_spec", lambda name: None)
    code, printed, _ = command("-m", *SMALL, "lr=0.1,0.2")
    assert code == 2
    assert "pip install -e '.[optuna]'" in printed.err
