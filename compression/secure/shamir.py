"""Shamir's secret sharing of 16 bytes modulo the prime 2^130 - 5 (Shamir 1979).

``threshold`` shares give the secret; fewer tell nothing about it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache
from math import prod

PRIME = (1 << 130) - 5
SECRET, SHARE = 16, 17  # bytes


def split(secret: bytes, threshold: int, shares: int) -> list[bytes]:
    """Return the shares of a secret for x = 1, 2, ..., of 17 bytes each."""
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    polynomial.append(int.from_bytes(secret, "little"))
    found = []
    for x in range(1, shares + 1):
        value = 0
        for coefficient in polynomial:  # Horner; a remainder in each step would take longer
            value = value * x + coefficient
        found.append((value % PRIME).to_bytes(SHARE, "little"))
    return found


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of ``threshold`` shares by x; other bytes if they do not fit together."""
    weighted = zip(_weights(tuple(shares)), shares.values(), strict=True)
    value = sum(weight * int.from_bytes(share, "little") for weight, share in weighted) % PRIME
    return value.to_bytes(SHARE, "little")[:SECRET]


@lru_cache(maxsize=8)
def _weights(xs: tuple[int, ...]) -> list[int]:
    """Return the Lagrange coefficients at 0 of shares at these x."""
    others = [[x for x in xs if x != own] for own in xs]
    return [
        prod(rest) * pow(prod(x - own for x in rest), -1, PRIME) % PRIME
        for own, rest in zip(xs, others, strict=True)
    ]
