"""The checks by which `deploy.doctor` tests the server from a device.

They change nothing on the server, with one exception. At Flower's own SuperLink, an offline node
comes online and goes offline again, because no other call tells whether the SuperLink knows the
node's key.
"""

from __future__ import annotations

import platform
import ssl
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from cryptography import x509
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.node_pb2 import Node

from deploy.certificate_dates import lasting, names_of
from deploy.device.backoff import INTERVAL, ONLINE_SECONDS, WORTH_WAITING, clock_trouble, reason_of
from deploy.device.client import BUNDLED, FleetClient, ServerRefusal, ahead_of, says_bundled
from deploy.device.node_folder import known_id
from deploy.findings import OK, WARNING, WRONG, Finding
from protocol.flower_releases import installed, is_known

STATUS = f"{BUNDLED}/status"
TIMES, SLOW = 5, 1.0  # number of measured round trips; seconds of a slow one
REGISTER = "`python -m deploy.keys register NAME`, on the server"


class ServerView:
    """A server, seen from one device.

    `state`: the node's state folder; `runs`: whether a node uses this folder now.
    """

    def __init__(self, fleet: FleetClient, state: Path, runs: bool) -> None:
        self._fleet, self._state, self._runs = fleet, state, runs

    def findings(self, *, has_key: bool, named: bool) -> Iterable[Finding]:
        """Make all checks; stop if the server cannot be reached.

        `has_key`: the node has a key already; `named`: the key was given on the command line, so
        the node does not register the key itself.
        """
        try:
            first = self._fleet.get(BUNDLED)
            seconds = [self._round_trip() for _ in range(TIMES)]
        except WORTH_WAITING as error:
            yield Finding(WRONG, "server", self._reason(error))
            return
        if first.status_code not in (200, 404):
            yield Finding(WRONG, "server", self._reason(ServerRefusal(first)))
            return
        bundled = says_bundled(first)
        if bundled:
            yield Finding(OK, "server", f"{self._fleet.address} is there, and takes bundles")
        else:
            text = "is there, and takes plain Fleet calls alone: rounds take longer"
            yield Finding(WARNING, "server", f"{self._fleet.address} {text}")
        if self._fleet.secure:
            yield self._certificate(first)
        yield _trip(median(seconds))
        clock = clock_trouble(ahead_of(first))
        yield _clock(clock, ahead_of(first))
        if clock is None:
            yield from self._asked(bundled, has_key, named)

    def _reason(self, error: Exception, known: bool | None = True) -> str:
        return reason_of(error, self._fleet.address, known=known, secure=self._fleet.secure)

    def _round_trip(self) -> float:
        begun = time.perf_counter()
        self._fleet.get(BUNDLED)
        return time.perf_counter() - begun

    def _certificate(self, first: httpx.Response) -> Finding:
        """Check how long the server's certificate is valid. The client has accepted it before."""
        line: ssl.SSLObject = first.extensions["network_stream"].get_extra_info("ssl_object")
        shown = line.getpeercert(True)  # as DER
        certificate = x509.load_der_x509_certificate(shown or b"")
        text = f"the server's, for {names_of(certificate)}"
        return lasting("certificate", text, certificate, "renew it on the server")

    def _asked(self, bundled: bool, has_key: bool, named: bool) -> Iterable[Finding]:
        """Check whether the server knows this node's key."""
        if not has_key:
            yield Finding(OK, "registered", "not yet: the node registers its key itself")
            return
        response = self._fleet.get(STATUS) if bundled else None
        if response is None or response.status_code == 404:  # an older server of this project
            yield from self._plainly(named)
        elif response.status_code != 200:
            yield Finding(WRONG, "registered", self._reason(ServerRefusal(response)))
        else:
            yield from self._told(response, named)

    def _told(self, response: httpx.Response, named: bool) -> Iterable[Finding]:
        """Yield findings (lines of the output) from the status that this project's server returned.

        `named`: the key was given on the command line.
        """
        said: dict[str, Any] = response.json()
        if not said.get("registered"):
            if named:
                text = f"the server does not know this node's key: {REGISTER}"
                yield Finding(WRONG, "registered", text)
            else:
                text = "the server does not know this node's own key: it takes it with --any-node"
                yield Finding(WARNING, "registered", text)
            return
        yield Finding(OK, "registered", f"as node {said.get('node')}")
        yield self._online(said.get("status") == "online")
        yield _versions(str(said.get("flwr", "")), str(said.get("python", "")))

    def _online(self, there: bool) -> Finding:
        """Check that the node is online if it runs on this machine, and offline otherwise.

        `there`: whether the server counts the node as online.
        """
        if there and not self._runs:
            return Finding(
                WARNING,
                "online",
                "yes, and no node runs on this --state: another machine uses the key, or its "
                f"earlier life ended less than {ONLINE_SECONDS:.0f} s ago; look again then",
            )
        if self._runs and not there:
            return Finding(WARNING, "online", "no, though a node runs here: its log says why")
        return Finding(OK, "online", "the node that runs here" if there else "no, none runs here")

    def _plainly(self, named: bool) -> Iterable[Finding]:
        """Check whether Flower's own SuperLink knows the key, by the calls that nodes make.

        `named`: the key was given on the command line.
        """
        before = known_id(self._state, self._fleet.address, self._fleet.public_key)
        if not named and before is None:
            yield Finding(OK, "registered", "not yet: the node registers its key itself")
            return
        try:
            if self._runs and before is not None:
                self._beat(before)
                yield Finding(OK, "registered", f"as node {before}, online")
                return
            number = self._come_and_go()
        except ServerRefusal as error:
            known = None if before is None else True
            yield Finding(WRONG, "registered", self._reason(error, known))
            return
        yield Finding(OK, "registered", f"as node {number}; none is online with this key")
        yield _versions("", "")

    def _beat(self, number: int) -> None:
        request = SendNodeHeartbeatRequest(node=Node(node_id=number), heartbeat_interval=INTERVAL)
        self._fleet.call(request, SendNodeHeartbeatResponse)

    def _come_and_go(self) -> int:
        request = ActivateNodeRequest(
            public_key=self._fleet.public_key, heartbeat_interval=INTERVAL
        )
        number: int = self._fleet.call(request, ActivateNodeResponse).node_id
        self._fleet.call(DeactivateNodeRequest(node_id=number), DeactivateNodeResponse)
        return number


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
