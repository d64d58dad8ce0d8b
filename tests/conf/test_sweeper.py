"""The jobs that are made of an experiment's cases, and the errors for wrong cases."""

import json

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from edgewire.conf.schema import ConfigError
from edgewire.conf.sweeper import Cases, split_case

EXPERIMENT = """# @package _global_
defaults:
  - override /hydra/sweeper: cases
hydra:
  sweeper:
    cases:
      - algorithm=fedavg
      - compression=esgd compression.drop=0.25
    params:
      seed: 0,1
"""
PLAIN = """# @package _global_
defaults:
  - override /compression: f2i
seed: 7
nodes: 3
"""


def jobs(cases, line=(), params=None, size=None):
    """Return the batches of jobs, each job as one string."""
    sweeper = Cases(size, params or {}, cases)
    parse = OverridesParser.create().parse_overrides
    words = parse([f"{key}={value}" for key, value in (params or {}).items()] + list(line))
    return [[" ".join(job) for job in batch] for batch in sweeper.split_arguments(words, size)]


SEEDS = {"seed": "0,1"}


@pytest.mark.parametrize(
    ("cases", "line", "params", "expected"),
    [
        # each case with the product of the params
        (["a=x b=1", "a=y"], [], {**SEEDS, "c": "2,3"}, [
            "a=x b=1 seed=0 c=2", "a=x b=1 seed=0 c=3", "a=x b=1 seed=1 c=2", "a=x b=1 seed=1 c=3",
            "a=y seed=0 c=2", "a=y seed=0 c=3", "a=y seed=1 c=2", "a=y seed=1 c=3",
        ]),
        # the command line wins over params and cases
        (["a=x", "a=y"], [], SEEDS, ["a=x seed=0", "a=x seed=1", "a=y seed=0", "a=y seed=1"]),
        (["a=x", "a=y"], ["seed=5"], SEEDS, ["a=x seed=5", "a=y seed=5"]),
        (["a=x"], ["seed=6,7"], SEEDS, ["a=x seed=6", "a=x seed=7"]),
        (["a=x"], ["rounds=5", "seed=5"], SEEDS, ["a=x seed=5 rounds=5"]),
        (["a=x", "a=y"], ["a=z", "seed=5"], SEEDS, ["a=z seed=5"]),
        # a case wins over the params; it may sweep and quote
        (["lr=1", "b=2"], [], {"lr": "3,4"}, ["lr=1", "b=2 lr=3", "b=2 lr=4"]),
        (["lr=1,2 'name=\"a b\"'"], [], {}, ['lr=1 name="a b"', 'lr=2 name="a b"']),
    ],
)  # fmt: skip
def test_the_jobs_of_cases_params_and_a_command_line(cases, line, params, expected):
    assert jobs(cases, line, params) == [expected]


def test_batches():
    assert jobs(["a=x", "a=y"], params=SEEDS, size=3) == [
        ["a=x seed=0", "a=x seed=1", "a=y seed=0"], ["a=y seed=1"]
    ]  # fmt: skip


@pytest.mark.parametrize("case", ["a='x", 1, None, {"a": "x"}])
def test_an_invalid_case_is_named(case):
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.cases"):
        split_case(case)


@pytest.fixture
def sweep(cli, tmp_path):
    """Return a function that runs the experiment `pairs`; it returns exit code, stderr, folder."""
    (tmp_path / "groups" / "experiment").mkdir(parents=True)
    (tmp_path / "groups" / "experiment" / "pairs.yaml").write_text(EXPERIMENT)

    def call(*words, multirun=True):
        found = [f"hydra.searchpath=[file://{tmp_path / 'groups'}]"]
        found += [] if any(w.startswith("experiment=") for w in words) else ["experiment=pairs"]
        folders = [f"hydra.{mode}.dir={tmp_path / 'out'}" for mode in ("run", "sweep")]
        short = ["rounds=1", "engine.workers=1"]
        mode = ["-m"] if multirun else []
        code, printed = cli(*mode, *found, *folders, *short, *words)
        return code, printed.err, tmp_path / "out"

    return call


def ran(folder):
    """Return the overrides of every finished job, without the overrides that all jobs share."""
    count = len(list(folder.glob("*/result.json")))
    words = [OmegaConf.load(folder / str(n) / ".hydra" / "overrides.yaml") for n in range(count)]
    common = ("experiment=", "rounds=", "engine.")
    return [" ".join(word for word in job if not word.startswith(common)) for job in words]


@pytest.mark.system
def test_an_experiment_of_two_cases_and_two_seeds(sweep):
    code, error, folder = sweep()
    assert (code, error) == (0, "")
    assert ran(folder) == [
        "algorithm=fedavg seed=0",
        "algorithm=fedavg seed=1",
        "compression=esgd compression.drop=0.25 seed=0",
        "compression=esgd compression.drop=0.25 seed=1",
    ]
    results = [json.loads((folder / str(n) / "result.json").read_text()) for n in range(4)]
    assert [result["seed"] for result in results] == [0, 1, 0, 1]
    assert results[2]["uplink_bytes"] < 0.8 * results[0]["uplink_bytes"]


def test_no_cases_from_the_command_line(sweep):
    code, _, folder = sweep("hydra.sweeper.cases=[]")
    assert (code, ran(folder)) == (0, ["seed=0", "seed=1"])


def test_an_experiment_without_cases_is_a_preset(sweep, tmp_path):
    (tmp_path / "groups" / "experiment" / "plain.yaml").write_text(PLAIN)
    code, error, folder = sweep("experiment=plain", multirun=False)
    assert (code, error) == (0, "")
    assert json.loads((folder / "result.json").read_text())["seed"] == 7
    assert sweep("experiment=plain", "seed=5")[0] == 0
    assert ran(folder) == ["seed=5"]


@pytest.mark.parametrize(
    ("cases", "part"),
    [
        ('["algorithm=fedavg", "compression=esdg"]', "no compression=esdg. there are"),
        ('["roundz=1"]', "Could not override 'roundz'"),
        ('["nodes"]', "'nodes'"),
        ("[1]", "1 is not a string"),
        ("x", "must be a list"),
    ],
)
def test_a_wrong_case_ends_in_one_line_before_any_job_starts(sweep, cases, part):
    code, error, folder = sweep(f"hydra.sweeper.cases={cases}")
    assert code == 2
    assert len(error.strip().splitlines()) == 1
    assert error.startswith("error: ")
    assert part in error
    assert not list(folder.glob("*/.hydra"))
