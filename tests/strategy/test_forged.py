"""If a node of a cut model sends what the server did not ask for, its reply is left out.

The log names the node. A cut model is divided into segments on different nodes.
"""

import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from xxhash import xxh3_64_intdigest

import client.app
from compression import Layout, PayloadError, make_codec
from compression.flower.batch_tensors import pack_labels
from compression.flower.records import STYPE
from compression.wire_header import varint
from compression.wire_natives import NativeTensor
from tests.strategy.cut import QUICK, SPLIT, run
from tests.strategy.pipeline.test_dispatcher import missing, spoiling

EMPTY = Layout((), (), ())
RAW = make_codec(coder="raw")
LABELS = np.zeros((1, 64), np.int64)


def adding(name, data, also=False):
    """Return a function that sets a reply's payload `name` to `data`, if the reply has one.

    With `also`, it adds the payload to replies without one.
    """

    def spoil(reply):
        record = dict(reply.content["arrays"])
        if also or name in record:
            record[name] = Array("uint8", (len(data),), STYPE, data)
        reply.content["arrays"] = ArrayRecord(record)

    return spoil


def labels_of(labels):
    return RAW.encode(np.empty(0, np.float32), EMPTY, own=[NativeTensor(0, "labels", labels)])


NO_LABELS = {
    "none": missing,
    "no payload": adding("labels", b""),
    "no tensor": adding("labels", RAW.encode(np.empty(0, np.float32), EMPTY)),
    "too few": adding("labels", pack_labels(LABELS[:, :63], 10)),
    "a row too many": adding("labels", pack_labels(np.zeros((2, 64)), 10)),
    "beyond the classes": adding("labels", pack_labels(LABELS + 10, 10)),
    "below zero": adding("labels", labels_of(LABELS - 1)),
    "int8 below zero": adding("labels", labels_of((LABELS - 1).astype(np.int8))),
    "floats": adding("labels", labels_of(LABELS * 1.0)),
    "bool": adding("labels", labels_of(LABELS == 0)),
    "in a vector": adding(
        "labels", RAW.encode(np.zeros(64, np.float32), Layout(("labels",), ((1, 64),), ("int64",)))
    ),
}


def in_turn(node, changes, name):
    """Return an app in which each of `changes` modifies one reply of `node` that holds `name`.

    The first two of these replies stay unchanged. A change of None leaves a reply unchanged.
    """
    left = [None, None, *changes]

    def app(message, context):
        reply = client.app.app(message, context)
        here = context.node_config["partition-id"] == node
        if here and left and name in reply.content["arrays"]:
            change = left.pop(0)
            if change is not None:
                change(reply)
        return reply

    return app


BOTH = pytest.mark.parametrize("words", [QUICK, SPLIT], ids=["synthetic", "split"])


@BOTH
def test_invalid_labels_cost_their_mini_batch_and_blame_no_honest_node(tmp_path, caplog, words):
    app = in_turn(0, NO_LABELS.values(), "labels")
    result, _, _ = run(tmp_path, *words, "rounds=20", "eval_every=20", app=app)
    assert result["ended"] == "finished"
    assert result["failures"] == len(NO_LABELS)
    assert result["accuracy"] > 0.3
    assert "node 1 left out: segment 0: labels" in caplog.text
    assert not [line for line in caplog.text.splitlines() if "segment 1" in line]


@BOTH
def test_a_node_that_keeps_sending_invalid_labels_is_replaced(tmp_path, caplog, words):
    app = in_turn(0, [NO_LABELS["beyond the classes"]] * 50, "labels")
    result, _, _ = run(tmp_path, *words, "nodes=5", "strategy.segments=4", app=app)
    assert result["ended"] == "finished"
    assert result["failures"] == 3
    assert "segment 0: node 5 takes over from 1" in caplog.text


def declaring(entries):
    """Return a payload of 40 bytes that declares this many entries and holds none."""
    body = b"EWP\x01\x01\x00\x00\x00\x01\x01" + varint(entries) + b"\x01\x00\x00\x00"
    body += bytes(-len(body) % 8)
    return body + xxh3_64_intdigest(body).to_bytes(8, "little")


NAMES = ["copy", "gradients-0", "gradients-1", "gradients", "output", "labels", "x" * 10_000]


@pytest.mark.few(1)
@BOTH
@pytest.mark.parametrize("node", [0, 1])
def test_a_payloads_declared_size_costs_no_memory(tmp_path, words, node):
    """If a payload declares a huge size, the server does not allocate memory of this size."""
    sizes = [1 << 26, 1 << 40] * len(NAMES)
    both = zip(NAMES * 2, map(declaring, sizes), strict=True)
    changes = [adding(*each, also=True) for each in both]
    tracemalloc.start()
    try:
        result, _, _ = run(
            tmp_path, *words, "rounds=20", "eval_every=20", app=in_turn(node, changes, "output")
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result["round"] == 20
    assert result["failures"] == len(changes)
    assert peak < 60 << 20  # about 3 MiB for the segments, the rest for the data set


def test_a_node_that_always_sends_unrequested_contents_ends_the_run(tmp_path):
    app = spoiling(adding("more", b"x", also=True), node=2, times=range(100))
    with pytest.raises(PayloadError, match=r"20 failures in a row of segment 2.*'more'"):
        run(tmp_path, *QUICK, app=app)
