"""If a node of a cut model sends what the server did not ask for, its reply is left out.

The log names the node.
"""

import tracemalloc

import numpy as np
import pytest

import edgewire.client.app
from edgewire.compression.base import PayloadError
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.pipeline.messages import TargetTensor, pack_targets
from tests.spoil import array, declaring, no_arrays
from tests.strategy.cut import QUICK, SPLIT, run, spoiling

VECTOR = make_codec(coder="raw").encode(
    np.zeros(64, np.float32), Layout(("labels",), ((1, 64),), ("int64",))
)
BEYOND = pack_targets([np.full((1, 64), 10)], [TargetTensor(below=10)])
NO_LABELS = {
    "none": no_arrays,
    "no payload": array("labels", lambda data: b""),
    "beyond the classes": array("labels", lambda data: BEYOND),
    "in a vector": array("labels", lambda data: VECTOR),
}


def in_turn(node, changes, name):
    """Return an app in which each of `changes` modifies one reply of `node` that holds `name`.

    The first two of these replies stay unchanged. A change of None leaves a reply unchanged.
    """
    left = [None, None, *changes]

    def app(message, context):
        reply = edgewire.client.app.app(message, context)
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
    assert "segment 0: node 5 takes over from node 1" in caplog.text


NAMES = ["copy", "gradients-0", "gradients", "output", "x" * 10_000]


@pytest.mark.few(1)
@BOTH
@pytest.mark.parametrize("node", [0, 1])
def test_a_payloads_declared_size_costs_no_memory(tmp_path, words, node):
    payloads = [declaring(1 << 26), declaring(1 << 40)] * len(NAMES)
    both = zip(NAMES * 2, payloads, strict=True)
    changes = [array(name, lambda data, made=made: made, add=True) for name, made in both]
    run(tmp_path / "before", *words)  # loads the data set
    tracemalloc.start()
    try:
        result, _, _ = run(
            tmp_path, *words, "rounds=14", "eval_every=14", app=in_turn(node, changes, "output")
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result["round"] == 14
    assert result["failures"] == len(changes)
    assert peak < 60 << 20  # about 3 MiB for the segments, the rest for the data set


def test_a_node_that_always_sends_unrequested_contents_ends_the_run(tmp_path):
    app = spoiling(array("more", lambda data: b"x", add=True), node=2, times=range(100))
    with pytest.raises(PayloadError, match=r"20 failures in a row of segment 2.*'more'"):
        run(tmp_path, *QUICK, app=app)
