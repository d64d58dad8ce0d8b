"""Makes the files with the keys and certificates of the CA, the server and the nodes.

ca.key, ca.crt            of the CA; anyone who has ca.key can impersonate the server
ca.old-NUMBER.key, cross.crt    while two CAs are in ca.crt: the old key, and see `make_next_ca`
server.key, server.crt    of the server
ca.crl                    the certificates of nodes that are revoked
nodes/NAME.key, .pub      of a node, in OpenSSH's format, which Flower reads
nodes/NAME.crt            its certificate, which it shows to other nodes in a secure sum

No key is overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgewire.machine.errors import UsageError

CA, SERVER, NODES, CROSS, CRL = "ca", "server", "nodes", "cross.crt", "ca.crl"
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
    missing = [path for path in (keys / f"{CA}.key", keys / f"{CA}.crt") if not path.exists()]
    if not missing:
        return []
    if len(missing) == 1:
        raise UsageError(f"{missing[0]} is not there: put it back, because it belongs to the CA")
    key = ec.generate_private_key(ec.SECP384R1())
    return [
        write_new(keys / f"{CA}.key", _pem(key), SECRET),
        write_new(keys / f"{CA}.crt", _ca_certificate(key, key), PUBLIC),
    ]


def make_next_ca(keys: Path) -> list[Path]:
    """Make a CA beside the old one, for new certificates; return the paths.

    ca.crt holds both, the new one first. cross.crt is the new CA's key, signed by the old CA: the
    server sends it, so that nodes which know one of the CAs alone accept its next certificate.
    Raises `UsageError` if there are two CAs already, and for files that cannot be read or written.
    """
    if (keys / CROSS).exists():
        raise UsageError("there are two CAs already: `ca --drop-old` ends the old one")
    old_key, old = _ca(keys)
    key = ec.generate_private_key(ec.SECP384R1())
    both = _ca_certificate(key, key) + old.public_bytes(Encoding.PEM)
    return _replaced(
        (keys / f"{CA}.old-{old.serial_number:x}.key", _pem(old_key), SECRET),
        (keys / CROSS, _ca_certificate(key, old_key), PUBLIC),
        (keys / f"{CA}.key", _pem(key), SECRET),
        (keys / f"{CA}.crt", both, PUBLIC),
    )


def drop_old_ca(keys: Path) -> list[Path]:
    """Remove the old CA from ca.crt; return the path.

    Raises `UsageError` if the server's certificate is still one of the old CA.
    """
    _, ca = _ca(keys)
    if not is_issued(certificate_in(keys / f"{SERVER}.crt"), ca):
        raise UsageError("the server's certificate is the old CA's: first `server --renew NAME`")
    made = _replaced((keys / f"{CA}.crt", ca.public_bytes(Encoding.PEM), PUBLIC))
    (keys / CROSS).unlink(missing_ok=True)
    return made


def make_server(keys: Path, names: list[str], renew: bool = False) -> list[Path]:
    """Make a server's key, and a certificate for its names and addresses; return the paths.

    `renew`: make a new certificate for the existing key; it also has the names of the one before.
    Raises `UsageError` for an invalid name, and for a file that cannot be read or written.
    """
    subject, before = alternatives(names), keys / f"{SERVER}.crt"
    ca_key, ca = _ca(keys)
    file, made = keys / f"{SERVER}.key", list[Path]()
    if renew:
        key = private_key(file)
        old = names_in(certificate_in(before)) if before.exists() else []
        subject += [name for name in old if name not in subject]
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
    builder = builder.add_extension(x509.SubjectAlternativeName(subject), critical=False)
    cross = keys / CROSS
    certificate = _signed(builder, ca_key) + (cross.read_bytes() if cross.exists() else b"")
    return [*made, *_replaced((keys / f"{SERVER}.crt", certificate, PUBLIC))]


def make_node(keys: Path, name: str) -> list[Path]:
    """Make a node's key and its certificate (`certify_node`); return the paths.

    Without the CA's key, which may be elsewhere, it makes no certificate. Raises `UsageError` for
    an invalid name, and for a file that exists or cannot be written.
    """
    private, public = node_files(keys, name)
    secret, shown = new_key()
    made = [write_new(private, secret, SECRET)]
    try:
        made.append(write_new(public, shown + f" {name}\n".encode(), PUBLIC))
        return made + (certify_node(keys, name) if (keys / f"{CA}.key").exists() else [])
    except UsageError:
        for file in made:
            file.unlink()
        raise


def certify_node(keys: Path, name: str) -> list[Path]:
    """Make a certificate for a node's public key; return its path.

    Raises `UsageError` for an invalid name, and for a file that cannot be read or written.
    """
    key = load_pem_public_key(public_key(keys, name))
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError(f"the key of {name} must be an elliptic-curve key (ssh-keygen -t ecdsa)")
    ca_key, ca = _ca(keys)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _begun(subject, ca.subject, key, CA_DAYS)
    # The server's certificate is not for clients, so the server cannot use it as a node's.
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    for each in (uses, x509.SubjectAlternativeName([x509.DNSName(name)])):
        builder = builder.add_extension(each, critical=False)
    return _replaced((certificate_file(keys, name), _signed(builder, ca_key), PUBLIC))


def revoke_certificate(keys: Path, name: str) -> list[Path]:
    """Add a node's certificate to ca.crl; return the path, and none without the CA's key.

    Raises `UsageError` for an invalid name, and for a file that cannot be read or written.
    """
    file, before = certificate_file(keys, name), keys / CRL
    if not (keys / f"{CA}.key").exists():
        return []
    ca_key, ca = _ca(keys)
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateRevocationListBuilder().issuer_name(ca.subject).last_update(now)
    made = made.next_update(now + datetime.timedelta(days=CA_DAYS))
    numbers = {certificate_in(file).serial_number}
    if before.exists():
        numbers |= {each.serial_number for each in x509.load_pem_x509_crl(before.read_bytes())}
    for number in sorted(numbers):
        revoked = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
        made = made.add_revoked_certificate(revoked.build())
    content = made.sign(ca_key, hashes.SHA384()).public_bytes(Encoding.PEM)
    return _replaced((before, content, PUBLIC))


def new_key() -> tuple[bytes, bytes]:
    """Return a new private key of a node and its public key, in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return secret, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def node_files(keys: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a node's private and public key.

    Raises `UsageError` for an invalid name.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a node: letters, digits, . _ -, a letter or digit first"
        )
    return keys / NODES / f"{name}.key", keys / NODES / f"{name}.pub"


