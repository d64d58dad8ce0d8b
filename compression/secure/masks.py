"""The cryptography of the secure sum: keys, sealed shares and masks.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), AES-SIV (RFC 5297) and ChaCha20 (RFC 8439), all of the
package `cryptography`. A derived key has one purpose in one round: ``bound`` is the round's
`binding`. A seed is a secret from which a key or a mask is derived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from . import shamir
from .packing import WORD, Words
from .terms import KEY, SecureError

SHARES = 2 * shamir.SHARE  # bytes: a share of the self mask's seed, and one of the mask key's seed
SEALED = 16 + SHARES
SELF, PAIR, BARE = b"self mask", b"pair mask", b"bare mask"
SEAL, PRIVATE = b"seal", b"private key"


class Masks:
    """All cryptography; without ``on``, zeros of equal length in place of shares and masks."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def public_key(self, seed: bytes) -> bytes:
        """Return the public key of a seed, 32 bytes."""
        if not self.on:
            return seed.ljust(KEY, b"\0")  # it only tells nodes apart
        return _private(seed).public_key().public_bytes_raw()

    def secrets(self, seed: bytes, keys: Sequence[bytes], keep: bool = False) -> list[bytes]:
        """Return the secrets that the owner of ``seed`` has with the owners of public keys.

        ``keep``: keep them in this process. Raises `SecureError` for a key of low order, with which
        anyone would know the secret.
        """
        if not self.on:
            return [b""] * len(keys)
        return [_kept(seed, key) for key in keys] if keep else _exchanged(_private(seed), keys)

    def seal(self, secret: bytes, bound: bytes, way: tuple[int, int], shares: bytes) -> bytes:
        """Encrypt two shares, 34 bytes, to 50; ``way``: the places of sender and receiver."""
        if not self.on:
            return shares.ljust(SEALED, b"\0")
        # AES-SIV needs no nonce: a node that lost its state may seal again under the same key.
        return AESSIV(_seal_key(secret, bound, way)).encrypt(shares, None)

    def open(self, secret: bytes, bound: bytes, way: tuple[int, int], sealed: bytes) -> bytes:
        """Decrypt what `seal` encrypted; raises `SecureError` for shares of another binding."""
        if not self.on:
            return sealed[:SHARES]
        try:
            return AESSIV(_seal_key(secret, bound, way)).decrypt(sealed, None)
        except InvalidTag:
            raise SecureError(
                f"a share of place {way[0]} does not open: nodes saw different keys or terms"
            ) from None

    def split(self, seeds: Sequence[bytes], threshold: int, nodes: int) -> list[bytes]:
        """Return for each node its shares of all seeds, 17 bytes each."""
        if not self.on:
            return [bytes(shamir.SHARE * len(seeds))] * nodes
        shares = (shamir.split(seed, threshold, nodes) for seed in seeds)
        return [b"".join(of_node) for of_node in zip(*shares, strict=True)]

    def join(self, shares: Mapping[int, bytes]) -> bytes:
        """Return the seed of shares by place; other bytes if they do not fit together."""
        return shamir.join({i + 1: share for i, share in shares.items()}) if self.on else b""

    def add(
        self, words: Words, own: int, secrets: Mapping[int, bytes], use: bytes, bound: bytes,
        sign: int = 1,
    ) -> None:  # fmt: skip
        """Add the masks of a node at place ``own`` to its words; with ``sign`` -1 remove them.

        ``secrets``: by the other node's place. The first of two nodes adds their mask, the second
        subtracts it. A self mask is the one with itself.
        """
        for place, secret in secrets.items() if self.on else ():
            # The places make masks differ of nodes whose keys are two encodings of one point.
            key = _derive(secret, use + _places(min(own, place), max(own, place)), bound)
            stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor()
            change = np.add if (own <= place) == (sign > 0) else np.subtract
            change(words, np.frombuffer(stream.update(bytes(words.nbytes)), WORD), out=words)


def _derive(secret: bytes, use: bytes, bound: bytes) -> bytes:
    return HKDF(SHA256(), 32, None, use + bound).derive(secret)


def _seal_key(secret: bytes, bound: bytes, way: tuple[int, int]) -> bytes:
    return _derive(secret, SEAL + _places(*way), bound)


def _places(*places: int) -> bytes:
    return b"".join(place.to_bytes(2, "little") for place in places)


def _private(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derive(seed, PRIVATE, b""))


def _exchanged(private: X25519PrivateKey, keys: Sequence[bytes]) -> list[bytes]:
    try:
        return [private.exchange(X25519PublicKey.from_public_bytes(key)) for key in keys]
    except ValueError:
        raise SecureError("a public key is invalid") from None


@lru_cache(maxsize=1 << 16)
def _kept(seed: bytes, key: bytes) -> bytes:
    return _exchanged(_kept_private(seed), [key])[0]


# A private key takes as long as a secret, and a node meets many other keys in one round.
_kept_private = lru_cache(maxsize=1)(_private)
