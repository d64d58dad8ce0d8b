"""If a node of a cut model sends something unusable, only one mini-batch is lost.

The log names the node.
"""

import json
from itertools import pairwise

import numpy as np
import pytest

import edgewire.client.app
from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import decode_update
from edgewire.compression.make import make_codec
from edgewire.pipeline.messages import TargetTensor, pack, pack_copy, pack_targets
from tests.same import expect_same
from tests.spoil import array, metrics, no_arrays, without
from tests.strategy.cut import PIPED, QUICK, SPLIT, run, spoiling

LABELS = pack_targets([np.zeros((1, 64))], [TargetTensor(below=10)])
PLAIN = make_codec(coder="raw")  # as in the preset with compression=none


UNUSABLE = [
    (array("output", lambda data: data[:-1]), 1),
    (array("gradients", lambda data: b""), 1),
    (array("output", lambda data: LABELS), 1),
    (no_arrays, 1),
    (without("metrics"), 1),
    *((metrics(num_examples=samples), 0) for samples in (1e13, -64.0, 65.0, 3.5, float("nan"))),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("words", "change", "node"),
    [*((QUICK, *each) for each in UNUSABLE), *((SPLIT, *each) for each in UNUSABLE[:2])],
)
def test_an_unusable_reply_costs_its_mini_batch(tmp_path, change, node, words):
    result, rows, _ = run(tmp_path, *words, app=spoiling(change, node=node))
    assert result["failures"] >= 1
    assert result["round"] == 8
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_only_the_first_node_may_send_labels(tmp_path, caplog):
    forge = array("labels", lambda data: LABELS, add=True)
    forged = run(tmp_path / "1", *QUICK, app=spoiling(forge))
    lost = run(tmp_path / "2", *QUICK, app=spoiling(no_arrays))
    expect_same(forged[2], lost[2])  # both runs lose this mini-batch, and nothing else
    assert "segment 1: the reply holds 'labels', which was not asked for" in caplog.text


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("what", "size"),
    [("gradients", 1e25), ("gradients", 1e12), ("output", 1e25), ("output", 1e18)],
)
def test_a_segment_can_be_copied_after_huge_values(tmp_path, size, what):
    """Huge values must not make the optimizer's moments infinite, or no copy could be made."""

    def blow(data):
        update = decode_update(data)
        return pack([update.values.reshape(update.layout.shapes[0]) * 0 + np.float32(size)], PLAIN)

    words = (*QUICK, "strategy.segment_every=2", "rounds=12", "model=four_layers_plain")
    node = 2 if what == "gradients" else 1
    result, _, _ = run(tmp_path, *words, app=spoiling(array(what, blow), node=node))
    assert result["failures"] <= 4
    assert result["client_updates"] >= 44


def test_with_gpipe_all_segments_skip_a_lost_mini_batch(tmp_path):
    """With GPipe no segment adds up gradients of a lost mini-batch, or takes a step for it."""
    seen = []

    def app(message, context):
        config = message.content["config"]
        task = (config["segment"], config["phase"], config["batch"], config["micro"])
        if task == (1, "forward", 2, 0):
            raise PayloadError("lost")
        seen.append(task)
        return edgewire.client.app.app(message, context)

    result, _, _ = run(tmp_path, *PIPED, "eval_every=2", app=app)
    assert result["failures"] == 1
    assert not [task for task in seen if task[2] == 2 and task[0] > 1]
    assert not [task for task in seen if task[2] == 2 and task[1] == "backward"]
    assert result["round"] == 8


def test_a_node_that_always_fails_ends_the_run_with_its_reason(tmp_path):
    def app(message, context):
        if context.node_config["partition-id"] == 2:
            raise RuntimeError("out of coffee")
        return edgewire.client.app.app(message, context)

    with pytest.raises(PayloadError, match=r"20 failures in a row of segment 2.*coffee"):
        run(tmp_path, *QUICK, app=app)


def test_a_diverging_run_reports_it(tmp_path):
    with pytest.raises(PayloadError, match="diverged"):
        run(tmp_path, *QUICK, "lr=1e30", "model=four_layers_plain", "rounds=60")
    assert json.loads((tmp_path / "result.json").read_text())["diverged"]


@pytest.mark.few(1)
@pytest.mark.parametrize(("words", "fourth"), [(QUICK, 4), (SPLIT, 7)])
def test_a_record_is_made_although_its_mini_batch_was_lost(tmp_path, words, fourth):
    """The history gets the row of a mini-batch even if later segments never received its data."""
    app = spoiling(no_arrays, node=0, times=(fourth,))
    result, rows, _ = run(tmp_path, *words, "rounds=12", "strategy.segment_every=0", app=app)
    assert result["failures"] == 1
    assert len({row["loss"] for row in rows}) == 4
    seconds = [row["virtual_seconds"] for row in rows]
    assert seconds[1] - seconds[0] < 0.7 * (seconds[2] - seconds[0])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda vectors, beside: beside.popitem(), "counters and constants"),
        (lambda vectors, beside: vectors.update(other=np.ones(7, np.float32)), "'other' has the"),
        (lambda vectors, beside: vectors.update(samples=np.ones(1, np.float32)), "half of"),
    ],
)
def test_no_node_starts_from_a_bad_copy(tmp_path, caplog, change, said):
    """The server refuses a bad copy of a segment; a node without state gets the last good copy."""

    def bad(data):
        vectors, beside = taken_apart(data)
        change(vectors, beside)
        return pack_copy(vectors, beside)

    spoil = spoiling(array("copy", bad), node=2, times=range(6, 12))
    count = 0

    def app(message, context):
        nonlocal count
        if context.node_config["partition-id"] == 2:
            count += 1
            if count == 10:
                for name in tuple(context.state):
                    del context.state[name]
        return spoil(message, context)

    result, _, _ = run(tmp_path, *QUICK, "rounds=12", "strategy.segment_every=2", app=app)
    assert result["round"] == 12
    assert result["failures"] > 1
    assert said in caplog.text


def taken_apart(copy):
    """Return a copy's float32 vectors by name, and its tensors of other types by name."""
    update = decode_update(copy)
    bounds = pairwise(update.layout.offsets.tolist())
    named = zip(update.layout.names, bounds, strict=True)
    vectors = {name: update.values[start:stop] for name, (start, stop) in named}
    return vectors, {each.name: each.array for each in update.own}
