"""A server optimiser of one's own: the nodes repeat its steps, and a run with it resumes."""

from dataclasses import dataclass

import numpy as np
import pytest

from edgewire.conf.build import build
from edgewire.conf.schema import ConfigError
from edgewire.task.optimizers import ServerOptimizer
from tests.local_runs import expect_resumed, files_of, local_run
from tests.runs import configured

HERE = "tests.strategy.test_own_optimizer"
SMALL = ["algorithm=esgd", "nodes=2", "rounds=6", "batch_size=16", "strategy.verify_every=1"]


@dataclass(frozen=True)
class HeavyBall(ServerOptimizer):
    """Momentum, as EdgeWire's own."""

    kept: float = 0.9
    names = ("ball",)

    def step(self, x, state, at, gradient, lr, number):
        ball = state["ball"]
        ball *= np.float32(self.kept)
        ball[at] += gradient
        x -= np.float32(lr) * ball


def test_it_gives_the_bits_of_the_same_optimizer_and_resumes(monkeypatch, tmp_path):
    own = [f"strategy.optimizer._target_={HERE}.HeavyBall", "+strategy.optimizer.kept=0.5"]
    expect_resumed(monkeypatch, tmp_path, [*SMALL, "checkpoint_every=1", *own], 4, workers=(1, 2))
    theirs = ["strategy/optimizer=momentum", "strategy.optimizer.momentum=0.5"]
    local_run(tmp_path / "theirs", *SMALL, "checkpoint_every=1", *theirs)
    assert files_of(tmp_path / "theirs")[2] == files_of(tmp_path / "whole")[2]


def test_a_class_of_another_kind_is_one_line():
    strategy = configured("strategy=sparse_averaging").strategy
    wrong = {**strategy, "optimizer": {"_target_": "torch.optim.SGD"}}
    with pytest.raises(ConfigError, match=r"^strategy\.optimizer\._target_=torch\S+ is no Server"):
        build("strategy", wrong)(codecs=None)
