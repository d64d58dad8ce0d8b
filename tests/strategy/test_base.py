"""Tests of what the servers of synchronous, asynchronous and cut-model training share."""

import logging

import pytest

from edgewire.pipeline.server.strategy import PipelineStrategy
from edgewire.strategy.asynchronous import Asynchronous
from edgewire.strategy.factory import made
from edgewire.strategy.synchronous import SparseAveraging
from edgewire.task.optimizers import SGD
from tests.runs import configured
from tests.strategy.federation import Federation, Trainer, strategy_of


@pytest.mark.parametrize(("way", "unit"), [("run", "ROUND"), ("push", "PUSH")])
def test_a_runs_progress_is_logged_by_flowers_logger(way, unit, monkeypatch, caplog):
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    with caplog.at_level(logging.INFO, logger="flwr"):
        getattr(Federation(Trainer()), way)(3)
    first, what, *rest = caplog.messages
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
        (lambda: PipelineStrategy(cutting=[1, 3]), "cutting must be a Cutting"),
        (lambda: PipelineStrategy(flow="async"), "flow must be a Flow, not 'async'"),
    ],
)
def test_an_option_in_place_of_its_group_is_refused_at_once(make, words):
    with pytest.raises(TypeError, match=words):
        make()


class Taken(SGD):
    names = ("model",)


NAN, INF = float("nan"), float("inf")
REFUSED = [
    *((kind, *row) for kind in (SparseAveraging, Asynchronous) for row in (
        ({"update": "weights"}, "update must be one of gradient, delta, not 'weights'"),
        ({"server_lr": 0.0}, "server_lr must be a number above 0, not 0"),
        ({"server_lr": NAN}, "server_lr"),
        ({"server_lr": INF}, "server_lr"),
    )),
    *((SparseAveraging, *row) for row in (
        ({"fraction_train": -0.5}, "at least 0 and at most 1, not -0.5"),
        ({"quorum": 0.0}, "quorum must be a number above 0 and at most 1, not 0.0"),
        ({"quorum": 1.1}, "quorum must be a number above 0 and at most 1, not 1.1"),
        ({"quorum": NAN}, "quorum"),
        ({"mean": "mode"}, "mean must be one of mean, median, trimmed, not 'mode'"),
        ({"mean": "median", "sender_exponent": 0.5}, "sender_exponent does not go with"),
        ({"optimizer": Taken()}, "Taken.names holds model, which is taken"),
        ({"verify_every": -1}, "verify_every must be 0"),
        ({"follow": "steps "}, "follow must be one of steps, differences, weights"),
        ({"deadline": 0.0}, "deadline must be a number above 0"),
    )),
    *((Asynchronous, *row) for row in (
        ({"pushes": 0}, "pushes must be a number of at least 1"),
        ({"buffer": 0}, "buffer must be a number of at least 1"),
        ({"most": 0.5}, "most must be a number of at least 1, not 0.5"),
        ({"proximal_mu": -1.0, "update": "delta"}, "proximal_mu must be a number of at least 0"),
        ({"sender_exponent": 1.5, "buffer": 2}, "must be a number of at least 0 and at most 1"),
        ({"staleness": 3}, "staleness is chosen by"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "match"), REFUSED)
def test_impossible_values_are_refused(kind, options, match):
    with pytest.raises(ValueError, match=match) as refused:
        strategy_of(kind, **options)
    assert "\n" not in str(refused.value)
