"""The checks of `deploy.doctor` on the server's machine."""

from __future__ import annotations

import argparse
import os
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from flwr.proto.control_pb2 import ListNodesRequest

from conf.submitted_runs import OUTPUT
from deploy.certificates import CA, SERVER
from deploy.findings import (
    OK,
    WARNING,
    WRONG,
    Finding,
    enough_memory,
    free_memory,
    lasting,
    names_of,
    secret,
)
from deploy.keys import GONE
from deploy.server.flower_api import expect_handlers
from deploy.server.node_registry import ONLINE, load
from deploy.server.server import EXTENSIONS, NODES, has_place, is_local, module, output_of
from launch.superlink_client import Superlink, one_line_errors
from protocol.flower_releases import WANTED, installed
from simulation.errors import UsageError
from simulation.proxies import by_proxy

ENOUGH, LEAST = 1 << 30, 400 << 20  # bytes of memory for the SuperLink and a ServerApp
RENEW = "`python -m deploy.keys server --renew NAME`"


def memory(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the free memory."""
    yield from enough_memory(free_memory(), ENOUGH, LEAST)


def flower(options: argparse.Namespace) -> Iterable[Finding]:
    """Check that this release of Flower supports the access control and bundles."""
    found = installed()
    if module("flwr.superlink.routers.fleet") is None:
        yield Finding(WRONG, "Flower", f"{found} serves no nodes over HTTP: install {WANTED}")
        return
    if not has_place(module(EXTENSIONS), module("flwr.superlink.main")):
        yield Finding(WRONG, "Flower", f"{found} takes no gate: install {WANTED}")
        return
    try:
        expect_handlers()
    except ImportError as error:
        yield Finding(WARNING, "Flower", f"{found}: nodes will poll, without bundles ({error})")
        return
    yield Finding(OK, "Flower", found)


def certificate(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the CA, the server's certificate and its key."""
    if options.insecure:
        yield Finding(WARNING, "certificate", "--insecure: none, for trying on this machine")
        return
    files = [options.keys / name for name in (f"{CA}.crt", f"{SERVER}.crt", f"{SERVER}.key")]
    for file in files:
        if not file.is_file():
            text = f"there is no {file}: `python -m deploy.keys server NAME` makes it"
            yield Finding(WRONG, "certificate", text)
            return
    try:
        ca, own = (x509.load_pem_x509_certificate(file.read_bytes()) for file in files[:2])
        key = load_pem_private_key(files[2].read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        yield Finding(WRONG, "certificate", f"{options.keys} holds a file that is none: {error}")
        return
    yield from secret(files[2], "certificate")
    if key.public_key() != own.public_key():
        yield Finding(WRONG, "certificate", f"{files[2]} is not the key of {files[1]}: {RENEW}")
    try:
        own.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        yield Finding(WRONG, "certificate", f"{files[1]} is not signed by {files[0]}: {RENEW}")
    yield lasting(f"the server's, for {names_of(own)}", own, RENEW)
    yield lasting("the CA's", ca, "make a new one, for each device, too")


def nodes(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the file of registered nodes."""
    if options.insecure or options.database:
        return
    try:
        found = load(options.state / NODES)
    except UsageError as error:
        yield Finding(WRONG, "nodes", str(error))
        return
    text = "`python -m deploy.keys register NAME` lets one take part"
    count = len(found)
    yield Finding(OK, "nodes", f"{count} are registered" + ("" if count else f": {text}"))


def results(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the folder to which runs write their results."""
    folder = output_of(options)
    before = os.environ.get(OUTPUT)
    if before and Path(before).resolve() != folder:
        yield Finding(WARNING, "results", f"{OUTPUT}={before} is not used: they go to {folder}")
    elif folder.is_dir() and not os.access(folder, os.W_OK):
        yield Finding(WRONG, "results", f"{folder} cannot be written: give it to this user")
    else:
        yield Finding(OK, "results", f"{OUTPUT} is {folder}")


def data(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the data on which the server evaluates its models."""
    folder = options.data or Path("data")
    if folder.is_dir() and os.access(folder, os.R_OK):
        yield Finding(OK, "data", f"runs may read below {folder}")
    elif options.data is not None:
        yield Finding(WRONG, "data", f"--data {folder} is no folder that can be read")
    else:
        yield Finding(WARNING, "data", f"there is no {folder}: only digits needs none")


def server(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the server if it is running."""
    address = f"{_near(options.host)}:{options.port}"
    root = None if options.insecure else str(options.keys / f"{CA}.crt")
    try:
        superlink = Superlink(address, root, ("--port ", "--keys: "))
    except UsageError as error:
        if _is_free(options.host, options.port):
            text = f"it does not run; port {options.port} is free"
            yield Finding(WARNING, "server", text)
        else:
            yield Finding(WRONG, "server", str(error))
        return
    if proxy := by_proxy(address, root is not None):
        yield Finding(WARNING, "proxy", f"{address} is reached{proxy}: name it in no_proxy")
    with closing(superlink):
        yield from _running(superlink, local=is_local(options.host))


def _running(superlink: Superlink, *, local: bool) -> Iterable[Finding]:
    if superlink.bundles:
        yield Finding(OK, "server", f"runs at {superlink.address}, with bundles")
    else:
        text = f"runs at {superlink.address} without bundles: is it Flower's own?"
        yield Finding(WARNING, "server", text)
    from_outside = {"x-forwarded-for": "192.0.2.1"}  # an address reserved for documentation
    if superlink.http.get("/health", headers=from_outside).status_code == 403:
        yield Finding(OK, "gate", "from outside, /v1/fleet/ alone is open")
    else:
        text = "none: who reaches the port can start runs; start it by `python -m deploy.server`"
        yield Finding(WARNING if local else WRONG, "gate", text)
    with closing(superlink.control()) as control, one_line_errors(superlink.address):
        found = control.ListNodes(ListNodesRequest()).nodes_info
    count = Counter(each.status for each in found if each.status not in GONE)
    yield Finding(OK, "online", f"{count[ONLINE]} of {count.total()} nodes")


def _near(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{here}]" if ":" in here else here


def _is_free(host: str, port: int) -> bool:
    """Return whether the port is free to listen on."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
