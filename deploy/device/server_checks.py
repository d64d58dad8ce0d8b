"""The checks by which `deploy.doctor` tests the server from a device.

They change nothing on the server, with one exception. At Flower's own SuperLink, an offline node
comes online and goes offline again, because no other call tells whether the SuperLink knows the
node's key.
"""

from __future__ import annotations

import argparse
import platform
import ssl
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from statistics import median
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.node_pb2 import Node

from deploy.device.backoff import INTERVAL, ONLINE_SECONDS, WORTH_WAITING, clock_trouble, reason_of
from deploy.device.checks import key_in_use
from deploy.device.client import BUNDLED, FleetClient, ServerRefusal, ahead_of, says_bundled
from deploy.device.node_folder import is_taken, known_id
from deploy.findings import OK, WARNING, WRONG, Finding, lasting, names_of
from deploy.node import client_of
from protocol.flower_releases import installed, is_known
from simulation.errors import UsageError
from simulation.proxies import by_proxy

STATUS = f"{BUNDLED}/status"
TIMES, SLOW = 5, 1.0  # number of measured round trips; seconds of a slow one
REGISTER = "`python -m deploy.keys register NAME`, on the server"


def server(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the server, through a node's client; stop if the server cannot be reached."""
    found = None
    with suppress(UsageError, OSError):  # the check of the key reports these
        found = key_in_use(options)
    key = found[0] if found else ec.generate_private_key(ec.SECP384R1())
    try:
        fleet = client_of(options, key)
    except UsageError as error:
        yield Finding(WRONG, "server", str(error))
        return
    if proxy := by_proxy(fleet.address, fleet.secure):
        text = f"{fleet.address} is reached{proxy}, as the environment says"
        yield Finding(OK, "proxy", text)
    with closing(fleet):
        try:
            first = fleet.get(BUNDLED)
            trips = [_round_trip(fleet) for _ in range(TIMES)]
        except WORTH_WAITING as error:
            yield Finding(WRONG, "server", reason_of(error, fleet))
            return
        if first.status_code not in (200, 404):
            yield Finding(WRONG, "server", reason_of(ServerRefusal(first), fleet))
            return
        if says_bundled(first):
            yield Finding(OK, "server", f"{fleet.address} is there, and takes bundles")
        else:
            text = "is there, and takes plain Fleet calls alone: rounds take longer"
            yield Finding(WARNING, "server", f"{fleet.address} {text}")
        if fleet.secure:
            yield _certificate(first)
        yield _trip(median(trips))
        clock = clock_trouble(ahead_of(first))
        yield _clock(clock, ahead_of(first))
        if clock is not None:
            return
        if found is None:
            yield Finding(OK, "registered", "not yet: the node registers its key itself")
        else:
            yield from _registered(fleet, options, bundled=says_bundled(first))


def _round_trip(fleet: FleetClient) -> float:
    """Return the seconds that a request takes."""
    begun = time.perf_counter()
    fleet.get(BUNDLED)
    return time.perf_counter() - begun


def _certificate(first: httpx.Response) -> Finding:
    """Check how long the server's certificate is valid. The client has accepted it before."""
    line: ssl.SSLObject = first.extensions["network_stream"].get_extra_info("ssl_object")
    shown = line.getpeercert(True)  # as DER
    certificate = x509.load_der_x509_certificate(shown or b"")
    text = f"the server's, for {names_of(certificate)}"
    return lasting(text, certificate, "renew it on the server")


def _registered(
    fleet: FleetClient, options: argparse.Namespace, *, bundled: bool
) -> Iterable[Finding]:
    """Check whether the server knows this node's key."""
    response = fleet.get(STATUS) if bundled else None
    if response is None or response.status_code == 404:  # an older server of this project
        yield from _registered_at_superlink(fleet, options)
        return
    if response.status_code != 200:
        yield Finding(WRONG, "registered", reason_of(ServerRefusal(response), fleet))
        return
    said: dict[str, Any] = response.json()
    if said.get("registered"):
        yield Finding(OK, "registered", f"as node {said.get('node')}")
        yield _online(said.get("status") == "online", is_taken(options.state))
        yield _versions(str(said.get("flwr", "")), str(said.get("python", "")))
    elif options.auth_supernode_private_key is not None:
        text = f"the server does not know this node's key: {REGISTER}"
        yield Finding(WRONG, "registered", text)
    else:
        text = "the server does not know this node's own key: it takes it with --any-node"
        yield Finding(WARNING, "registered", text)


def _registered_at_superlink(fleet: FleetClient, options: argparse.Namespace) -> Iterable[Finding]:
    """Check whether Flower's own SuperLink knows the key, by the calls that nodes make."""
    before = known_id(options.state, fleet.address, fleet.public_key)
    if options.auth_supernode_private_key is None and before is None:
        yield Finding(OK, "registered", "not yet: the node registers its key itself")
        return
    try:
        if before is not None and is_taken(options.state):
            beat = SendNodeHeartbeatRequest(node=Node(node_id=before), heartbeat_interval=INTERVAL)
            fleet.call(beat, SendNodeHeartbeatResponse)
            yield Finding(OK, "registered", f"as node {before}, online")
            return
        enter = ActivateNodeRequest(public_key=fleet.public_key, heartbeat_interval=INTERVAL)
        number: int = fleet.call(enter, ActivateNodeResponse).node_id
        fleet.call(DeactivateNodeRequest(node_id=number), DeactivateNodeResponse)
    except ServerRefusal as error:
        known = None if before is None else True
        yield Finding(WRONG, "registered", reason_of(error, fleet, known))
        return
    yield Finding(OK, "registered", f"as node {number}; none is online with this key")
    yield _versions("", "")


def _online(there: bool, here: bool) -> Finding:
    """Check that the node is online if it runs on this machine, and offline otherwise.

    `there`: whether the server counts the node as online. `here`: whether a node runs here.
    """
    if there and not here:
        return Finding(
            WARNING,
            "online",
            "yes, and no node runs on this --state: another machine uses the key, or its "
            f"earlier life ended less than {ONLINE_SECONDS:.0f} s ago; look again then",
        )
    if here and not there:
        return Finding(WARNING, "online", "no, though a node runs here: its log says why")
    return Finding(OK, "online", "the node that runs here" if there else "no, none runs here")


def _trip(seconds: float) -> Finding:
    text = f"{seconds * 1000:.0f} ms"
    if seconds < SLOW:
        return Finding(OK, "round trip", text)
    return Finding(WARNING, "round trip", f"{text}: a round takes at least twice as long")


def _clock(trouble: str | None, ahead: float | None) -> Finding:
    if trouble is not None:
        return Finding(WRONG, "clock", trouble)
    if ahead is None:
        return Finding(WARNING, "clock", "the server does not say what time it is")
    return Finding(OK, "clock", f"within {max(abs(ahead), 1):.0f} s of the server's")


def _versions(flower: str, python: str) -> Finding:
    here = f"Flower {installed()}, Python {platform.python_version()} here"
    if not flower:
        return Finding(OK, "versions", f"{here}; the server does not say")
    text = f"{here}; Flower {flower}, Python {python} there"
    if is_known(flower) and is_known(installed()):
        return Finding(OK, "versions", text)
    return Finding(WARNING, "versions", f"{text}: these were not tried together")
