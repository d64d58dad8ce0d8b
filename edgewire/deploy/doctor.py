"""Checks what a start of a node or of the server would not name.

    python -m edgewire.deploy.doctor --superlink my.server.org:8000 ...   a node's options
    python -m edgewire.deploy.doctor --server                              on the server's machine

It prints one line per check: ok, warning or wrong, and what to do. It changes nothing, on this
machine and on the server. The exit code is 0 if no line says wrong. The doctor does not check what
the start of a node or of the server names in one line by itself: a folder that cannot be written, a
port in use, a missing package, a wrong option. `python -m edgewire.deploy.keys list` says whether
the server runs, and which nodes are online.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from edgewire.deploy import node  # the first: it reports a missing Flower in one line
from edgewire.deploy.certificates import CA, SOON, is_issued, names_in, private_key
from edgewire.deploy.device.backoff import WORTH_WAITING, clock_trouble, reason_of
from edgewire.deploy.device.client import (
    BUNDLED,
    FleetClient,
    ServerRefusal,
    ahead_of,
    says_bundled,
)
from edgewire.deploy.server.server import key_files
from edgewire.deploy.server.server import parser as server_parser
from edgewire.machine.errors import UsageError
from edgewire.machine.proxies import by_proxy
from edgewire.machine.surroundings import free_memory, print_any_text

PROG = "python -m edgewire.deploy.doctor"
SERVER = "--server"
OK, WARNING, WRONG = "ok", "warning", "wrong"
NODE_MEMORY = 600 << 20, 250 << 20  # bytes for a node with a small model: enough, and the least
SERVER_MEMORY = 1 << 30, 400 << 20  # bytes for the SuperLink and a ServerApp
STATUS = "edgewire/status"
REGISTER = "`python -m edgewire.deploy.keys register NAME`, on the server"
DEVICES, GPUS = Path("/dev"), ("nvidia[0-9]*", "nvhost-gpu*", "nvgpu*")
RENEW = "`python -m edgewire.deploy.keys server --renew NAME`, on the server"


class Finding(NamedTuple):
    """One line of the doctor: the level, what was checked, and the result or the advice."""

    level: str
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<8} {self.what:<12} {' '.join(self.text.split())}"


Check = Callable[[argparse.Namespace], Iterable[Finding]]  # a function of the options


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; return the exit code: 1 if anything is wrong, else 0."""
    print_any_text()
    given = list(sys.argv[1:] if arguments is None else arguments)
    wrong = False
    for finding in _findings(given):
        print(finding, flush=True)
        wrong = wrong or finding.level == WRONG
    return int(wrong)


def _findings(given: list[str]) -> Iterable[Finding]:
    """Yield the findings of all checks, in order. An exception in a check becomes a finding."""
    checks: tuple[Check, ...] = (memory, torch_of_node, data, key, server_of_node)
    if SERVER in given:
        checks = (memory, data_of_server, certificate_of_server)
        words = [each for each in given if each != SERVER]
        options = server_parser(f"{PROG} {SERVER}").parse_known_args(words)[0]
    else:
        options = _node_options(given)
    for check in checks:
        what = check.__name__.partition("_")[0]
        try:
            yield from check(options)
        except UsageError as error:  # the start of the node would give this line, too
            yield Finding(WRONG, what, str(error))
        except Exception as error:
            yield Finding(WRONG, what, f"this check failed: {type(error).__name__}: {error}")


def _node_options(given: list[str]) -> argparse.Namespace:
    text, _, more = (__doc__ or "").partition("\n\n")
    made = node.parser(PROG, text)
    made.epilog, made.formatter_class = more, argparse.RawDescriptionHelpFormatter
    made.add_argument(SERVER, action="store_true", help="check the server's machine")
    options = made.parse_args(given)
    options.state = options.state.expanduser()
    return options


# Any machine.


