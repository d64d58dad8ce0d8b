"""Compact bundles: reading restores the parts, a message takes few bytes, damage is an error."""

import hashlib
import struct
import time
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.flower.records import payload_record
from edgewire.deploy.compact_bundle import FORM, SMALL, compact, parts_of
from edgewire.protocol.bundle import frames
from tests.deploy.served import question

LIMIT = 1 << 24
PAYLOAD = hashlib.shake_256(b"payload").digest(4770)


def name_of(content):
    return hashlib.sha256(content).hexdigest()


@st.composite
def bundles(draw):
    """Draw a bundle's parts; some contents hold names of other parts or of absent parts."""
    parts = []
    for _ in range(draw(st.integers(0, 6))):
        words = st.one_of(
            st.binary(max_size=30),
            st.sampled_from([name_of(b""), "0" * 64, "ab" * 40, *(n for n, _ in parts)]).map(
                str.encode
            ),
        )
        content = b"".join(draw(st.lists(words, max_size=5)))
        content *= draw(st.sampled_from([1, 1, 1, 4000]))
        name = draw(st.sampled_from([name_of(content), "request", "", "ä", "f" * 64, "F" * 64]))
        parts.append((name, content))
    return parts


@given(bundles())
def test_reading_restores_the_parts(parts):
    assert parts_of(compact(parts), LIMIT) == parts


@given(bundles().filter(bool), st.data())
def test_a_damaged_bundle_is_refused_or_is_another_valid_one(parts, data):
    whole = bytearray(compact(parts))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ValueError, match=r"\w"):
        parts_of(bytes(cut), LIMIT)
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(ValueError):
        parts_of(bytes(whole), LIMIT)


@given(st.binary(max_size=100))
def test_any_bytes_give_parts_or_a_value_error(data):
    with suppress(ValueError):
        parts_of(data, 100)


def test_a_message_takes_few_bytes_beside_its_payload():
    content = RecordDict({
        "arrays": payload_record(PAYLOAD),
        "metrics": MetricRecord({"loss": 0.3125, "num-examples": 64, "seconds": 0.0062}),
        "edgewire": ConfigRecord({"number": 17, "sequence": 17}),
    })  # fmt: skip
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 5, 6, 7
    message = Message(content, reply_to=question(1))
    parts = [(name, each.deflate()) for name, each in get_all_nested_objects(message).items()]
    assert len(parts) == 7
    assert len(frames(parts)) - len(PAYLOAD) > 1500
    assert len(compact(parts)) - len(PAYLOAD) < 300


def test_large_parts_are_not_compressed_again():
    large = bytes(SMALL + 1)
    bundle = compact([(name_of(large), large)])
    assert large in bundle
    assert len(bundle) < len(large) + 80


def test_the_output_limit_holds():
    others = [(f"part {i:02}", name_of(b"x").encode() * 250) for i in range(98)]
    many = [("request", others[0][1]), (name_of(b"x"), b"x"), *others]
    bundle = compact(many)
    assert len(bundle) < 2000
    assert parts_of(bundle, 99 * 16_007 + 1) == many
    for limit in (len(bundle) - 1, 99 * 16_007):
        with pytest.raises(ValueError, match="taken"):
            parts_of(bundle, limit)


def test_the_format_of_this_form_number_never_changes():
    """Devices and servers of other versions read these bytes, so a change needs a new `FORM`."""
    content = b"ConfigRecord  31\x00loss"
    name = name_of(content)
    data = "031c000000e3028a3131308a32b23333333260241950a41581e2b5b8243f4d0100"
    found = parts_of(bytes.fromhex(data), LIMIT)
    assert found == [("request", b"of " + name.encode()), (name, content)]


def bundle_of(said, text=b"", raw=b""):
    """Return a compact bundle of encoded numbers, texts and raw bytes; it may be invalid."""
    squeeze = zlib.compressobj(9, wbits=-15)
    deflated = squeeze.compress(struct.pack("<I", len(said)) + said + text) + squeeze.flush()
    return struct.pack("<BI", FORM, len(deflated)) + deflated + raw


def said(*numbers):
    """Encode numbers as a compact bundle stores them: seven bits in each byte."""
    made = bytearray()
    for number in numbers:
        while number > 127:
            made.append(number & 127 | 128)
            number >>= 7
        made.append(number)
    return bytes(made)


EMPTY = said(1, 0, 1, 0)  # a part with an empty name and an empty small content
REPEATS = said(1, 0, 501, *([0, 1] * 250), 0)  # this part's content repeats the first part's name
NAMED = said(1, 64, 1, 0)  # a part with a name of 64 bytes and an empty small content
BOMBS = {
    "parts": lambda: bundle_of(said(4_190_000) + EMPTY * 4_190_000),
    "hashed parts": lambda: bundle_of(said(4_190_000) + said(0, 1, 0) * 4_190_000),
    "too few parts": lambda: bundle_of(said(1 << 40) + EMPTY),
    "a long name": lambda: bundle_of(said(1, 1, 1 << 20, 1, 0), bytes(1 << 20)),
    "a name said again": lambda: bundle_of(said(5000, 1, 256, 1, 0) + REPEATS * 4999, bytes(256)),
    "no name said again": lambda: bundle_of(said(30_000) + EMPTY + REPEATS * 29_999),
    "a small content that is large": lambda: bundle_of(said(1, 1, 0, 1, 1 << 23), b"a" * (1 << 23)),
    "small contents": lambda: bundle_of(said(30_001) + NAMED + REPEATS * 30_000, b"a" * 64),
    "one content without end": lambda: bundle_of(said(1, 1, 0, 1 << 50, *([0, 0] * 99))),
    "a name without end": lambda: bundle_of(said(1, 1 << 50, *([0, 1] * 99))),
    "empty pieces": lambda: bundle_of(said(1, 1, 0, 1 << 50) + bytes(1 << 23)),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_bundle_costs_little_whatever_it_declares(bomb):
    bundle = BOMBS[bomb]()
    assert len(bundle) < 200_000
    tracemalloc.start()
    begun = time.process_time()
    with pytest.raises(ValueError, match=r"bundle|taken"):
        parts_of(bundle, 1 << 31)
    took, (_, most) = time.process_time() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 5  # at a tenth of the usual speed, because memory is traced
    assert most < 100 << 20


def test_a_large_body_that_is_no_bundle_is_not_copied():
    body = b"\x03\xff\xff\xff\xff" + bytes(32 << 20)
    tracemalloc.start()
    with pytest.raises(ValueError, match="deflated"):
        parts_of(body, 1 << 31)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20
