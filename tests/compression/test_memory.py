"""For every method with a residual: sent entries plus residual equal the given update."""

from itertools import product

import numpy as np
import pytest

from edgewire.compression.base import PayloadError, StepContext
from edgewire.compression.batchnorm import exact_tensors, separate
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import get
from edgewire.compression.registry import names as methods
from edgewire.compression.wire import ids_of
from tests.same import expect_same

KEEPING = [
    name for name in methods("sparsifier") if get("sparsifier", name)().residual_key is not None
]
# Options that send every entry at once.
# Other options that must follow the same rules.
VARIANTS = [
    *((name, {}) for name in KEEPING),
    ("topk", {"scope": "tensor", "density": 0.1}),
    ("energy", {"energy": 0.9, "fidelity": "3"}),
    ("threshold", {"sent": "value", "threshold": 1e-2}),
    ("gradient_dropping", {"cut": "sampled", "drop": 0.9}),
    ("gradient_dropping", {"cut": "sampled", "scope": "tensor"}),
    ("randomk", {"scope": "tensor", "density": 0.3}),
    ("esgd", {"drop": 0.875, "cap": 0.1}),
    ("dgc", {"sparsity": 0.9, "clip_norm": 0.5, "workers": 4, "warmup_steps": 4}),
    ("dgc", {"layers": "conv", "sparsity": 0.99}),
]
QUANTIZED = [(name, True) for name in methods("quantizer")]


@pytest.fixture(scope="module")
def normed():
    """Return a layout with BatchNorm statistics between two blocks of trained entries."""
    norm = "bn.weight", "bn.running_mean", "bn.running_var"
    shapes = ((8, 3, 3, 3), (8,), (8,), (8,), (30, 40), (30,))
    return Layout(("conv.weight", *norm, "fc.weight", "fc.bias"), shapes, ("float32",) * 6)


def updates(layout, steps=6):
    draw = np.random.default_rng(11)
    return [(draw.standard_t(4, size=layout.size) * 0.01).astype(np.float32) for _ in range(steps)]


def trained_of(layout):
    """Return the positions of the entries that sparsifiers receive."""
    cut = separate(layout, exact_tensors(layout))
    return cut.gather(np.arange(layout.size))


def given_by(codec, update, layout, memory, loss):
    """Return the vector that a step divides into sent entries and residual."""
    copy = {name: array.copy() for name, array in memory.items()}
    if (key := codec.sparsifier.residual_key or "error") in copy:
        copy[key] *= np.float32(codec.residual_decay)
    trained = update[trained_of(layout)]
    if codec.sparsifier.residual_key is None:
        return copy.get("error", np.zeros_like(trained)) + trained
    step = StepContext(separate(layout, exact_tensors(layout)).layout, copy, (0, 0), loss)
    return codec.sparsifier.accumulate(trained, step)


def kept_by(codec, memory):
    return memory[codec.sparsifier.residual_key or "error"]


def close(left, right, scale):
    np.testing.assert_allclose(left, right, rtol=0, atol=2e-6 * scale)


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("variant", "quantizer", "feedback"),
    [*((variant, "float32", None) for variant in VARIANTS),
     *((variant, quantizer, True) for variant in VARIANTS for quantizer in ("float32", "int8")),
     *(((name, {}), "lloyd", True) for name in methods("sparsifier")),
     *(((name, {}), *stage) for name in ("dense", "topk") for stage in QUANTIZED)],
    ids=str,
)  # fmt: skip
def test_sent_plus_kept_equals_given(variant, quantizer, feedback, normed, lenet):
    """If the payload is lost, it is put back: then the memory holds all that was given."""
    codec = make_codec(variant[0], quantizer, "raw", feedback=feedback, **variant[1])
    expect_nothing_lost(codec, (lenet, normed))


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if not get("sparsifier", v[0]).incremental], ids=str
)
@pytest.mark.parametrize("quantizer", ["float32", "lloyd"])
def test_only_what_was_stored_decays(variant, quantizer, normed, lenet):
    options = {"feedback": True, "residual_decay": 0.75, **variant[1]}
    expect_nothing_lost(make_codec(variant[0], quantizer, "raw", **options), (lenet, normed))


def test_a_decay_needs_something_that_is_stored():
    with pytest.raises(ValueError, match="stores nothing"):
        make_codec("dense", "int8", residual_decay=0.9)
    for wrong in (-0.1, 1.1, float("nan"), "much"):
        with pytest.raises(ValueError, match="residual_decay"):
            make_codec("topk", residual_decay=wrong)


def expect_nothing_lost(codec, layouts):
    for layout in layouts:
        memory, before, where = {}, None, trained_of(layout)
        others = np.delete(np.arange(layout.size), where)
        for number, update in enumerate(updates(layout)):
            about = {"seed": number, "loss": 1.0 / (number + 1), "as_before": True}
            given = given_by(codec, update, layout, memory, about["loss"])
            payload = codec.encode(update, layout, memory=memory, **about)
            sent = decode_update(payload, layout, before=before)
            before, vector = sent.selected, sent.dense()
            assert codec.keeps
            scale = max(np.abs(given).max(), np.abs(vector[where]).max())
            close(vector[where] + kept_by(codec, memory), given, scale)
            np.testing.assert_array_equal(vector[others], update[others])
            lost = {name: array.copy() for name, array in memory.items()}
            codec.restore(payload, layout, lost)
            close(kept_by(codec, lost), given, scale)


