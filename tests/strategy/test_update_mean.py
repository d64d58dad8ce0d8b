"""A mean of one's own runs in the server's place, and a wrong result of it is one line."""

import numpy as np
import pytest

from edgewire.conf.build import build
from edgewire.conf.schema import ConfigError
from edgewire.strategy.aggregation import SparseMean
from edgewire.strategy.robust_aggregation import RobustMean
from edgewire.strategy.synchronous import Aggregation
from edgewire.strategy.update_mean import UpdateMean
from edgewire.task.errors import TaskError
from tests.local_runs import expect_resumed, files_of, local_run
from tests.runs import configured

SMALL = ["algorithm=esgd", "nodes=3", "rounds=4", "batch_size=16", "eval_every=2"]
HERE = "tests.strategy.test_update_mean"
OWN = [f"+strategy.mean._target_={HERE}.Delegating", "lr=0.05"]


class Delegating(UpdateMean):
    """Calls the server's own mean, times `factor`."""

    def __init__(self, factor: float = 1.0):
        self.factor = factor

    def begin(self, size):
        super().begin(size)
        self.inner = SparseMean(size)

    def add(self, indices, values, weight=1.0):
        assert values.dtype == np.float32
        assert weight > 0
        self.inner.add(indices, values, weight)

    def take(self):
        indices, values = self.inner.take()
        return indices, values * np.float32(self.factor)


class Given(UpdateMean):
    """Returns what it is given."""

    def __init__(self, result):
        self.result = result

    def add(self, indices, values, weight=1.0):
        raise AssertionError

    def take(self):
        return self.result


@pytest.mark.parametrize("words", [[], ["algorithm=fedavg_f2i"]])
def test_a_mean_that_calls_the_servers_gives_its_results(words, tmp_path):
    given = [*SMALL, *words, "strategy=sparse_averaging", "strategy.weighted_by_key=num-examples"]
    local_run(tmp_path / "theirs", *given, "lr=0.05")
    local_run(tmp_path / "own", *given, *OWN)
    assert files_of(tmp_path / "own") == files_of(tmp_path / "theirs")


def test_its_options_are_used_and_a_resumed_run_is_the_same(monkeypatch, tmp_path):
    words = [*SMALL, "checkpoint_every=1", *OWN, "+strategy.mean.factor=0.5"]
    expect_resumed(monkeypatch, tmp_path, words, 4)
    local_run(tmp_path / "theirs", *SMALL, "checkpoint_every=1", "lr=0.025")
    assert files_of(tmp_path / "theirs")[2] == files_of(tmp_path / "whole")[2]


def test_it_goes_with_what_needs_a_mean():
    for words in (["nodes=2"], ["strategy.update=delta", "local=scaffold"]):
        configured(*SMALL[1:], "strategy=sparse_averaging", *OWN, *words)


@pytest.mark.parametrize("mean", [SparseMean(4), RobustMean(4, "median"), Delegating()])
def test_the_servers_means_are_such_means(mean):
    how = Aggregation(mean=mean)
    assert how.kind == "mean"
    found = how.mean_of(4)
    found.add(np.uint32([1, 3]), np.float32([2, 4]))
    indices, values = found.taken()
    assert (indices.tolist(), values.tolist()) == ([1, 3], [2, 4])


def test_the_sender_exponent_is_of_the_servers_mean():
    with pytest.raises(ValueError, match="does not go with mean=Delegating: drop it"):
        Aggregation(mean=Delegating(), sender_exponent=0.5)


FLOATS = np.ones(2, np.float32)
WRONG = [
    FLOATS, (None, FLOATS), (None, np.ones(5)), (None, None), (FLOATS, None),
    (np.uint32([1, 2]), np.ones((2, 1), np.float32)), (np.array([1, 2]), FLOATS),
    (np.uint32([2, 1]), FLOATS), (np.uint32([1, 5]), FLOATS), (np.uint32([1]), FLOATS),
]  # fmt: skip


@pytest.mark.parametrize("result", WRONG)
def test_a_wrong_result_is_one_line(result):
    mean = Given(result)
    mean.begin(5)
    with pytest.raises(TaskError, match=r"^Given\.take\(\) must return .* below 5, float32"):
        mean.taken()


@pytest.mark.parametrize(
    ("mean", "line"),
    [
        ("edgewire.task.optimizers.SGD", r"strategy\.mean\._target_=\S+SGD is no UpdateMean"),
        (f"{HERE}.Given", "missing 1 required positional argument: 'result'"),
        ("edgewire.strategy.update_mean.UpdateMean", "abstract class UpdateMean"),
    ],
)
def test_a_wrong_class_is_one_line(mean, line):
    strategy = configured("strategy=sparse_averaging").strategy
    with pytest.raises(ConfigError, match=line) as refused:
        build("strategy", {**strategy, "mean": {"_target_": mean}})(codecs=None)
    assert "\n" not in str(refused.value)
