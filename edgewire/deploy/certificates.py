"""Makes the files with the keys and certificates of the CA, the server and the nodes.

ca.key, ca.crt            of the CA; anyone who has ca.key can impersonate the server
server.key, server.crt    of the server
nodes/NAME.key, .pub      of a node, in OpenSSH's format, which Flower reads

No key is overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgewire.machine.errors import UsageError

CA, SERVER, NODES = "ca", "server", "nodes"
ALWAYS = ("localhost", "127.0.0.1", "::1")  # the server's own processes connect to these names
CA_DAYS, SERVER_DAYS = 3650, 825
SOON = 30  # days before a certificate expires
# A certificate is valid from one day before it is made, because a device's clock may be behind.
EARLIER = datetime.timedelta(days=1)
SECRET, PUBLIC = 0o600, 0o644
HOST = re.compile(r"(?=.{1,253}$)(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.?)+")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def make_ca(keys: Path) -> list[Path]:
    """Make a CA unless one exists; return the paths of the files that were made.

    Raises `UsageError` if a file cannot be written.
    """
    if (keys / f"{CA}.key").exists() and (keys / f"{CA}.crt").exists():
        return []
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "EdgeWire CA")])
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    made = _begun(name, name, key.public_key(), CA_DAYS)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(signs, critical=True)
    certificate = _signed(made, key)
    return [
        write_new(keys / f"{CA}.key", _pem(key), SECRET),
        write_new(keys / f"{CA}.crt", certificate, PUBLIC),
    ]


def make_server(keys: Path, names: list[str], renew: bool = False) -> list[Path]:
    """Make a server's key, and a certificate for its names and addresses; return the paths.

    `renew`: make a new certificate for the existing key. Raises `UsageError` for an invalid name,
    and for a file that cannot be read or written.
    """
    subject = x509.SubjectAlternativeName(alternatives(names))
    ca_key, ca = _ca(keys)
    file, made = keys / f"{SERVER}.key", list[Path]()
    if renew:
        key = private_key(file)
    else:
        key = ec.generate_private_key(ec.SECP384R1())
        made = [write_new(file, _pem(key), SECRET)]
    common = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    uses = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    builder = _begun(common, ca.subject, key.public_key(), SERVER_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(uses, critical=True)
    builder = builder.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    builder = builder.add_extension(subject, critical=False)
    certificate, path = _signed(builder, ca_key), keys / f"{SERVER}.crt"
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    write_new(partial, certificate, PUBLIC)
    os.replace(partial, path)
    return [*made, path]


def make_node(keys: Path, name: str) -> list[Path]:
    """Make a node's key; return the paths of the private and the public key.

    Raises `UsageError` for an invalid name, and for a file that exists or cannot be written.
    """
    private, public = node_files(keys, name)
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    shown = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return [
        write_new(private, secret, SECRET),
        write_new(public, shown + f" {name}\n".encode(), PUBLIC),
    ]


def node_files(keys: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a node's private and public key.

    Raises `UsageError` for an invalid name.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a node: letters, digits, . _ -, a letter or digit first"
        )
    return keys / NODES / f"{name}.key", keys / NODES / f"{name}.pub"


def private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file, in PEM or in OpenSSH's format.

    Raises `UsageError` if the file cannot be read or holds no elliptic-curve key.
    """
    try:
        content = file.read_bytes()
        load = load_ssh_private_key if b"OPENSSH" in content else load_pem_private_key
        key = load(content, None)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{file} is no private key (ssh-keygen -t ecdsa makes one)") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{file} must be an elliptic-curve key (ssh-keygen -t ecdsa)")
    return key


def public_key(keys: Path, name: str) -> bytes:
    """Return a node's public key in PEM, as Flower registers it.

    Raises `UsageError` if the file is missing or holds no key.
    """
    _, file = node_files(keys, name)
    try:
        key = load_ssh_public_key(file.read_bytes())
    except OSError as error:
        raise UsageError(
            f"there is no {file}: `python -m edgewire.deploy.keys node {name}` makes it"
        ) from error
    except ValueError as error:
        raise UsageError(f"{file} is no public key of OpenSSH's form") from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def alternatives(names: list[str]) -> list[x509.GeneralName]:
    """Return the names for the server's certificate: the given names, and the loopback names.

    Raises `UsageError` for an invalid name.
    """
    found: list[x509.GeneralName] = []
    for name in dict.fromkeys([*names, *ALWAYS]):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if not HOST.fullmatch(name) or re.fullmatch(r"[\d.]+", name):
                raise UsageError(f"{name!r} is no name or address of a server") from None
            found.append(x509.DNSName(name))
    return found


def end_of(certificate: Path) -> datetime.datetime:
    """Return when a certificate ends. Raises `OSError` or `ValueError` if it cannot be read."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def write_new(path: Path, content: bytes, mode: int) -> Path:
    """Write a new file with these permissions; return its path.

    Raises `UsageError` if the file exists or cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already, and stays: move it away first") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    with open(handle, "wb") as file:
        os.fchmod(handle, mode)  # the umask may have removed bits
        file.write(content)
    return path


def _ca(keys: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = private_key(keys / f"{CA}.key")
    path = keys / f"{CA}.crt"
    try:
        return key, x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no certificate that can be read") from error


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    begun = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    begun = begun.serial_number(x509.random_serial_number()).not_valid_before(now - EARLIER)
    begun = begun.not_valid_after(now + datetime.timedelta(days=days))
    return begun.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _signed(builder: x509.CertificateBuilder, by: ec.EllipticCurvePrivateKey) -> bytes:
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key())
    signed = builder.add_extension(known, critical=False).sign(by, hashes.SHA384())
    return signed.public_bytes(Encoding.PEM)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
