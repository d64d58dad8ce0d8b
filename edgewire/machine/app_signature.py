"""Signs the bundle of an app, so that nodes take the apps of their owner alone.

Flower's SuperLink drops the field `Fab.verifications` of an app that is submitted. So the signature
is the comment of the bundle, a zip file: the time of signing (8 bytes, big-endian, seconds since
1970), and 64 bytes of Ed25519. What is signed is what Flower signs: the time, and the SHA-256 of
the bundle without a comment. The file app.sig in the app's folder is a record: the comment, and
this SHA-256.
"""

from __future__ import annotations

import hashlib
import time
from logging import getLogger
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives import asymmetric_ed25519 as ed25519

from edgewire.machine.errors import UsageError

FILE = "app.sig"
SIZE = 72  # bytes of a comment
_LENGTH = SIZE.to_bytes(2, "little")  # a zip file has the length before the comment
NO_KEY = "is no key of `ssh-keygen -t ed25519 -N ''`"
log = getLogger("edgewire")


def owner_key(file: Path) -> Ed25519PublicKey:
    """Return the public key in a file of OpenSSH's. Raises `UsageError` if it holds none."""
    try:
        key = load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{file} {NO_KEY}: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{file} {NO_KEY}")
    return key


def sign(app_dir: Path, bundle: bytes, file: Path) -> Path:
    """Sign a bundle by the private key in a file; return the path of app.sig.

    Raises `UsageError` if there is no such key.
    """
    try:
        key = ed25519.load_private_key(file)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{file} {NO_KEY}: {error}") from error
    digest, now = hashlib.sha256(unsigned(bundle)).digest(), int(time.time())
    text = ed25519.create_message_to_sign(digest, now)
    (app_dir / FILE).write_bytes(text[:8] + ed25519.sign_message(key, text) + digest)
    return app_dir / FILE


def with_signature(app_dir: Path, bundle: bytes) -> bytes:
    """Return a bundle without a comment with that of app.sig; warn if this signs another one."""
    if not (app_dir / FILE).exists():
        return bundle
    record = (app_dir / FILE).read_bytes()
    if record[SIZE:] != hashlib.sha256(bundle).digest():
        log.warning("%s signs another app: `python -m edgewire.deploy.keys sign`", FILE)
        return bundle
    return bundle[:-2] + _LENGTH + record[:SIZE]


def record_of(bundle: bytes) -> bytes:
    """Return the record of a bundle. It means nothing if the bundle is not signed."""
    return bundle[-SIZE:] + hashlib.sha256(unsigned(bundle)).digest()


def signed_at(record: bytes, owner: Ed25519PublicKey) -> int | None:
    """Return when the owner has signed a bundle, in seconds since 1970; None if he has not."""
    if ed25519.verify_signature(owner, record[:8] + record[SIZE:], record[8:SIZE]):
        return int.from_bytes(record[:8], "big")
    return None


def unsigned(bundle: bytes) -> bytes:
    """Return a bundle without its signature, if it has one."""
    head = bundle[: -SIZE - 2]
    return head + b"\0\0" if bundle[len(head) :][:2] == _LENGTH else bundle
