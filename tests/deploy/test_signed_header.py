"""The compact signed header of a request: Flower's server can check its signature."""

from base64 import b64decode
from contextlib import suppress

import pytest
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
    verify_signature,
)
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy.signed_header import headers, read_header, sign_header


@given(st.integers(0, 2**64 - 1), st.integers(0, 65535), st.binary(max_size=200), st.binary())
def test_a_header_is_read_as_it_was_written(node, wait, signature, rest):
    signed, after = read_header(sign_header(node, wait, lambda stamp: signature) + rest)
    assert (signed.node_id, signed.wait, signed.signature, after) == (node, wait, signature, rest)


def test_it_becomes_the_http_headers_of_flowers_nodes():
    secret, public = generate_key_pairs()
    key = public_key_to_bytes(public)
    data = sign_header(7, 0, lambda stamp: sign_message(secret, stamp))
    assert len(data) < 140
    signed, _ = read_header(data)
    found = headers(key, signed.stamp, signed.signature)
    assert sum(map(len, [*found, *found.values()])) > 450
    given_key = bytes_to_public_key(b64decode(found["flwr-public-key"]))
    signature = b64decode(found["flwr-signature"])
    assert verify_signature(given_key, found["flwr-timestamp"].encode(), signature)


@given(st.binary(max_size=60))
def test_other_bytes_are_a_value_error_or_have_an_invalid_signature(data):
    with suppress(ValueError):
        read_header(data)


def test_a_truncated_header_is_a_value_error():
    with pytest.raises(ValueError, match="nobody has signed it"):
        read_header(b"too short")
