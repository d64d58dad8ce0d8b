"""Hostile payloads raise `PayloadError` before the decoder allocates memory.

The costliest valid payloads take no more memory than twice the decoded update.
"""

import re
import time
import tracemalloc
import zlib
from itertools import cycle, product

import numpy as np
import pytest

from edgewire.compression.base import Kind, PayloadError, Spec
from edgewire.compression.coders.zstd import Zstd, zstd
from edgewire.compression.decoder import decode, decode_update, describe
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.registry import names as methods
from edgewire.compression.scatter import add_at
from edgewire.compression.wire_header import varint
from edgewire.compression.wire_natives import NativeTensor
from tests.compression.surgery import with_checksum

SIZE = 1000
MEGABYTE = 1 << 20
BOMB = 256 * MEGABYTE
DENSE = b"\x00"
TABLES = b"\x01\x01" + varint(SIZE)  # one tensor of SIZE entries


@pytest.fixture
def layout(make_layout):
    return make_layout([(SIZE,)])


@pytest.fixture
def craft():
    """Return a function that builds a payload from given parts, valid or not."""

    def build(
        bodies=(),
        *,
        ids=(0, 0, 0),
        flags=0,
        tables=TABLES,
        selection=DENSE,
        params=b"\x00",
        entries=None,
        pad=b"\x00",
        tail=b"",
    ):
        if entries is None:
            entries = [len(body) << 1 | coded for body, coded in bodies]
        head = b"EWP\x01" + bytes((*ids, flags)) + tables + selection + params
        head += varint(len(entries)) + b"".join(map(varint, entries))
        head += pad * (-len(head) % 8)
        return with_checksum(head + b"".join(body for body, _ in bodies) + tail)

    return build


@pytest.fixture
def refused(layout):
    """Return a function that asserts: decoding fails fast, in little memory."""

    def check(payload, match, both=True, memory=MEGABYTE // 4):
        for known in (layout, None) if both else (None,):
            problem = ""
            tracemalloc.start()
            started = time.perf_counter()
            try:
                decode(payload, known)
            except PayloadError as error:
                problem = str(error)
            seconds = time.perf_counter() - started
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert re.search(match, problem)
            assert "\n" not in problem
            assert peak < memory
            assert seconds < 5

    return check


FLOATS = np.linspace(-1, 1, SIZE, dtype="<f4").tobytes()
SCALE = np.ones(1, dtype="<f4").tobytes()
LEVELS = bytes(SIZE)


def zstd_with_window(log: int) -> zstd.ZstdCompressor:
    """Return a compressor that is not told its input's size, so that it declares a window."""
    return zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: log})


@pytest.mark.parametrize("log", [11, 23, 27])
def test_zstd_windows_that_the_stream_does_not_need(craft, refused, log):
    frames = []
    for window in (10, log):
        compressor = zstd_with_window(window)
        frames.append(compressor.compress(LEVELS) + compressor.flush())
    modest, greedy = (craft([(SCALE, 0), (frame, 1)], ids=(0, 2, 2)) for frame in frames)
    assert not decode(modest)[0].any()
    refused(greedy, "broken zstd frame")


