"""Runs of cut models do not depend on the number of workers, and count every byte."""

import functools
import math
import pickle

import pytest
from flwr.app import Array, ArrayRecord, RecordDict

import edgewire.client.app
from edgewire.pipeline.node import app as segment_module
from tests.runs import anywhere
from tests.same import expect_same
from tests.strategy.cut import AHEAD, LOSSES, PIPED, QUICK, SPLIT, run


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Return a function that makes a run once and returns the stored result after that."""

    @functools.cache
    def call(*words):
        return run(tmp_path_factory.mktemp("once"), *words)

    return call


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Return a function that makes a run once; it returns the result, bytes and array names.

    The bytes are counted for each direction and node. The names are those of the arrays that each
    node received.
    """

    @functools.cache
    def call(*words):
        seen = {"up": [0] * 4, "down": [0] * 4}
        held = {node: set() for node in range(4)}

        def watching(message, context):
            reply = edgewire.client.app.app(message, context)
            node = context.node_config["partition-id"]
            held[node].update(message.content["arrays"])
            for way, content in (("down", message.content), ("up", reply.content)):
                for array in content["arrays"].values():
                    seen[way][node] += len(array.data)
            return reply

        result, _, _ = run(tmp_path_factory.mktemp("watched"), *words, app=watching)
        return result, seen, held

    return call


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words",
    [
        (*QUICK, "strategy.schedule=sequential"),
        QUICK,
        LOSSES,
        (*QUICK, "strategy.schedule=async", "network=lte", "strategy.queue=3"),
        (*QUICK, "strategy.schedule=async", "network=classes", "strategy.batches_per_message=2"),
        PIPED,
    ],
)
def test_results_do_not_depend_on_the_number_of_workers(tmp_path, once, words):
    one = once(*words)
    other = run(tmp_path, *words, workers=3)  # four nodes do not spread evenly over three workers
    assert other[1] == one[1]
    expect_same(other[2], one[2])


def afresh(message, context):
    """Reply as in a new process: only the node's state remains from message to message."""
    segment_module.hosts.clear()
    context.state = pickle.loads(pickle.dumps(plain(context.state)))
    reply = edgewire.client.app.app(message, context)
    context.state = plain(context.state)
    return reply


def plain(state):
    """Return a state as Flower stores it, with all arrays as read-only bytes."""
    copies = {
        name: ArrayRecord({key: Array(array.numpy()) for key, array in record.items()})
        if isinstance(record, ArrayRecord)
        else record
        for name, record in state.items()
    }
    return RecordDict(copies)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words",
    [
        (*QUICK, "rounds=4"),
        (*LOSSES, "rounds=4"),
        (*SPLIT, "rounds=4"),
        (*PIPED, "rounds=2", "eval_every=2"),  # 32 messages a round
        (
            *(*QUICK, "rounds=4", "strategy.feedback=true"),
            *("compression=f2i", "compression.feedback=true"),
        ),
    ],
)
def test_a_process_for_each_message_gives_the_same_result(tmp_path, words):
    one, other = run(tmp_path / "one", *words), run(tmp_path / "each", *words, app=afresh)
    assert one[1] == other[1]
    expect_same(one[2], other[2])


@pytest.mark.few(1)
@pytest.mark.parametrize("words", [QUICK, SPLIT, LOSSES, (*QUICK, "strategy.conditioned=false")])
def test_every_byte_is_counted_by_node_and_by_kind(watched, words):
    result, seen, _ = watched(*words)
    assert result["uplink_bytes_by_segment"] == seen["up"]
    assert result["downlink_bytes_by_segment"] == seen["down"]
    assert result["uplink_bytes"] == sum(seen["up"])
    assert result["downlink_bytes"] == sum(seen["down"])
    kinds = sum(result[f"{k}_bytes"] for k in ("activations", "gradients", "labels", "copies"))
    assert kinds == result["uplink_bytes"] + result["downlink_bytes"]
    # only the copies are compressed
    assert 0.95 < result["uplink_bytes_float32"] / result["uplink_bytes"] < 1.5
    assert 0.95 < result["downlink_bytes_float32"] / result["downlink_bytes"] < 1.5


def test_which_nodes_receive_labels_and_images(watched):
    """Conditioned prediction modules need labels; otherwise only the last node gets labels."""
    _, _, held = watched(*QUICK)
    assert [("labels" in held[node], "input" in held[node]) for node in range(4)] == [
        (False, False),
        *[(True, True)] * 3,
    ]
    _, _, held = watched(*QUICK, "strategy.conditioned=false")
    assert ["labels" in held[node] for node in range(4)] == [False, False, False, True]


# One of each kind: selections, quantizers, both, low rank and none.
KINDS = ["none", "topk", "adacomp", "int4", "one_bit", "drive", "float16", "powersgd", "edgewire"]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_compression_carries_activations_and_gradients(tmp_path, name):
    words = [*anywhere("compression")[name], f"compression@gradients={name}"]
    words += [word.replace("compression.", "gradients.") for word in words if "coder" in word]
    result, _, _ = run(tmp_path, *QUICK, *words, "rounds=2", "eval_every=2")
    assert result["failures"] == 0
    assert result["client_updates"] == 8
    if name not in ("none", "powersgd"):
        assert result["uplink_bytes"] < result["uplink_bytes_float32"]


@pytest.mark.few(1)
@pytest.mark.parametrize("words", [QUICK, AHEAD, SPLIT])
def test_a_mini_batchs_learning_rate_is_the_same_at_all_segments(tmp_path, words):
    rates = {}

    def app(message, context):
        config = message.content["config"]
        if config["phase"]:
            rates.setdefault(config["batch"], set()).add(tuple(config["lr"]))
        return edgewire.client.app.app(message, context)

    words = (*words, "schedule=cosine", "strategy.segment_every=0")
    often, seldom = (run(tmp_path / n, *words, f"eval_every={n}", app=app) for n in ("2", "8"))
    expect_same(often[2], seldom[2])
    found = [rates[batch] for batch in range(8)]
    expected = [0.0005 * (1 + math.cos(math.pi * batch / 8)) for batch in range(8)]
    assert [pytest.approx(rate) for rate in expected] == [rate for ((rate,),) in found]


def test_mini_batches_of_one_message_have_separate_learning_rates(tmp_path):
    words = ("strategy.batches_per_message=2", "schedule=cosine", "nodes=1")
    two, one = run(tmp_path / "2", *SPLIT, *words), run(tmp_path / "1", *SPLIT, *words[1:])
    expect_same(two[2], one[2])


def test_gradients_are_compared_with_those_of_their_own_message(tmp_path):
    words = ("strategy.batches_per_message=2", "rounds=7", "eval_every=8")
    result, _, _ = run(tmp_path, *QUICK, *words)
    assert result["downlink_bytes_float32"] > result["downlink_bytes"]
