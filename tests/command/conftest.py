"""Runs of the command that end early, and whose checkpoints are written in each round."""

import math

import pytest

from edgewire.compression.base import PayloadError
from edgewire.strategy.run import checkpointer
from edgewire.strategy.run.run import Run


@pytest.fixture
def broken(monkeypatch):
    """Let runs with seed 1 end with an error in round 3; `broken.undo()` ends this."""
    done = Run.round_done

    def some(self, server_round, arrays):
        if server_round == 3 and self.config.seed == 1:
            raise PayloadError("the power is off")
        return done(self, server_round, arrays)

    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "round_done", some)
        yield patch