@pytest.mark.few(3)
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("window_log", [10, 20, 27, "zlib"])
def test_bombs(craft, refused, declared, window_log):
    coder, match = (1, "zlib stream of") if window_log == "zlib" else (2, "zstd frame")
    compressor = zlib.compressobj(9) if coder == 1 else zstd_with_window(window_log)
    if declared and coder == 2:
        compressor.set_pledged_input_size(BOMB)
    chunk = bytes(4 * MEGABYTE)
    parts = [compressor.compress(chunk) for _ in range(BOMB // len(chunk))]
    bomb = b"".join([*parts, compressor.flush()])
    assert len(bomb) < BOMB // 200
    payload = craft([(SCALE, 0), (bomb, 1)], ids=(0, 2, coder))
    refused(payload, "no smaller than uncoded")
    # The model is just large enough for the decoder to read the stream.
    size = len(bomb) + 100
    tables = b"\x01\x01" + varint(size)
    payload = craft([(SCALE, 0), (bomb, 1)], ids=(0, 2, coder), tables=tables)
    refused(payload, match, both=False, memory=4 * size + MEGABYTE // 4)


@pytest.mark.parametrize("coder", [1, 2])
def test_coded_streams_that_no_encoder_makes(craft, refused, coder):
    compress = zlib.compress if coder == 1 else zstd.compress
    good, skippable = compress(LEVELS), b"\x50\x2a\x4d\x18\x00\x00\x00\x00"
    bodies = [compress(bytes(length)) for length in (0, SIZE - 1, SIZE + 1, 4 * SIZE)]
    bodies += [good[:-1], good + b"\0", good + good, b"", b"\xff" * 9, good + skippable]
    if coder == 1:
        deflater = zlib.compressobj()
        bodies.append(deflater.compress(LEVELS) + deflater.flush(zlib.Z_SYNC_FLUSH))
    else:
        compressor = zstd_with_window(10)
        bodies.append(compressor.compress(LEVELS, mode=compressor.FLUSH_BLOCK))
    for body in bodies:
        payload = craft([(SCALE, 0), (body, 1)], ids=(0, 2, coder))
        refused(payload, "broken|of another length")


def test_a_coded_stream_under_raw(craft, refused):
    refused(craft([(SCALE, 0), (LEVELS[:9], 1)], ids=(0, 2, 0)), "coded stream where none can be")


def shape(*dimensions):
    return varint(len(dimensions)) + b"".join(map(varint, dimensions))


def names(table):
    return {"flags": 1, "tables": TABLES + varint(len(table)) + table}


TOO_LARGE = [[1 << 60], [1 << 30, 1 << 30], [0, 1 << 60], [1 << 62, 0, 1 << 62], [1 << 28, 2]]


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        *(({"tables": b"\x01" + shape(*dimensions)}, "payload declares more than")
          for dimensions in TOO_LARGE),
        ({"tables": b"\x02" + shape(1 << 28) * 2}, "more than"),
        ({"tables": varint(1 << 62)}, "tensors"),
        ({"tables": varint(16_385) + bytes(16_385)}, "tensors"),
        ({"tables": b"\x02" + shape(SIZE)}, "goes on"),  # the selection is read as a 0-d tensor
        ({"tables": b"\x01" + shape(*[1] * 33)}, "33 dimensions"),
        ({"tables": b"\x01" + varint(1 << 62)}, "dimensions"),
        ({"tables": b"\x01\x01\xe8\x87\x00"}, "needless bytes"),
        ({"tables": b"\x01\x01" + b"\xff" * 9 + b"\x01"}, "63 bits"),
        (names(b"\x00\x01"), "ends within"),
        (names(b"\xff\x01a"), "unknown dtype 255"),
        (names(b"\x00\x01\xff"), "not UTF-8"),
        (names(b"\x00\x01a\x00"), "number of names"),
        (names(b""), "ends within"),
        ({"flags": 1, "tables": b"\x02" + shape(SIZE) + b"\x01\x00\x06" + b"\x00\x01a" * 2},
         "number of names"),
    ],
)  # fmt: skip
def test_bad_tables(craft, refused, layout, parts, match):
    payload = craft([(FLOATS, 0)], **parts)
    refused(payload, match, both=False)
    if parts.get("flags") != 1:  # a decoder that knows the layout reads no names
        with pytest.raises(PayloadError):
            decode(payload, layout)


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"ids": (255, 0, 0)}, "sparsifier 255"),
        ({"ids": (0, 255, 0)}, "quantizer 255"),
        ({"ids": (0, 0, 255)}, "coder 255"),
        ({"flags": 2}, "0 exact tensors of 1"),
        ({"flags": 4, "tables": b"\x00" + TABLES}, "in their own type must be none|0 tensors of"),
        ({"flags": 8}, "unknown flags"),
        ({"flags": 16}, "unknown flags"),
        ({"flags": 128}, "unknown flags"),
        ({"selection": b"\x03"}, "unknown selection 3"),
        ({"selection": b"\x02\x03"}, "ends within|repeats indices|goes on"),
        ({"selection": b"\x02\x03abcd"}, "repeats indices"),
        ({"selection": b"\x02" + varint(SIZE + 1) + b"abcd"}, "1001 indices into 1000"),
        ({"params": b"\x01\x05"}, "float32 has no such"),
        ({"params": b"\x11" + bytes(17)}, "17 streams or parameters"),
        ({"params": varint(1 << 62)}, "streams or parameters"),
        ({"entries": []}, "goes on"),
        ({"entries": [len(FLOATS) << 1, 0]}, "2 streams of values, not 1"),
        ({"entries": [1 << 62]}, "ends within"),
        ({"entries": [(len(FLOATS) - 4) << 1], "tail": b""}, "goes on"),
        ({"pad": b"\x01"}, "padding"),
        ({"tail": b"\x00"}, "goes on"),
        ({"tail": bytes(8)}, "goes on"),
    ],
)
def test_bad_headers(craft, refused, parts, match):
    refused(craft([(FLOATS, 0)], **parts), match)


