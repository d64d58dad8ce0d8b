"""Certificates of node keys (X.509, RFC 5280), so that a server cannot invent nodes.

A node signs the run key that it makes for a session with its own lasting key (ECDSA, FIPS 186-5),
and shows the certificate of the lasting key, which a CA has signed that the server does not have. A
proof is the certificate in DER, after its size in two bytes, and the signature.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from .terms import SecureError

CA, OWN, KEY_FILE = OPTIONS = ("secure-ca", "secure-certificate", "secure-key")
# No other signature of such a key is of a text that begins so: Flower's are of times.
STATEMENT = b"EdgeWire secure sum: a node's run key\0"
SIZE = 2  # bytes of a size, little-endian
LONGEST = 4096  # bytes of a proof
PART = 16  # hexadecimal digits


class Credentials:
    """A node's lasting key with its certificate, and the CAs whose certificates it accepts.

    Raises `SecureError` for files that cannot be used, without the names of the files.
    """

    def __init__(self, ca: Path, certificate: Path, key: Path) -> None:
        revoked, option = ca.with_suffix(".crl"), CA
        try:
            self._cas = x509.load_pem_x509_certificates(ca.read_bytes())
            lists = [x509.load_pem_x509_crl(revoked.read_bytes())] if revoked.exists() else []
            keys = [ca.public_key() for ca in self._cas]
            self._revoked = {
                each.serial_number
                for found in lists
                if any(found.is_signature_valid(key) for key in keys)
                for each in found
            }
            option = OWN
            self._own = x509.load_pem_x509_certificate(certificate.read_bytes())
            option, content = KEY_FILE, key.read_bytes()
            load = load_ssh_private_key if b"OPENSSH" in content else load_pem_private_key
            private = load(content, None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            reason = getattr(error, "strerror", None) or "it is none, or is encrypted"
            raise SecureError(f"the file that this node's {option}= names: {reason}") from None
        if not isinstance(private, EllipticCurvePrivateKey) or (
            private.public_key() != self._own.public_key()
        ):
            raise SecureError(f"this node's {OWN}= is not the certificate of its {KEY_FILE}=")
        self._key = private

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Credentials | None:
        """Read the files that a node's configuration names; None if it names none.

        Raises `SecureError` also if it names some of them.
        """
        given = [str(node_config.get(name) or "") for name in OPTIONS]
        if not any(given):
            return None
        if not all(given):
            raise SecureError(f"this node needs all of {', '.join(OPTIONS)}, or none")
        return cls(*(Path(each).expanduser() for each in given))

    def proof(self, run: bytes, run_key: bytes) -> bytes:
        """Return the proof that a run key of the session ``run`` is this node's."""
        shown = self._own.public_bytes(Encoding.DER)
        signature = self._key.sign(STATEMENT + run + run_key, ECDSA(SHA384()))
        return len(shown).to_bytes(SIZE, "little") + shown + signature

    def holder(self, proof: bytes, run: bytes, run_key: bytes) -> str:
        """Return whose a run key is: a part of the lasting key, a space, the certificate's subject.

        For a proof that does not hold it is a space and the reason.
        """
        try:
            return self._holder(proof, run, run_key)
        except SecureError as error:
            return f" {error}"

    def _holder(self, proof: bytes, run: bytes, run_key: bytes) -> str:
        if not proof:
            raise SecureError("a node has no certificate: `keys node --renew NAME` makes one")
        end = SIZE + int.from_bytes(proof[:SIZE], "little")
        shown, key = _opened(proof[SIZE:end])
        signers = [ca for ca in self._cas if shown is not None and _is_issued(shown, ca)]
        if shown is None or not signers:
            raise SecureError("a node's certificate is none of this node's CA for nodes")
        name = " ".join(shown.subject.rfc4514_string().split())
        if not (_is_valid(shown) and any(map(_is_valid, signers))):
            raise SecureError(f"the certificate of {name} or its CA's has expired, or begins later")
        if shown.serial_number in self._revoked:
            raise SecureError(f"the certificate of {name} is revoked")
        try:
            key.verify(proof[end:], STATEMENT + run + run_key, ECDSA(SHA384()))
        except InvalidSignature:
            raise SecureError(f"{name} has not signed this key for this run") from None
        return f"{key.public_numbers().x:x}"[:PART] + f" {name}"


def expect_holders(holders: Sequence[str]) -> None:
    """Raise `SecureError` unless each key of a roster has a holder, and each another one."""
    seen = set[str]()
    for holder in holders:
        part, _, name = holder.partition(" ")
        if not part:
            raise SecureError(name)
        if seen.intersection([part, name]):
            raise SecureError(f"two keys of the roster are of one certificate: {name}")
        seen.update([part, name])


def _opened(der: bytes) -> tuple[x509.Certificate, PublicKey] | tuple[None, None]:
    """Return a certificate for a node, and its key; (None, None) for any other bytes."""
    try:
        shown = x509.load_der_x509_certificate(der)
        key = shown.public_key()
        uses = shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return None, None
    # The server has a certificate of the same CA, which is not for a client.
    is_node = ExtendedKeyUsageOID.CLIENT_AUTH in uses and isinstance(key, PublicKey)
    return (shown, key) if is_node else (None, None)


def _is_issued(shown: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        shown.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_valid(certificate: x509.Certificate) -> bool:
    now = datetime.datetime.now(datetime.UTC)
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
