"""A cut model's runs: the same everywhere, counted to the byte, compressed by any method."""

import math
import pickle

import pytest
from flwr.app import Array, ArrayRecord, RecordDict

import client.app
from client.segment import Segments
from conf import load_config
from tests.strategy.cut import AHEAD, PIPED, QUICK, ROOT, SPLIT, run, same

NODES = 4
CODECS = sorted(path.stem for path in (ROOT / "conf" / "compression").glob("*.yaml"))


@pytest.mark.parametrize(
    "words",
    [
        (*QUICK, "strategy.schedule=sequential"),
        QUICK,
        (*QUICK, "strategy.schedule=async", "network=lte", "strategy.queue=3"),
        (*QUICK, "strategy.schedule=async", "network=classes", "strategy.batches_per_message=2"),
        PIPED,
    ],
)
def test_results_do_not_depend_on_the_number_of_workers(tmp_path, words):
    one = run(tmp_path / "1", *words)
    other = run(tmp_path / "3", *words, workers=3)  # four nodes do not spread evenly over them
    assert other[1] == one[1]
    same(other[2], one[2])


@pytest.mark.parametrize("cuts", ["[1]", "[1,2,3]"])
def test_backpropagation_over_cuts_is_that_of_the_whole_model(tmp_path, cuts):
    whole = run(tmp_path / "whole", *SPLIT, "nodes=1")
    cut = run(tmp_path / "cut", *SPLIT, f"strategy.cuts={cuts}")
    same(cut[2], whole[2])
    for mine, its in zip(cut[1], whole[1], strict=True):
        assert (mine["loss"], mine["accuracy"]) == (its["loss"], its["accuracy"])


def test_one_node_alone_may_have_many_mini_batches_a_message(tmp_path):
    one = run(tmp_path / "one", *SPLIT, "nodes=1")
    many = run(tmp_path / "many", *SPLIT, "nodes=1", "strategy.batches_per_message=2")
    same(many[2], one[2])


def afresh(message, context):
    """Answer as Flower's own processes do: nothing is left of a message but the node's state."""
    context.state = pickle.loads(pickle.dumps(plain(context.state)))
    reply = Segments(load_config(context.run_config, NODES), None).answer(message, context)
    context.state = plain(context.state)
    return reply


def plain(state):
    """Return a state with nothing but what Flower keeps: read-only bytes."""
    copies = {
        name: ArrayRecord({key: Array(array.numpy()) for key, array in record.items()})
        if isinstance(record, ArrayRecord)
        else record
        for name, record in state.items()
    }
    return RecordDict(copies)


@pytest.mark.parametrize(
    "words",
    [
        QUICK,
        SPLIT,
        PIPED,
        (*QUICK, "strategy.feedback=true", "compression=f2i", "compression.feedback=true"),
    ],
)
def test_a_process_for_each_message_comes_to_the_same(tmp_path, words):
    words = (*words, "rounds=4")
    one, other = run(tmp_path / "one", *words), run(tmp_path / "each", *words, app=afresh)
    assert one[1] == other[1]
    same(one[2], other[2])


@pytest.mark.parametrize("words", [QUICK, SPLIT, (*QUICK, "strategy.conditioned=false")])
def test_every_byte_is_counted_for_its_link_and_its_kind(tmp_path, words):
    seen = {"up": [0] * 4, "down": [0] * 4}

    def watching(message, context):
        reply = client.app.app(message, context)
        node = context.node_config["partition-id"]
        for way, content in (("down", message.content), ("up", reply.content)):
            for array in content["arrays"].values():
                seen[way][node] += len(array.data)
        return reply

    result, _, _ = run(tmp_path, *words, app=watching)
    assert result["uplink_bytes_by_segment"] == seen["up"]
    assert result["downlink_bytes_by_segment"] == seen["down"]
    assert result["uplink_bytes"] == sum(seen["up"])
    assert result["downlink_bytes"] == sum(seen["down"])
    kinds = sum(result[f"{k}_bytes"] for k in ("activations", "gradients", "labels", "copies"))
    assert kinds == result["uplink_bytes"] + result["downlink_bytes"]
    # nothing is compressed but the copies
    assert 0.95 < result["uplink_bytes_float32"] / result["uplink_bytes"] < 1.5
    assert 0.95 < result["downlink_bytes_float32"] / result["downlink_bytes"] < 1.5


def test_who_sees_labels_and_images(tmp_path):
    """The images stay with the first node; unconditioned modules see no labels."""
    held = {}

    def watching(message, context):
        held.setdefault(context.node_config["partition-id"], set()).update(
            message.content["arrays"]
        )
        return client.app.app(message, context)

    run(tmp_path / "with", *QUICK, app=watching)
    assert [("labels" in held[node], "input" in held[node]) for node in range(4)] == [
        (False, False),
        *[(True, True)] * 3,
    ]
    held.clear()
    run(tmp_path / "without", *QUICK, "strategy.conditioned=false", app=watching)
    assert ["labels" in held[node] for node in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("name", CODECS)
def test_every_compression_carries_activations_and_gradients(tmp_path, name):
    words = [f"compression={name}", f"compression@gradients={name}", "rounds=4"]
    result, _, _ = run(tmp_path, *QUICK, *words)
    assert result["failures"] == 0
    assert result["client_updates"] == 16
    if name not in ("none", "powersgd"):
        assert result["uplink_bytes"] < result["uplink_bytes_float32"]


@pytest.mark.parametrize("words", [QUICK, AHEAD, SPLIT])
def test_a_mini_batchs_rate_is_the_same_for_all_and_for_any_records(tmp_path, words):
    rates = {}

    def app(message, context):
        config = message.content["config"]
        if config["phase"]:
            rates.setdefault(config["batch"], set()).add(tuple(config["lr"]))
        return client.app.app(message, context)

    words = (*words, "schedule=cosine", "strategy.segment_every=0")
    often, seldom = (run(tmp_path / n, *words, f"eval_every={n}", app=app) for n in ("2", "8"))
    same(often[2], seldom[2])
    found = [rates[batch] for batch in range(8)]
    expected = [0.0005 * (1 + math.cos(math.pi * batch / 8)) for batch in range(8)]
    assert [pytest.approx(rate) for rate in expected] == [rate for ((rate,),) in found]


def test_mini_batches_of_one_message_have_rates_of_their_own(tmp_path):
    words = ("strategy.batches_per_message=2", "schedule=cosine", "nodes=1")
    two, one = run(tmp_path / "2", *SPLIT, *words), run(tmp_path / "1", *SPLIT, *words[1:])
    same(two[2], one[2])


def test_gradients_are_compared_with_those_of_their_own_message(tmp_path):
    words = ("strategy.batches_per_message=2", "rounds=7", "eval_every=8")
    result, _, _ = run(tmp_path, *QUICK, *words)
    assert result["downlink_bytes_float32"] > result["downlink_bytes"]