def certificate_file(keys: Path, name: str) -> Path:
    """Return the path of a node's certificate. Raises `UsageError` for an invalid name."""
    return node_files(keys, name)[0].with_suffix(".crt")


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


def certificate_in(file: Path) -> x509.Certificate:
    """Return the first certificate in a file. Raises `UsageError` if there is none."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is no certificate that can be read") from error


def names_in(certificate: x509.Certificate) -> list[x509.GeneralName]:
    """Return the names and addresses that a certificate is valid for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound):
        return []
    return list(found.value)


def is_issued(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    """Return whether a certificate is signed by this CA."""
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


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
    try:
        with open(handle, "wb") as file:
            os.fchmod(handle, mode)  # the umask may have removed bits
            file.write(content)
            file.flush()
            os.fsync(handle)
    except OSError as error:
        path.unlink()
        raise UsageError(f"{path}: {error.strerror}") from error
    return path


def _replaced(*files: tuple[Path, bytes, int]) -> list[Path]:
    """Write files, each with its content and permissions; return their paths.

    None is replaced before all are on the disk. Raises `UsageError` if one cannot be written.
    """
    parts = list[Path]()
    try:
        for path, content, mode in files:
            (part := path.with_name(f"{path.name}.part")).unlink(missing_ok=True)
            parts.append(write_new(part, content, mode))
    except UsageError:
        for part in parts:
            part.unlink()
        raise
    return [part.replace(path) for part, (path, _, _) in zip(parts, files, strict=True)]


def _ca(keys: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key, certificate = private_key(keys / f"{CA}.key"), certificate_in(keys / f"{CA}.crt")
    if key.public_key() != certificate.public_key():
        raise UsageError(f"{keys / CA}.key is not the key of {CA}.crt: put the right one back")
    return key, certificate


def _ca_certificate(key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a CA's certificate in PEM. `key`: the CA's; `by`: that of the CA which signs it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "EdgeWire CA")])
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    made = _begun(name, name, key.public_key(), CA_DAYS)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _signed(made.add_extension(signs, critical=True), by)


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
