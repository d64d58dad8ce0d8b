"""Shamir's secret sharing of 16-byte secrets modulo the prime 2^130 - 5 (Shamir 1979).

Any ``threshold`` shares give the secret, and fewer give nothing about it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache
from math import prod

from .terms import SecureError, expect_bytes

PRIME = (1 << 130) - 5
SECRET, SHARE = 16, 17  # bytes


def split(secret: bytes, threshold: int, shares: int) -> list[bytes]:
    """Return the shares of a secret of 16 bytes, for x = 1, 2, ...; 17 bytes each."""
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    polynomial.append(int.from_bytes(secret, "little"))
    found = []
    for x in range(1, shares + 1):
        value = 0
        for coefficient in polynomial:  # Horner; a remainder per step would take longer
            value = value * x + coefficient
        found.append((value % PRIME).to_bytes(SHARE, "little"))
    return found


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret; ``shares``: exactly the threshold's number of shares, by their x.

    Raises `SecureError` if the shares are those of no secret.
    """
    value = 0
    for weight, share in zip(_weights(tuple(shares)), shares.values(), strict=True):
        expect_bytes("a share", share, SHARE)
        value += weight * int.from_bytes(share, "little")
    value %= PRIME
    if value >> 8 * SECRET:
        raise SecureError("the shares belong to no secret")
    return value.to_bytes(SECRET, "little")


@lru_cache(maxsize=8)
def _weights(places: tuple[int, ...]) -> list[int]:
    """Return the Lagrange coefficients at 0 for shares at these x."""
    return [
        prod(x for x in places if x != own)
        * pow(prod(x - own for x in places if x != own), -1, PRIME)
        % PRIME
        for own in places
    ]
