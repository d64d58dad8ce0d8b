"""1-bit Adam on whole runs: all nodes send momenta after the warm-up, and losses do not add up."""

import pytest

from edgewire.task.optimizers import OneBitAdam
from tests.local_runs import local_run
from tests.runs import result_of

RUN = [
    "algorithm=one_bit_adam", "dataset=digits", "batch_size=16", "nodes=6", "rounds=50",
    "eval_every=50", "strategy.optimizer.warmup_steps=5",
]  # fmt: skip


@pytest.fixture
def momenta(monkeypatch):
    """Return the list of the numbers of the steps for which nodes were asked what they send."""
    numbers, uplink = [], OneBitAdam.uplink

    def watched(self, gradient, state, number):
        numbers.append(number)
        return uplink(self, gradient, state, number)

    monkeypatch.setattr(OneBitAdam, "uplink", watched)
    return numbers


def test_nodes_that_get_the_whole_model_send_momenta_too(tmp_path, momenta):
    """A third of the nodes train in a round, so many of them get a snapshot in place of steps."""
    local_run(tmp_path, *RUN, "strategy.fraction_train=0.34")
    assert len(momenta) == result_of(tmp_path)["client_updates"] == 2 * 50
    assert momenta == [number for number in range(1, 51) for _ in range(2)]


@pytest.mark.system
def test_lost_momenta_are_not_sent_twice(tmp_path):
    losses = {}
    for loss in (0, 0.3):
        words = [*RUN, "network=lte", f"network.loss={loss}", "timeout=9"]
        local_run(tmp_path / str(loss), *words)
        losses[loss] = result_of(tmp_path / str(loss))["loss"]
    assert losses[0.3] < losses[0] + 0.3


def test_the_warm_up_of_the_codec_counts_steps_and_not_rounds(tmp_path, encoded):
    """One node loses replies, so there are rounds without a step."""
    words = ["nodes=1", "rounds=14", "network=lte", "network.loss=0.3", "timeout=5"]
    local_run(tmp_path, *RUN, *words, "downlink=average", "downlink.exact_steps=null")
    assert len(encoded) == 14
    last, small = encoded[-1]
    assert last < 14
    for number, size in encoded:
        assert (size > 2 * small) == (number <= 5)
