"""The cryptography of the secure sum: keys, sealed shares and masks.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), AES-SIV (RFC 5297) and ChaCha20 (RFC 8439), all of the
package `cryptography`. `Primitives` has all functions, and `NoPrimitives` their stand-ins for
simulation without masks.
"""

from __future__ import annotations

import os
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

PLAIN = 2 * shamir.SHARE  # bytes: a share of the self mask's seed, then one of the mask key's seed
SEALED = 16 + PLAIN
SELF, PAIR, BARE, SEAL = b"self mask", b"pair mask", b"bare mask", b"sealed share"


class Primitives:
    """Makes keys, seals shares and adds masks.

    A seed is the secret of an X25519 key. ``bound`` is the round's `binding`.
    """

    def public_key(self, seed: bytes) -> bytes:
        """Return the public key of 32 bytes of a seed."""
        return _private(seed).public_key().public_bytes_raw()

    def pair_secrets(self, seed: bytes, keys: Sequence[bytes]) -> list[bytes]:
        """Return the secrets that the owner of ``seed`` has with the owners of public keys.

        Raises `SecureError` for a public key with which the secret would be known to everyone.
        """
        private = _private(seed)
        return [_exchange(private, key) for key in keys]

    def run_secret(self, seed: bytes, key: bytes) -> bytes:
        """Return one pair's secret of the whole run, as `pair_secrets`; this process keeps it."""
        return _run_secret(seed, key)

    def seal(self, secret: bytes, bound: bytes, way: tuple[int, int], shares: bytes) -> bytes:
        """Encrypt a node's two shares for another node; ``way``: both places in the roster.

        AES-SIV stays safe if a node that lost its state seals other shares under the same key.
        """
        return AESSIV(_derive(secret, SEAL, bound, way)).encrypt(shares, [bound])

    def open(self, secret: bytes, bound: bytes, way: tuple[int, int], sealed: bytes) -> bytes:
        """Decrypt what `seal` returned; raises `SecureError` if it was sealed for another round."""
        try:
            return AESSIV(_derive(secret, SEAL, bound, way)).decrypt(sealed, [bound])
        except (InvalidTag, ValueError):
            raise SecureError(
                "a share does not open: nodes were shown different keys, rosters or terms"
            ) from None

    def split(self, secret: bytes, threshold: int, nodes: int) -> list[bytes]:
        """Return the shares of a secret, one for each node of the roster."""
        return shamir.split(secret, threshold, nodes)

    def join(self, shares: Mapping[int, bytes]) -> bytes:
        """Return the secret of shares by the nodes' places in the roster."""
        return shamir.join({place + 1: share for place, share in shares.items()})

    def add_mask(
        self, words: Words, secret: bytes, purpose: bytes, bound: bytes, sign: int = 1
    ) -> None:
        """Add the mask of a secret to the words, in place; ``sign``: -1 subtracts it."""
        key = _derive(secret, purpose, bound)
        stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(words.nbytes))
        change = np.add if sign > 0 else np.subtract
        change(words, np.frombuffer(stream, WORD), out=words)


class NoPrimitives(Primitives):
    """The same messages without cryptography: keys are random bytes, shares and masks zeros."""

    def public_key(self, seed: bytes) -> bytes:
        """Return 32 bytes that only name the seed."""
        return seed.ljust(KEY, b"\0")

    def pair_secrets(self, seed: bytes, keys: Sequence[bytes]) -> list[bytes]:
        """Return empty secrets."""
        return [b""] * len(keys)

    def run_secret(self, seed: bytes, key: bytes) -> bytes:
        """Return an empty secret."""
        return b""

    def seal(self, secret: bytes, bound: bytes, way: tuple[int, int], shares: bytes) -> bytes:
        """Return zeros."""
        return bytes(SEALED)

    def open(self, secret: bytes, bound: bytes, way: tuple[int, int], sealed: bytes) -> bytes:
        """Return zeros."""
        return bytes(PLAIN)

    def split(self, secret: bytes, threshold: int, nodes: int) -> list[bytes]:
        """Return zeros."""
        return [bytes(shamir.SHARE)] * nodes

    def join(self, shares: Mapping[int, bytes]) -> bytes:
        """Return zeros."""
        return bytes(shamir.SECRET)

    def add_mask(
        self, words: Words, secret: bytes, purpose: bytes, bound: bytes, sign: int = 1
    ) -> None:
        """Do nothing."""


def primitives(masks: bool) -> Primitives:
    """Return the cryptography, or without ``masks`` its stand-ins."""
    return Primitives() if masks else NoPrimitives()


def new_seed(size: int = shamir.SECRET) -> bytes:
    """Return random bytes from the operating system."""
    return os.urandom(size)


def add_pair_masks(
    crypto: Primitives, words: Words, own: int, peers: Mapping[int, bytes], purpose: bytes,
    bound: bytes, sign: int = 1,
) -> None:  # fmt: skip
    """Add the masks that the node at place ``own`` has with others, in place.

    ``peers``: secrets by place. Of two nodes the first adds the mask, and the second subtracts it.
    """
    for place, secret in peers.items():
        crypto.add_mask(words, secret, purpose, bound, sign if own < place else -sign)


def _private(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derive(seed, b"x25519", b""))


def _exchange(private: X25519PrivateKey, key: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:  # of a point of low order
        raise SecureError("a public key of the roster is not a valid one") from None


@lru_cache(maxsize=1 << 16)
def _run_secret(seed: bytes, key: bytes) -> bytes:
    return _exchange(_private(seed), key)


def _derive(secret: bytes, purpose: bytes, bound: bytes, way: tuple[int, int] = (0, 0)) -> bytes:
    """Return a key of 32 bytes for one purpose, binding and direction."""
    info = purpose + bound + way[0].to_bytes(2, "little") + way[1].to_bytes(2, "little")
    return HKDF(SHA256(), 32, None, info).derive(secret)