def test_a_stream_of_a_wrong_size(craft, refused):
    for body in (FLOATS[:-4], FLOATS + bytes(4), b""):
        refused(craft([(body, 0)]), f"^[a-z ]*{len(body)} bytes instead of 4000")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(craft, refused, value):
    floats = np.full(SIZE, 2e38, dtype="<f4")  # a finite vector with a sum beyond float32
    assert decode(craft([(floats.tobytes(), 0)]))[0].sum(dtype=np.float64) > 1e41
    floats[SIZE // 2] = value
    refused(craft([(floats.tobytes(), 0)]), "NaN or infinity")


@pytest.mark.parametrize(
    ("indices", "count", "match"),
    [
        ([3, 2, 5], 3, "do not increase"),
        ([3, 3, 5], 3, "do not increase"),
        ([3, 4, SIZE], 3, "beyond the model"),
        ([1 << 31, 5, 6], 3, "do not increase"),
        ([1, 2, 3], SIZE + 1, "1001 indices into 1000"),
        ([1, 2, 3], 1 << 62, "indices into"),
        ([1, 2, 3], 2, "12 bytes instead of 8"),
    ],
)
def test_bad_indices(craft, refused, indices, count, match):
    body = np.array(indices, dtype="<u4").tobytes()
    selection = b"\x01" + varint(count)
    refused(craft([(body, 0), (FLOATS[:12], 0)], selection=selection), match)
    refused(craft([], selection=selection[:1] + b"\x03"), "holds none")


def test_bytes_that_are_no_payload(craft, layout):
    good = craft([(FLOATS, 0)])
    for wrong in (b"", b"EWP", b"EWP\x01", bytes(1000), b"PK\x03\x04" + good, good[1:]):
        with pytest.raises(PayloadError, match="no payload"):
            decode(wrong, layout)
        with pytest.raises(PayloadError, match="no payload"):
            describe(wrong)
    with pytest.raises(PayloadError, match="version 2"):
        decode(good[:3] + b"\x02" + good[4:], layout)
    with pytest.raises(PayloadError, match="checksum"):
        decode(good[:-1] + bytes([good[-1] ^ 1]), layout)


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
MODEL = Layout(tuple(SHAPES), tuple(SHAPES.values()), ("float32",) * len(SHAPES))
ENTRIES = MODEL.size
BESIDE = 1 << 17  # bytes that the decoder may take in addition, for any payload
HARD = {"powersgd": {"rank": 64}, "int4": {"block": 16}, "qsgd": {"bucket": 16}}
EVERY = np.arange(ENTRIES, dtype=np.uint32)
DRAWN = np.random.default_rng(5).random(ENTRIES)
SELECTIONS = {
    "all": EVERY,
    "nearly all": EVERY[DRAWN < 0.99],
    "half": EVERY[DRAWN < 0.5],
    "few": EVERY[DRAWN < 0.04],
    "none": EVERY[:0],
}
VALUES = (np.random.default_rng(6).standard_t(3, ENTRIES) * 1e-3).astype(np.float32)


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


def check(payload, layout=MODEL):
    """Assert the memory bounds of decoding and of the server's use of the update."""
    used, update = peak(lambda: decode_update(payload, layout))
    assert used <= 2 * result_bytes(update) + BESIDE
    for make in (lambda: decode_update(payload, layout).dense(), lambda: added(payload, layout)):
        assert peak(make)[0] <= 3 * 4 * ENTRIES + 2 * BESIDE


def added(payload, layout):
    update, total = decode_update(payload, layout), VALUES.copy()
    add_at(total, update.indices, update.values)


@pytest.mark.few(24)
@pytest.mark.parametrize(
    ("selection", "target"),
    [*product(SELECTIONS, product(["float32"], methods("coder"))),
     *zip(cycle(SELECTIONS), product(methods("quantizer"), methods("coder")), strict=False)],
    ids=str,
)  # fmt: skip
def test_any_selection_with_statistics(target, selection):
    indices = SELECTIONS[selection]
    codec = make_codec("dense", *target, feedback=False, **HARD.get(target[0], {}))
    check(codec.encode_sparse(indices, VALUES[indices], MODEL))


@pytest.mark.parametrize("coder", methods("coder"))
def test_names_and_tensors_in_their_own_type(coder):
    own = [NativeTensor(2 * place, f"own {place}", array) for place, array in enumerate(
        (np.zeros(2 * ENTRIES), np.ones((3, 5), dtype=np.int64), np.zeros(ENTRIES, dtype=np.bool_))
    )]  # fmt: skip
    for codec in (make_codec("topk", "int8", coder, density=1.0), make_codec("dense", coder=coder)):
        payload = codec.encode(VALUES, MODEL, names=True, own=own)
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


@pytest.mark.parametrize("target", [("int8", "entropy"), ("float32", "zstd"), ("sign", "zip")])
@pytest.mark.parametrize("exact", [["2.*"], ["0.*", "4.*"], ["*"]])
def test_any_tensors_may_be_exact(target, exact):
    codec = make_codec("dense", *target, feedback=False, exact=exact)
    check(codec.encode(VALUES, MODEL))
    for name in ("nearly all", "few"):
        indices = SELECTIONS[name]
        check(codec.encode_sparse(indices, VALUES[indices], MODEL))
