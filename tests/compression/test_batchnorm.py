"""BatchNorm's running statistics arrive exactly, with every method."""

from itertools import product

import numpy as np
import pytest

from edgewire.compression.base import PayloadError
from edgewire.compression.batchnorm import exact_tensors, scale_of, separate
from edgewire.compression.decoder import decode
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import names as methods
from tests.compression.surgery import with_checksum

SHAPES = {
    "1.running_mean": (6,),
    "0.weight": (6, 2, 3, 3),
    "1.weight": (6,),
    "1.running_var": (6,),
    "1.num_batches_tracked": (),
    "2.weight": (20, 6),
}
LAYOUT = Layout(tuple(SHAPES), tuple(SHAPES.values()), ("float32",) * len(SHAPES))
EXACT = np.r_[0:6, 120:127]
VARIANCES = slice(120, 126)


def update(seed=0):
    values = np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32)
    # Change the variances from these values to nearly 0.
    values[VARIANCES] = -np.geomspace(1e-4, 1, 6)
    return values


def test_statistics_are_found_by_their_names():
    assert exact_tensors(LAYOUT) == (0, 3, 4)
    cut = separate(LAYOUT, (0, 3, 4))
    assert cut.layout.names == ("0.weight", "1.weight", "2.weight")
    np.testing.assert_array_equal(cut.gather_exact(np.arange(LAYOUT.size)), EXACT)
    every = np.arange(LAYOUT.size, dtype=np.float32)
    np.testing.assert_array_equal(cut.merge(cut.gather(every), cut.gather_exact(every)), every)


def test_a_model_of_statistics_alone():
    layout = Layout(("running_var",), ((5,),), ("float32",))
    values = np.arange(5, dtype=np.float32)
    for combination in product(methods("sparsifier"), methods("quantizer")):
        payload = make_codec(*combination).encode(values, layout, names=True)
        vector, found = decode(payload)
        assert found == layout
        np.testing.assert_array_equal(vector, values)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_exact_values_that_are_not_finite(bad):
    payload = make_codec("dense", "int8", "raw").encode(update(), LAYOUT)
    last = update()[5:6].tobytes()
    assert payload.count(last) == 1
    wrong = payload.replace(last, np.float32(bad).tobytes())
    with pytest.raises(PayloadError, match="NaN or infinity"):
        decode(with_checksum(wrong[:-8]), LAYOUT)


SCALED = Layout(
    ("a.running_mean", "a.running_var", "b.running_mean", "c.running_var", "d.running_mean",
     "a.num_batches_tracked"),
    ((3,), (3,), (2,), (4,), (0,), ()),
    ("float32",) * 6,
)  # fmt: skip


def random_statistics(seed):
    draw = np.random.default_rng(seed)
    values = draw.normal(size=SCALED.size).astype(np.float32)
    values[3:6], values[8:12] = values[3:6] ** 2, values[8:12] ** 2 * 1e3
    return values


@pytest.mark.parametrize("seed", range(5))
def test_the_distance_of_statistics_is_that_of_the_layers_outputs(seed):
    one, other, around = (random_statistics(3 * seed + i).astype(np.float64) for i in range(3))
    root = lambda x: np.sqrt(np.mean(np.square(x)))  # noqa: E731
    expected = [
        root((one[:3] - other[:3]) / np.sqrt(around[3:6] + 1e-5)),
        root(np.log((one[3:6] + 1e-5) / (other[3:6] + 1e-5))),
        root(one[6:8] - other[6:8]),  # a mean without its variance
        root(np.log((one[8:12] + 1e-5) / (other[8:12] + 1e-5))),
    ]
    found = scale_of(SCALED).distance(*(x.astype(np.float32) for x in (one, other, around)))
    assert found == pytest.approx(max(expected), rel=1e-5)


@pytest.mark.parametrize("huge", [2.0, 1e5, 1e30])
@pytest.mark.parametrize("entry", [0, 3, 6, 8])
def test_one_false_channel_is_found_and_limited(huge, entry):
    start = np.abs(random_statistics(1)) + 1
    end = start.copy()
    end[entry] *= np.float32(huge)
    far = scale_of(SCALED).distance(end, start, start)
    assert far > 0.2
    half = scale_of(SCALED).between(start, end, 0.5)
    assert scale_of(SCALED).distance(half, start, start) == pytest.approx(far / 2, rel=1e-3)
    assert (half >= start * (1 - 1e-6)).all()
    assert (half <= end * (1 + 1e-6)).all()


def test_a_counter_has_no_distance():
    start, end = random_statistics(1), random_statistics(1)
    end[-1] += 1e6
    assert scale_of(SCALED).distance(start, end, start) == 0
    empty = Layout((), (), ())
    assert scale_of(empty).distance(*[np.empty(0, np.float32)] * 3) == 0
