"""BatchNorm's running statistics arrive exactly, whatever happens to the rest."""

from itertools import product

import numpy as np
import pytest

from compression import Layout, PayloadError, decode, decode_update, make_codec
from compression import names as methods
from compression.header import varint
from compression.statistics import exact_tensors, separate

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
    values[VARIANCES] = -np.geomspace(1e-4, 1, 6)  # from these values to nearly 0
    return values


def test_statistics_are_known_by_their_names():
    assert exact_tensors(LAYOUT) == (0, 3, 4)
    cut = separate(LAYOUT, (0, 3, 4))
    assert cut.layout.names == ("0.weight", "1.weight", "2.weight")
    np.testing.assert_array_equal(cut.gather_exact(np.arange(LAYOUT.size)), EXACT)
    every = np.arange(LAYOUT.size, dtype=np.float32)
    np.testing.assert_array_equal(cut.merge(cut.gather(every), cut.gather_exact(every)), every)


@pytest.mark.parametrize(
    "combination", list(product(methods("sparsifier"), methods("quantizer"))), ids="-".join
)
def test_they_arrive_exactly(combination):
    for feedback in (False, True):
        check_exactly(make_codec(*combination, feedback=feedback))


def check_exactly(codec):
    memory, before = {}, None
    for number in range(3):
        payload = codec.encode(
            update(number), LAYOUT, memory=memory, loss=3.0 - number, as_before=number > 0
        )
        sent = decode_update(payload, LAYOUT, before=before)
        np.testing.assert_array_equal(sent.dense()[EXACT], update(number)[EXACT])
        assert (sent.added_to(-update(number))[VARIANCES] >= 0).all()
        before = sent.selected
        codec.put_back(payload, LAYOUT, memory) if codec.keeps else None


def test_a_model_of_statistics_alone():
    layout = Layout(("running_var",), ((5,),), ("float32",))
    values = np.arange(5, dtype=np.float32)
    for combination in product(methods("sparsifier"), methods("quantizer")):
        payload = make_codec(*combination).encode(values, layout, names=True)
        vector, found = decode(payload)
        assert found == layout
        np.testing.assert_array_equal(vector, values)


def with_exact(payload, table, reseal):
    """Return a payload with another table of exact tensors, right checksum."""
    body = payload[:-8]
    own = bytes((3, 0, 2, 0))  # three: 0, 3, 4
    at = body.index(own, 8)
    return reseal(body[:at] + table + body[at + len(own) :])


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (bytes((0,)), "0 exact tensors of 6"),
        (bytes((7, 0, 0, 0, 0, 0, 0, 0)), "7 exact tensors of 6"),
        (bytes((3, 0, 2, 2)), "beyond its last"),
        (bytes((1,)) + varint(1 << 62), "beyond its last"),
        (bytes((3, 0, 1, 0)), "payload"),
        (bytes((6, 0, 0, 0, 0, 0, 0)), "payload"),
    ],
)
def test_bad_tables_of_exact_tensors(table, match, reseal):
    payload = make_codec("topk", "int8", "raw", density=0.5).encode(update(), LAYOUT)
    decode(with_exact(payload, bytes((3, 0, 2, 0)), reseal), LAYOUT)
    for known in (LAYOUT, None):
        with pytest.raises(PayloadError, match=match):
            decode(with_exact(payload, table, reseal), known)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_exact_values_that_are_not_finite(bad, reseal):
    payload = make_codec("dense", "int8", "raw").encode(update(), LAYOUT)
    last = update()[5:6].tobytes()
    assert payload.count(last) == 1
    wrong = payload.replace(last, np.float32(bad).tobytes())
    with pytest.raises(PayloadError, match="NaN or infinity"):
        decode(reseal(wrong[:-8]), LAYOUT)
