"""If a node's reply is invalid, only this node's update is lost."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from edgewire.compression.base import PayloadError
from edgewire.compression.flower.node.state import checksum
from edgewire.compression.flower.node_replica import REPLICA
from edgewire.compression.flower.replica import MODEL
from edgewire.compression.flower.server.failure_policy import MAX_CONSECUTIVE_FAILURES
from edgewire.report.runs import GAVE_UP
from tests.spoil import UNUSABLE, metrics
from tests.strategy.federation import (
    ADAM,
    MOMENTUM,
    NODES,
    SIZE,
    TRAINED,
    Federation,
    Trainer,
    always,
    assert_models,
    breaks,
    by_hand,
)

ALL = list(range(1, NODES + 1))
halve = UNUSABLE["half"][0]


def spoiled(bad):
    """Return a function that sets one entry of a gradient to a value that is not finite."""

    def spoil(made):
        made[SIZE // 3] = bad
        return made

    return spoil


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("compression", [{}, {"sparsifier": "topk", "density": 1.0}])
def test_an_update_that_is_not_finite_is_left_out(bad, compression):
    federation = Federation(Trainer(spoil={(2, 3): spoiled(bad)}, **compression))
    strategy = federation.run(6)
    assert_models(federation, by_hand([ALL, ALL, [1, 3, 4], ALL, ALL, ALL]))
    assert strategy.traffic.failures == 1
    assert strategy.traffic.client_updates == 6 * NODES - 1
    # the node replied with an error, so the server does not know its model version
    whole = {key for key, arrays in federation.seen.items() if MODEL in arrays}
    assert whole == {(n, 1) for n in ALL} | {(2, 4)}


def test_a_node_that_raises_gets_a_snapshot_next_time():
    federation = Federation(Trainer(optimizer=MOMENTUM, spoil={(3, 2): breaks, (3, 3): breaks}))
    strategy = federation.run(6, verify_every=1)
    assert strategy.traffic.failures == 2
    whole = {key for key, arrays in federation.seen.items() if MODEL in arrays}
    assert whole == {(n, 1) for n in ALL} | {(3, 3), (3, 4)}
    assert federation.seen[3, 3] == {MODEL, "velocity"}
    assert federation.seen[3, 5] == {"4"}


UNUSABLE_UPDATE = ["a flipped bit", "no arrays", "no metrics", "endless samples", "no samples"]
SPOIL = {name: spoil for name, (spoil, *_) in UNUSABLE.items()}
SPOIL["no samples"] = metrics(num_examples=0)


@pytest.mark.parametrize("name", UNUSABLE_UPDATE)
def test_an_unusable_reply_is_left_out(name):
    def reply(key, answer):
        if key == (2, 2):
            SPOIL[name](answer)
        return answer

    federation = Federation(Trainer(), reply=reply)
    strategy = federation.run(4, weighted_by_key="num-examples")
    expected = by_hand([ALL, [1, 3, 4], ALL, ALL], weight=float)
    assert_models(federation, expected)
    assert strategy.traffic.failures == 1
    assert strategy.traffic.client_updates == 4 * NODES - 1
    assert federation.seen[2, 3] == {"2"}  # the node replied, so the server knows its model version


def test_without_a_usable_reply_the_model_stays():
    def reply(key, answer):
        halve(answer) if key[1] == 2 else None
        return answer

    federation = Federation(Trainer(optimizer=MOMENTUM), reply=reply)
    strategy = federation.run(3, verify_every=1)
    assert np.array_equal(federation.models[1], federation.models[2])
    assert not np.array_equal(federation.models[2], federation.models[3])
    assert strategy.traffic.failures == NODES
    assert federation.seen[1, 3] == set()  # the model did not change


def test_a_run_without_usable_replies_ends_with_a_known_line():
    def reply(key, answer):
        halve(answer)
        return answer

    with pytest.raises(PayloadError, match=f"^{GAVE_UP} in {MAX_CONSECUTIVE_FAILURES} rounds: "):
        Federation(Trainer(), reply=reply).run(MAX_CONSECUTIVE_FAILURES + 1)


def beyond(made):
    """Return an update of which two add up to more than float32 holds; its statistics are valid."""
    return np.where(np.arange(SIZE) < TRAINED, np.float32(3e38), made)


def test_a_mean_beyond_float32_ends_the_run():
    huge = always(beyond, range(2, 2 + MAX_CONSECUTIVE_FAILURES))
    with pytest.raises(PayloadError, match="beyond float32: training has diverged"):
        Federation(Trainer(spoil=huge)).run(2 + MAX_CONSECUTIVE_FAILURES)


def test_a_damaged_replica_is_found_and_the_whole_model_sent():
    federation = Federation(Trainer(optimizer=ADAM))

    def change(server_round):
        if server_round == 2:
            own = {name: array.copy() for name, array in federation.replica(3).items()}
            own[MODEL][7] += 1e-3
            record = ArrayRecord({name: Array(array) for name, array in own.items()})
            federation.records(3)[REPLICA] = record

    strategy = federation.run(8, verify_every=3, after=change)
    assert strategy.traffic.failures == 1
    whole = {key for key, arrays in federation.seen.items() if MODEL in arrays}
    assert whole == {(n, 1) for n in ALL} | {(3, 4)}
    assert federation.trainer.models[3, 8].tobytes() == federation.models[7].tobytes()
    assert checksum(federation.replica(3)[MODEL]) == checksum(federation.models[7])
