"""Certificates of node keys (X.509, RFC 5280), so that a server cannot invent nodes.

A node signs the run key that it makes for a session with its own lasting key (ECDSA, FIPS 186-5),
and shows the certificate of the lasting key, which a CA has signed that the server does not have. A
proof is the certificate in DER, after its size in two bytes, and the signature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from .terms import SecureError

CA, *_ = OPTIONS = "secure-ca", "secure-certificate", "secure-key"
# No other signature of such a key is of a text that begins so: Flower's are of times.
STATEMENT = b"EdgeWire secure sum: a node's run key\0"
SIZE = 2  # bytes of a size, little-endian
LONGEST = 4096  # bytes of a proof
PART = 16  # hexadecimal digits


class Credentials:
    """A node's lasting key and its certificate, and the CAs whose certificates the node accepts.

    A file NAME.crl beside that of the CAs, NAME.crt, lists revoked certificates. Raises
    `SecureError` for files that cannot be used; it does not name them.
    """

    def __init__(self, ca: Path, certificate: Path, key: Path) -> None:
        revoked = ca.with_suffix(".crl")
        try:
            self._cas = x509.load_pem_x509_certificates(ca.read_bytes())
            listed = x509.load_pem_x509_crl(revoked.read_bytes()) if revoked.exists() else None
            shown = x509.load_pem_x509_certificate(certificate.read_bytes())
            content = key.read_bytes()
            load = load_ssh_private_key if b"OPENSSH" in content else load_pem_private_key
            private: Any = load(content, None)
            private.sign(b"", ec.ECDSA(SHA384()))  # raises for a key of another kind
        except Exception as error:  # a damaged file may raise anything
            reason = getattr(error, "strerror", None)
            reason = reason or "a file is damaged or encrypted, or the key has no elliptic curve"
            raise SecureError(f"{', '.join(OPTIONS)} of this node: {reason}") from None
        if private.public_key() != shown.public_key():
            raise SecureError("secure-certificate of this node is of another key than secure-key")
        # Its signature does not matter: a forged list could only refuse more.
        self._revoked = {each.serial_number for each in listed or ()}
        self._key, self._shown = private, shown.public_bytes(Encoding.DER)

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Credentials | None:
        """Read the files that a node's configuration names; None if it names none.

        Raises `SecureError` also if it names some of them.
        """
        given = [str(node_config[name]) for name in OPTIONS if node_config.get(name)]
        if len(given) not in (0, len(OPTIONS)):
            raise SecureError(f"this node needs all of {', '.join(OPTIONS)}, or none")
        return cls(*(Path(each).expanduser() for each in given)) if given else None

    def proof(self, run: bytes, run_key: bytes) -> bytes:
        """Return the proof that a run key of the session ``run`` is this node's."""
        signature: bytes = self._key.sign(STATEMENT + run + run_key, ec.ECDSA(SHA384()))
        return len(self._shown).to_bytes(SIZE, "little") + self._shown + signature

    def holder(self, proof: bytes, run: bytes, run_key: bytes) -> str:
        """Return whose a run key is: a part of the lasting key, a space, the certificate's subject.

        For a proof that does not hold it is a space and the reason. Both are one printable line.
        """
        if not 0 < len(proof) <= LONGEST:
            return " a node has no certificate: `keys node --renew NAME` makes one"
        end, name = SIZE + int.from_bytes(proof[:SIZE], "little"), ""
        try:
            shown = x509.load_der_x509_certificate(proof[SIZE:end])
            key: Any = shown.public_key()
            name = ascii(shown.subject.rfc4514_string())[:100]
            # The server has a certificate of the same CA, but not for a client.
            PolicyBuilder().store(Store(self._cas)).build_client_verifier().verify(shown, [])
            if shown.serial_number in self._revoked:
                return f" the certificate of {name} is revoked"
            key.verify(proof[end:], STATEMENT + run + run_key, ec.ECDSA(SHA384()))
        except VerificationError as error:
            reason = str(error).partition(" (")[0]
            return f" the certificate of {name} is not valid for this node's CA: {reason!a}"
        except InvalidSignature:
            return f" {name} has not signed this key for this run"
        except Exception:  # hostile bytes may raise anything
            return " a node's certificate cannot be read"
        return f"{key.public_numbers().x:x}"[:PART] + f" {name}"


def expect_holders(holders: Sequence[str]) -> None:
    """Raise `SecureError` unless each key of a roster has a holder, and each another one."""
    seen = set[str]()
    for part, _, name in (holder.partition(" ") for holder in holders):
        if not part or seen.intersection([part, name]):
            raise SecureError(f"two keys of the roster are of {name}" if part else name)
        seen.update([part, name])
