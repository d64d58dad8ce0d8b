"""The costliest valid payloads take no more memory than twice the decoded update."""

import tracemalloc
from itertools import product

import numpy as np
import pytest

from edgewire.compression.base import Kind, PayloadError, Spec
from edgewire.compression.coders.zstd import Zstd, zstd
from edgewire.compression.decoder import decode, decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import names as methods
from edgewire.compression.wire_natives import NativeTensor

SHAPES = {
    "0.weight": (32, 16, 3, 3),
    "1.weight": (32,),
    "1.running_mean": (32,),
    "1.running_var": (32,),
    "2.weight": (200, 500),
    "3.running_mean": (20_000,),
    "3.running_var": (20_000,),
    "4.weight": (100, 200),
}
LAYOUT = Layout(tuple(SHAPES), tuple(SHAPES.values()), ("float32",) * len(SHAPES))
SIZE = LAYOUT.size
BESIDE = 1 << 17  # bytes that the decoder may take in addition, for any payload
HARD = {"powersgd": {"rank": 64}, "int4": {"block": 16}, "qsgd": {"bucket": 16}}
EVERY = np.arange(SIZE, dtype=np.uint32)
DRAWN = np.random.default_rng(5).random(SIZE)
SELECTIONS = {
    "all": EVERY,
    "nearly all": EVERY[DRAWN < 0.99],
    "half": EVERY[DRAWN < 0.5],
    "few": EVERY[DRAWN < 0.04],
    "none": EVERY[:0],
}
VALUES = (np.random.default_rng(6).standard_t(3, SIZE) * 1e-3).astype(np.float32)


def peak(run):
    """Return the peak memory of a call in bytes, and the call's result."""
    run()
    tracemalloc.start()
    try:
        result = run()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def result_bytes(update):
    indices = 0 if update.indices is None else update.indices.nbytes
    return indices + update.values.nbytes + sum(own.array.nbytes for own in update.own)


def check(payload, layout=LAYOUT):
    """Assert the memory bounds of decoding and of the server's use of the update."""
    used, update = peak(lambda: decode_update(payload, layout))
    assert used <= 2 * result_bytes(update) + BESIDE
    for make in (lambda: decode_update(payload, layout).dense(),
                 lambda: decode_update(payload, layout).added_to(VALUES)):  # fmt: skip
        assert peak(make)[0] <= 3 * 4 * SIZE + 2 * BESIDE


@pytest.mark.few(70)
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize(
    "target", list(product(methods("quantizer"), methods("coder"))), ids="-".join
)
def test_any_selection_with_statistics(target, selection):
    indices = SELECTIONS[selection]
    codec = make_codec("dense", *target, feedback=False, **HARD.get(target[0], {}))
    check(codec.encode_sparse(indices, VALUES[indices], LAYOUT))


@pytest.mark.parametrize("target", [("int8", "entropy"), ("float32", "zstd"), ("sign", "zip")])
@pytest.mark.parametrize("exact", [["2.*"], ["0.*", "4.*"], ["*"]])
def test_any_tensors_may_be_exact(target, exact):
    codec = make_codec("dense", *target, feedback=False, exact=exact)
    check(codec.encode(VALUES, LAYOUT))
    for name in ("nearly all", "few"):
        indices = SELECTIONS[name]
        check(codec.encode_sparse(indices, VALUES[indices], LAYOUT))


@pytest.mark.parametrize("coder", methods("coder"))
def test_names_and_tensors_in_their_own_type(coder):
    own = [NativeTensor(2 * place, f"own {place}", array) for place, array in enumerate(
        (np.zeros(2 * SIZE), np.ones((3, 5), dtype=np.int64), np.zeros(SIZE, dtype=np.bool_))
    )]  # fmt: skip
    for codec in (make_codec("topk", "int8", coder, density=1.0), make_codec("dense", coder=coder)):
        payload = codec.encode(VALUES, LAYOUT, names=True, own=own)
        used, update = peak(lambda sent=payload: decode_update(sent))
        assert used <= 2 * result_bytes(update) + BESIDE
        assert len(update.own) == 3


def frame(size, block):
    """Return a zstd frame of zeros; each block of `block` bytes is one repeated byte."""
    body, last = b"", size - (size - 1) // block * block
    for start in range(0, size, block):
        left = start + block >= size
        body += ((last if left else block) << 3 | 1 << 1 | left).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x80\x38" + size.to_bytes(4, "little") + body


def test_zstd_frames_of_needlessly_many_blocks():
    spec = Spec(Kind.BYTES, np.dtype("u1"), 1 << 15)
    assert zstd.decompress(frame(spec.size, 5)) == bytes(spec.size)
    assert not Zstd.decode(memoryview(frame(spec.size, 512)), spec).any()
    for block in (5, 100, 256):
        with pytest.raises(PayloadError, match="needlessly many blocks"):
            Zstd.decode(memoryview(frame(spec.size, block)), spec)


@pytest.mark.parametrize("level", [1, 9, 19])
def test_zstds_own_blocks_are_never_too_many(level):
    draw = np.random.default_rng(level)
    pieces = [draw.integers(0, top, draw.integers(1, 5000)) for top in (2, 256, 9) * 60]
    data = np.concatenate(pieces).astype(np.uint8)
    spec = Spec(Kind.BYTES, np.dtype("u1"), data.size)
    coded = zstd.compress(data.data, level)
    np.testing.assert_array_equal(Zstd.decode(memoryview(coded), spec), data)


def test_names_and_the_number_of_tensors_are_limited():
    name = "n" * 1024
    good = Layout((name, "b"), ((3,), (2,)), ("float32",) * 2)
    payload = make_codec().encode(np.ones(5, dtype=np.float32), good, names=True)
    assert decode(payload)[1] == good
    assert decode_update(payload, max_tensors=2).layout == good
    with pytest.raises(PayloadError, match="2 tensors; at most 1"):
        decode_update(payload, max_tensors=1)
    longer = Layout((name + "n", "b"), good.shapes, good.dtypes)
    with pytest.raises(ValueError, match="more than 1024 bytes"):
        make_codec().encode(np.ones(5, dtype=np.float32), longer, names=True)
    own = [NativeTensor(0, name + "n", np.ones(1, dtype=np.int8))]
    with pytest.raises(ValueError, match="more than 1024 bytes"):
        make_codec().encode(np.ones(5, dtype=np.float32), good, own=own)
