"""Who asks, in few bytes: what was signed is what Flower checks."""

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

from deploy.signed_header import opened, sealed


@given(st.integers(0, 2**64 - 1), st.integers(0, 65535), st.binary(max_size=200), st.binary())
def test_what_was_sealed_is_read(node, wait, signature, rest):
    seal, after = opened(sealed(node, wait, lambda stamp: signature) + rest)
    assert (seal.node_id, seal.wait, seal.signature, after) == (node, wait, signature, rest)


def test_it_becomes_the_headers_of_flowers_nodes():
    secret, public = generate_key_pairs()
    key = public_key_to_bytes(public)
    data = sealed(7, 0, lambda stamp: sign_message(secret, stamp))
    assert len(data) < 140
    found = opened(data)[0].headers(key)
    assert sum(map(len, [*found, *found.values()])) > 450
    given_key = bytes_to_public_key(b64decode(found["flwr-public-key"]))
    signature = b64decode(found["flwr-signature"])
    assert verify_signature(given_key, found["flwr-timestamp"].encode(), signature)


@given(st.binary(max_size=60))
def test_anything_else_is_a_value_error_or_signed_by_nobody(data):
    with suppress(ValueError):
        opened(data)


def test_one_that_breaks_off_is_a_value_error():
    with pytest.raises(ValueError, match="nobody has signed it"):
        opened(b"too short")
