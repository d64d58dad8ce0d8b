"""Any `threshold` shares give the secret; fewer, or shares of others, do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.secure.shamir import PRIME, join, split

SECRETS = st.binary(min_size=16, max_size=16)


@given(SECRETS, st.integers(1, 12), st.data())
def test_any_shares_of_the_threshold_give_the_secret(secret, nodes, data):
    threshold = data.draw(st.integers(1, nodes))
    shares = split(secret, threshold, nodes)
    assert {len(share) for share in shares} == {17}
    places = data.draw(st.permutations(range(nodes)))[:threshold]
    assert join({i + 1: shares[i] for i in places}) == secret


def test_shares_below_the_threshold_fit_every_secret():
    """For each secret there is one last share, and other shares of one secret differ each time."""
    shares = split(bytes(16), 3, 3)
    known = {1: shares[0], 2: shares[1]}
    # The secret is 3 s1 - 3 s2 + s3 for x = 1, 2, 3 (Lagrange).
    first, second = (int.from_bytes(share, "little") for share in known.values())
    for secret in (b"a" * 16, b"b" * 16):
        last = (int.from_bytes(secret, "little") - 3 * first + 3 * second) % PRIME
        assert join(known | {3: last.to_bytes(17, "little")}) == secret
    assert not set(shares) & set(split(bytes(16), 3, 3))


@pytest.mark.parametrize("wrong", [bytes(17), b"\xff" * 17, b"\xff" * 16 + b"\3"])
def test_a_wrong_share_never_gives_the_secret(wrong):
    secret = b"sixteen bytes ok"
    shares = {i + 1: share for i, share in enumerate(split(secret, 3, 3))}
    assert join(shares) == secret != join(shares | {2: wrong})