@pytest.mark.parametrize(
    "stages",
    [*((name, "float32") for name in methods("sparsifier")),
     *(("dense", name) for name in methods("quantizer"))],
    ids="-".join,
)  # fmt: skip
@pytest.mark.parametrize("feedback", [None, False, True])
def test_memory_has_the_declared_size(stages, feedback, lenet, normed):
    codec = make_codec(*stages, "raw", feedback=feedback)
    for layout in (lenet, normed):
        memory = {}
        for number, update in enumerate(updates(layout, 4)):
            codec.encode(update, layout, memory=memory, seed=number, loss=1.0)
        assert sum(array.nbytes for array in memory.values()) == codec.memory_bytes(layout)


@pytest.mark.parametrize("name", methods("sparsifier"))
def test_memory_of_another_model_is_refused(name, lenet, normed):
    codec = make_codec(name, "float32", "raw", feedback=True)
    memory = {}
    codec.encode(updates(lenet, 1)[0], lenet, memory=memory)
    with pytest.raises(ValueError, match="another model"):
        codec.encode(updates(normed, 1)[0], normed, memory=memory)


@pytest.mark.parametrize("name", methods("sparsifier"))
def test_an_update_that_is_not_finite_leaves_the_memory_alone(name, lenet):
    codec = make_codec(name, "float32", "raw", feedback=True)
    memory = {}
    good = updates(lenet, 1)[0]
    codec.encode(good, lenet, memory=memory)
    before = {key: array.copy() for key, array in memory.items()}
    bad = good.copy()
    bad[7] = np.nan
    with pytest.raises(PayloadError, match="NaN"):
        codec.encode(bad, lenet, memory=memory)
    expect_same(memory, before)


REPEATING = [name for name in methods("sparsifier") if get("sparsifier", name).repeats]


@pytest.mark.parametrize("name", REPEATING)
def test_an_unchanged_index_set_is_not_sent_again(name, lenet):
    options = {"cap": 0.0} if name == "esgd" else {}
    codec = make_codec(name, "float32", "raw", **options)
    memory = {}
    first, second, third = updates(lenet, 3)
    whole = codec.encode(first, lenet, memory=memory, loss=2.0, as_before=True)
    indices = decode_update(whole, lenet).indices
    short = codec.encode(second, lenet, memory=memory, loss=1.0, as_before=True)
    again = decode_update(short, lenet, before=indices)
    np.testing.assert_array_equal(again.indices, indices)
    np.testing.assert_array_equal(again.values, second[indices])
    assert len(short) < len(whole) - 4 * len(indices) + 16
    for wrong in (None, indices[:-1], indices + np.uint32(1)):
        with pytest.raises(PayloadError, match="repeats indices"):
            decode_update(short, lenet, before=wrong)
    # The receiver may not know the indices, so they are sent although they are unchanged.
    full = codec.encode(third, lenet, memory=memory, loss=0.5, as_before=False)
    np.testing.assert_array_equal(decode_update(full, lenet).indices, indices)


def test_sums_beyond_float32_empty_the_memory(lenet):
    codec, memory = make_codec("topk", density=0.01), {}
    large = np.full(lenet.size, 3e38, dtype=np.float32)
    codec.encode(large, lenet, memory=memory)
    with pytest.raises(PayloadError, match="beyond float32"):
        codec.encode(large, lenet, memory=memory)
    assert not memory
    codec.encode(updates(lenet, 1)[0], lenet, memory=memory)


def test_feedback_is_refused_where_it_would_grow_without_end():
    with pytest.raises(ValueError, match="feedback does not go with randomk"):
        make_codec("randomk", rescale=True, feedback=True)
    make_codec("randomk", rescale=False, feedback=True)


PAIRS = [
    (sparsifier, quantizer)
    for sparsifier, quantizer in product(methods("sparsifier"), methods("quantizer"))
    if sparsifier in ("dense", "topk", "esgd") or quantizer in ("float32", "int8", "lowrank")
]


@pytest.mark.few(30)
@pytest.mark.parametrize(("sparsifier", "quantizer"), PAIRS)
def test_the_first_updates_are_sent_without_the_quantizer(sparsifier, quantizer, lenet, update_for):
    """They select the same entries as the codec whose quantizer is float32, with the same bytes."""
    codec = make_codec(sparsifier, quantizer, exact_steps=2)
    without = make_codec(sparsifier, "float32", feedback=codec.feedback)
    plain = make_codec(sparsifier, quantizer)
    memory, other = {}, {}
    for number in (1, 2):
        given = {"seed": number, "loss": 1.0, "number": number}
        payload = codec.encode(update_for(lenet), lenet, memory=memory, **given)
        assert payload == without.encode(update_for(lenet), lenet, memory=other, **given)
        assert codec.made(payload)
        assert plain.made(payload) == (quantizer == "float32")
        if codec.feedback and codec.sparsifier.residual_key is None:
            sent = decode_update(payload, lenet)
            at = slice(None) if sent.indices is None else sent.indices
            assert not memory["error"][at].any()
    for number in (0, 3):
        payload = codec.encode(update_for(lenet), lenet, memory=dict(memory), number=number)
        assert ids_of(payload) == codec.ids
        assert codec.made(payload)


def test_a_sparse_mean_is_sent_without_the_quantizer_too(lenet):
    indices = np.arange(0, lenet.size, 50, dtype=np.uint32)
    values = np.linspace(-1, 1, len(indices), dtype=np.float32)
    codec = make_codec("dense", "int8", exact_steps=1)
    for number, same in ((1, True), (2, False)):
        payload = codec.encode_sparse(indices, values, lenet, number=number)
        made = decode_update(payload, lenet)
        np.testing.assert_array_equal(made.indices, indices)
        assert np.array_equal(made.values, values) == same


def test_steps_below_0_are_refused():
    with pytest.raises(ValueError, match="exact_steps"):
        make_codec(exact_steps=-1)