def memory(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the free memory."""
    enough, least = NODE_MEMORY if hasattr(options, "superlink") else SERVER_MEMORY
    free = free_memory()
    if free is None:
        yield Finding(WARNING, "memory", "this system does not say how much is free")
    elif free >= enough:
        yield Finding(OK, "memory", f"{free >> 20} MB are free")
    else:
        text = f"{free >> 20} MB are free: {enough >> 20} MB are wanted; add swap, for example"
        yield Finding(WARNING if free >= least else WRONG, "memory", text)


def lasting(name: str, certificate: x509.Certificate, renew: str) -> Finding:
    """Check whether a certificate is valid now.

    `name`: what the line calls it, before the names and addresses for which it is valid; `renew`:
    the advice for a certificate that has expired or soon expires.
    """
    if names := names_in(certificate):
        name += ", for " + ", ".join(str(each.value) for each in names)
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    level, text = OK, f"{name}, until {ends:%Y-%m-%d}"
    if begins > now:
        level, text = WRONG, f"{name} is valid from {begins:%Y-%m-%d} on: set the clock"
    elif ends <= now:
        level, text = WRONG, f"{name} has ended on {ends:%Y-%m-%d}: {renew}"
    elif (days := (ends - now).days) < SOON:
        level, text = WARNING, f"{name} ends in {days} days: {renew}"
    return Finding(level, "certificate", text)


def _secret(file: Path, what: str) -> Iterable[Finding]:
    """Yield a warning if other users may read a key file."""
    if file.stat().st_mode & 0o077:
        yield Finding(WARNING, what, f"others may read {file}: chmod 600 {file}")


# A device.


def torch_of_node(options: argparse.Namespace) -> Iterable[Finding]:
    """Warn of a torch with CUDA on a device without a GPU."""
    found = find_spec("torch")  # to import it would take seconds
    said = Path(found.origin).with_name("version.py") if found and found.origin else None
    cuda = re.search(r"^cuda\b.*= '(.+)'", said.read_text() if said else "", re.MULTILINE)
    if cuda and not any(list(DEVICES.glob(name)) for name in GPUS):
        text = f"it has CUDA {cuda[1]}, and no GPU is here: torch for CPUs takes 4.8 GB less disk "
        yield Finding(WARNING, "torch", text + '(docs/deploy.md, "A device")')


def data(options: argparse.Namespace) -> Iterable[Finding]:
    """Check that the node's training data can be read."""
    config = node.node_config_of(options.node_config)
    if "data" in config:
        yield own_data(Path(str(config["data"])).expanduser())
    elif "partition-id" in config:
        yield Finding(OK, "data", f"partition {config['partition-id']} of the run's data set")
    else:
        advice = "'data=\"/its/folder\"', or 'partition-id=0 num-partitions=2' for a part of a "
        yield Finding(WRONG, "data", f"none: give --node-config {advice}data set that is here")


def own_data(path: Path) -> Finding:
    """Check a node's own data: a file that can be read, or a folder that holds something."""
    try:
        if path.is_file():
            with path.open("rb"):
                return Finding(OK, "data", f"{path}: a file of {path.stat().st_size >> 10} kB")
        count = len(os.listdir(path))
    except OSError as error:
        return Finding(WRONG, "data", f"{path} cannot be read: {error.strerror}")
    if not count:
        return Finding(WRONG, "data", f"{path} is empty: put the data there, or give another data=")
    return Finding(OK, "data", f"{path} holds {count} files and folders")


def key(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the node's key."""
    found = _key_in_use(options)
    if found is None:
        yield Finding(OK, "key", "the node makes its own at its first start")
    else:
        yield from list(_secret(found[1], "key")) or [Finding(OK, "key", str(found[1]))]


def _key_in_use(options: argparse.Namespace) -> tuple[ec.EllipticCurvePrivateKey, Path] | None:
    """Return the node's key and its file; None if the node will make a key.

    Raises `UsageError` if the file holds no such key.
    """
    if (file := options.auth_supernode_private_key) is not None:
        return private_key(file.expanduser()), file.expanduser()
    own: Path = options.state / "key"
    return (private_key(own), own) if own.exists() else None


def server_of_node(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the server, through a node's client; stop if the server cannot be reached."""
    found = None
    with suppress(UsageError):  # the check of the key reports these
        found = _key_in_use(options)
    fleet = node.client_of(options, found[0] if found else ec.generate_private_key(ec.SECP384R1()))
    with closing(fleet):
        if (file := options.root_certificates) is not None:
            authorities = x509.load_pem_x509_certificates(file.expanduser().read_bytes())
            advice = "make a new CA on the server"
            yield from {lasting(f"the CA's, {file}", ca, advice): None for ca in authorities}
        try:
            first = fleet.get(BUNDLED)
        except WORTH_WAITING as error:
            yield Finding(WRONG, "server", reason_of(error, fleet))
            return
        if first.status_code not in (200, 404):
            yield Finding(WRONG, "server", reason_of(ServerRefusal(first), fleet))
            return
        where = fleet.address + by_proxy(fleet.address, fleet.secure)
        if says_bundled(first):
            yield Finding(OK, "server", f"{where} is there, and takes bundles")
        else:
            text = f"{where} is there, and slower than edgewire.deploy.server: no bundles"
            yield Finding(WARNING, "server", text)
        if fleet.secure:  # the client has accepted the server's certificate
            shown = first.extensions["network_stream"].get_extra_info("ssl_object")
            certificate = x509.load_der_x509_certificate(shown.getpeercert(True) or b"")
            yield lasting("the server's", certificate, RENEW)
        ahead = ahead_of(first) or 0.0
        if (trouble := clock_trouble(ahead)) is not None:
            yield Finding(WRONG, "clock", trouble)
            return
        yield Finding(OK, "clock", f"within {max(abs(ahead), 1):.0f} s of the server's")
        if found is None:
            yield Finding(OK, "registered", "not yet: the node registers its key itself")
        else:
            yield from _registered(fleet, options, bundled=says_bundled(first))


def _registered(
    fleet: FleetClient, options: argparse.Namespace, *, bundled: bool
) -> Iterable[Finding]:
    """Check whether the server knows this node's key."""
    response = fleet.get(STATUS) if bundled else None
    if response is None or response.status_code == 404:  # Flower's SuperLink, or an older server
        text = "this server does not say; the node's log says whether it takes the key"
        yield Finding(WARNING, "registered", text)
        return
    if response.status_code != 200:
        yield Finding(WRONG, "registered", reason_of(ServerRefusal(response), fleet))
        return
    said: dict[str, Any] = response.json()
    if said.get("registered"):
        yield Finding(OK, "registered", f"as {said.get('name') or said.get('node')}")
    elif options.auth_supernode_private_key is not None:
        yield Finding(WRONG, "registered", f"the server does not know this node's key: {REGISTER}")
    else:
        text = "the server does not know this node's own key: it takes it with --any-node"
        yield Finding(WARNING, "registered", text)


# The server's machine.


def data_of_server(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the data on which the server evaluates its models."""
    folder = options.data or Path("data")
    if folder.is_dir() and os.access(folder, os.R_OK):
        yield Finding(OK, "data", f"runs may read below {folder}")
    elif options.data is not None:
        yield Finding(WRONG, "data", f"--data {folder} is no folder that can be read")
    else:
        yield Finding(WARNING, "data", f"there is no {folder}: only digits needs none")


def certificate_of_server(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the CA, the server's certificate and its key."""
    if options.insecure:
        return
    ca_file, (file, key_file) = options.keys / f"{CA}.crt", key_files(options)
    try:
        own = x509.load_pem_x509_certificate(file.read_bytes())
        authorities = x509.load_pem_x509_certificates(ca_file.read_bytes())
        yield from _secret(key_file, "certificate")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, key_file, lambda: "")
        if not any(is_issued(own, ca) for ca in authorities):
            raise ValueError(f"{file} is not signed by {ca_file}")
    except (OSError, ValueError) as error:
        reason = str(error)
        advice = f"`python -m edgewire.deploy.keys server NAME` makes certificates; or {RENEW}"
        yield Finding(WRONG, "certificate", f"{reason}: {advice}")
        return
    yield lasting("the server's", own, RENEW)
    advice = "`python -m edgewire.deploy.keys ca` makes another"
    yield from {lasting("the CA's", ca, advice): None for ca in authorities}  # equal lines once


if __name__ == "__main__":
    sys.exit(main())
