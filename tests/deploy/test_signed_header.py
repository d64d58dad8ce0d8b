"""The compact signed header of a request; `test_compact_calls` has Flower check its signature."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy.signed_header import read_header, sign_header


@given(st.integers(0, 2**64 - 1), st.integers(0, 65535), st.binary(max_size=200), st.binary())
def test_a_header_is_read_as_it_was_written(node, wait, signature, rest):
    signed, after = read_header(sign_header(node, wait, lambda stamp: signature) + rest)
    assert (signed.node_id, signed.wait, signed.signature, after) == (node, wait, signature, rest)


@given(st.binary(max_size=60))
def test_other_bytes_are_a_value_error_or_have_an_invalid_signature(data):
    with suppress(ValueError):
        read_header(data)


def test_a_truncated_header_is_a_value_error():
    with pytest.raises(ValueError, match="nobody has signed it"):
        read_header(b"too short")
