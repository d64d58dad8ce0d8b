"""For every method with a residual: sent entries plus residual equal the given update."""

import numpy as np
import pytest

from compression import Layout, PayloadError, decode_update, make_codec
from compression import names as methods
from compression.base import Rng, SparsifyContext
from compression.batchnorm import exact_tensors, separate
from compression.registry import get

KEEPING = [
    name for name in methods("sparsifier") if get("sparsifier", name)().residual_key is not None
]
# Options that send every entry at once.
EVERYTHING = {
    "cesgd": {"density": 1.0},
    "dense": {},
    "dgc": {"sparsity": 0.0, "momentum": 0.0},
    "esgd": {"drop": 0.0},
    "gradient_dropping": {"drop": 0.0},
    "randomk": {"density": 1.0},
    "selective": {"density": 1.0},
    "threshold": {"threshold": 0.0, "sent": "value"},
    "topk": {"density": 1.0},
}
# Other options that must follow the same rules.
VARIANTS = [
    *((name, {}) for name in KEEPING),
    ("topk", {"scope": "tensor", "density": 0.1}),
    ("threshold", {"sent": "value", "threshold": 1e-2}),
    ("gradient_dropping", {"cut": "sampled", "drop": 0.9}),
    ("gradient_dropping", {"cut": "sampled", "scope": "tensor"}),
    ("randomk", {"scope": "tensor", "density": 0.3}),
    ("esgd", {"drop": 0.875, "cap": 0.1}),
    ("dgc", {"sparsity": 0.9, "clip_norm": 0.5, "workers": 4, "warmup_steps": 4}),
    ("dgc", {"layers": "conv", "sparsity": 0.99}),
]


def ids(variant):
    return "-".join([variant[0], *map(str, variant[1].values())])


every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=ids)


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
    trained = update[trained_of(layout)]
    if codec.sparsifier.residual_key is None:
        return copy.get("error", np.zeros_like(trained)) + trained
    step = SparsifyContext(separate(layout, exact_tensors(layout)).layout, copy, Rng(0, 0), loss)
    return codec.sparsifier.accumulate(trained, step)


def kept_by(codec, memory):
    return memory[codec.sparsifier.residual_key or "error"]


def close(left, right, scale):
    np.testing.assert_allclose(left, right, rtol=0, atol=2e-6 * scale)


@pytest.mark.few(7)
@every_variant
def test_sent_plus_kept_equals_given(variant, normed, lenet):
    name, options = variant
    codec = make_codec(name, "float32", "raw", **options)
    for layout in (lenet, normed):
        memory, before = {}, None
        where = trained_of(layout)
        for number, update in enumerate(updates(layout)):
            given = given_by(codec, update, layout, memory, 1.0 / (number + 1))
            payload = codec.encode(
                update, layout, memory=memory, seed=number, loss=1.0 / (number + 1), as_before=True
            )
            sent = decode_update(payload, layout, before=before)
            before = sent.selected
            assert codec.keeps
            close(sent.dense()[where] + kept_by(codec, memory), given, np.abs(given).max())
            others = np.setdiff1d(np.arange(layout.size), where)
            np.testing.assert_array_equal(sent.dense()[others], update[others])


@pytest.mark.parametrize("quantizer", methods("quantizer"))
@pytest.mark.parametrize("name", methods("sparsifier"))
def test_feedback_keeps_every_quantizers_error(name, quantizer, normed):
    codec = make_codec(name, quantizer, "raw", feedback=True)
    memory, before = {}, None
    for number, update in enumerate(updates(normed, 3)):
        given = given_by(codec, update, normed, memory, None)
        payload = codec.encode(update, normed, memory=memory, seed=number)
        sent = decode_update(payload, normed, before=before).dense()[trained_of(normed)]
        scale = max(np.abs(given).max(), np.abs(sent).max())
        close(sent + kept_by(codec, memory), given, scale)


@every_variant
@pytest.mark.parametrize("quantizer", ["float32", "int8"])
def test_a_lost_payload_is_put_back(variant, quantizer, normed):
    name, options = variant
    codec = make_codec(name, quantizer, "raw", feedback=True, **options)
    memory = {}
    for number, update in enumerate(updates(normed)):
        given = given_by(codec, update, normed, memory, 1.0 / (number + 1))
        payload = codec.encode(
            update, normed, memory=memory, seed=number, loss=1.0 / (number + 1), as_before=True
        )
        codec.restore(payload, normed, memory)
        close(kept_by(codec, memory), given, np.abs(given).max())


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


@pytest.mark.parametrize("name", EVERYTHING)
def test_everything_sent_is_the_update_itself(name, normed):
    codec = make_codec(name, "float32", "raw", **EVERYTHING[name])
    memory, before = {}, None
    for number, update in enumerate(updates(normed)):
        payload = codec.encode(
            update, normed, memory=memory, seed=number, loss=5.0 - number, as_before=number > 0
        )
        sent = decode_update(payload, normed, before=before)
        before = sent.selected
        np.testing.assert_array_equal(sent.dense(), update)


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
    assert memory.keys() == before.keys()
    for key, array in memory.items():
        np.testing.assert_array_equal(array, before[key])


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
