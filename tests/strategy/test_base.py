"""Tests of what the servers of synchronous, asynchronous and cut-model training share."""

import logging

import pytest

from edgewire.pipeline.server.strategy import PipelineStrategy
from edgewire.strategy.asynchronous import Asynchronous
from edgewire.strategy.factory import made
from edgewire.strategy.synchronous import SparseAveraging
from tests.runs import configured
from tests.strategy.federation import Federation, Trainer


class Lines(logging.Handler):
    """A log handler that stores the messages."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.mark.parametrize(("way", "unit"), [("run", "ROUND"), ("push", "PUSH")])
def test_a_runs_progress_is_logged_by_flowers_logger(way, unit, monkeypatch):
    shown, logger = Lines(), logging.getLogger("flwr")
    monkeypatch.setattr(logger, "handlers", [shown])
    monkeypatch.setattr(logger, "propagate", False)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        getattr(Federation(Trainer()), way)(3)
    finally:
        logger.setLevel(level)
    first, what, *rest = shown.lines
    assert first.startswith("Starting ")
    assert "gradient" in what
    assert rest == [f"[{unit} {i}/3] {{'models': {i + 1}}}" for i in range(4)]


def scheme(*words):
    """Return the strategy that the overrides configure."""
    return made(configured(*words))


@pytest.mark.parametrize(
    "words",
    [
        "esgd strategy.update=delta local_steps=3 optimizer=adam",
        "asgd strategy.update=delta local_epochs=2",
        "asgd strategy.record_every=500",
        "synthetic_gradients optimizer=adam",
        "synthetic_gradients network.crash=0.1 timeout=9",
        "esgd network.crash=0.1",
        "asgd network.join_seconds=3",
    ],
)
def test_an_option_that_a_strategy_supports_is_accepted(words):
    assert scheme(*f"algorithm={words}".split()).traffic.failures == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SparseAveraging(participation=0.8), "participation must be a Participation"),
        (lambda: SparseAveraging(aggregation="median"), "aggregation must be a Aggregation"),
        (lambda: Asynchronous(mixing=True), "mixing must be a Mixing, not True"),
        (lambda: Asynchronous(sending=2), "sending must be a Sending, not 2"),
        (lambda: PipelineStrategy(cutting=[1, 3]), "cutting must be a Cutting"),
        (lambda: PipelineStrategy(flow="async"), "flow must be a Flow, not 'async'"),
    ],
)
def test_an_option_in_place_of_its_group_is_refused_at_once(make, words):
    with pytest.raises(TypeError, match=words):
        make()
