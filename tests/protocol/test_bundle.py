"""A bundle holds a message's parts, and malformed bundles are refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.protocol.bundle import MOST_PARTS, frames, parts_of

PARTS = st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=50)))


@given(PARTS)
def test_reading_restores_the_parts(parts):
    assert parts_of(frames(parts), 10_000) == parts


@given(PARTS.filter(bool), st.data())
def test_a_cut_bundle_is_refused(parts, data):
    whole = frames(parts)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = parts_of(cut, 10_000)
    except ValueError:
        return
    assert found == parts[: len(found)]  # cut between two parts


@given(st.binary(max_size=100))
def test_any_bytes_give_parts_or_a_value_error(data):
    with suppress(ValueError):
        assert frames(parts_of(data, 100)) == data


def test_the_layout_and_the_limit():
    data = b"\x01\0\0\0\x02\0\0\0\0\0\0\0axy"
    assert parts_of(data, len(data)) == [("a", b"xy")]
    with pytest.raises(ValueError, match="no more than 14"):
        parts_of(data, len(data) - 1)


def test_parts_and_names_are_bounded():
    data = frames([("", b"")] * 5)
    assert len(parts_of(data, len(data), 5)) == 5
    with pytest.raises(ValueError, match="over 4 parts"):
        parts_of(data, len(data), 4)
    with pytest.raises(ValueError, match=f"over {MOST_PARTS} parts"):
        parts_of(frames([("", b"")] * (MOST_PARTS + 1)), 1 << 30)
    with pytest.raises(ValueError, match="a name of 257 bytes"):
        parts_of(frames([("n" * 257, b"")]), 1 << 30)
