"""Being one of the server's nodes: coming online, staying so, going."""

from __future__ import annotations

import threading
from contextlib import suppress
from logging import getLogger

import httpx
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
    RegisterNodeFleetRequest,
    RegisterNodeFleetResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.node_pb2 import Node as ProtoNode

from .fleet import FleetClient, Refusal
from .journal import Journal
from .waiting import clock_trouble

INTERVAL = 30.0  # seconds: who is not heard for twice as long counts as offline
_BEATS, _AGAIN, _LEAVING = (
    20.0,
    5.0,
    3.0,
)  # seconds between calls; after one that failed; at the end
_KEY_IN_USE = 23  # Flower's code
log = getLogger("edgewire")


class Member:
    """A node's membership.

    `registers`: the node has a key of its own making, which it makes known itself.
    """

    def __init__(self, fleet: FleetClient, journal: Journal, *, registers: bool) -> None:
        self._fleet, self._journal, self._registers = fleet, journal, registers
        self._stopped, self._active = threading.Event(), threading.Event()
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.node_id = 0
        self.known: bool | None = None  # whether the server takes the key; None: nobody can tell

    @property
    def active(self) -> bool:
        """Whether the server counts this node as online, as far as is known."""
        return self._active.is_set()

    @property
    def node(self) -> ProtoNode:
        """The node, as requests name it."""
        return ProtoNode(node_id=self.node_id)

    def enter(self) -> None:
        """Come online; what is online of an earlier life of this node ends first.

        Errors as the calls of `FleetClient`.
        """
        if self._registers:
            self._register()
        before = self._journal.node_id(self._fleet.address, self._fleet.public_key)
        if before is not None:
            self._end_earlier_life(before)
        request = ActivateNodeRequest(
            public_key=self._fleet.public_key, heartbeat_interval=INTERVAL
        )
        self.node_id = self._fleet.call(request, ActivateNodeResponse).node_id
        if self.node_id != before:
            self._journal.remember(self._fleet.address, self._fleet.public_key, self.node_id)
        self.known = True
        self._active.set()
        if not self._beats.is_alive():
            self._beats.start()

    def lose(self) -> None:
        """Take note that the server does not count this node as online any more."""
        self._active.clear()

    def leave(self) -> None:
        """Go offline; the server is not waited for long."""
        self._stopped.set()
        if self.node_id:
            with suppress(httpx.TransportError, Refusal):
                request = DeactivateNodeRequest(node_id=self.node_id)
                self._fleet.call(request, DeactivateNodeResponse, timeout=_LEAVING)

    def _register(self) -> None:
        request = RegisterNodeFleetRequest(public_key=self._fleet.public_key)
        try:
            self._fleet.call(request, RegisterNodeFleetResponse)
        except Refusal as error:
            if error.code != _KEY_IN_USE:
                raise

    def _end_earlier_life(self, before: int) -> None:
        try:
            self._fleet.call(DeactivateNodeRequest(node_id=before), DeactivateNodeResponse)
            self.known = True
        except Refusal as error:
            if clock_trouble(error.ahead) is not None and error.status == 401:
                raise
            self.known = error.status != 401  # 412: it knows the node, which is not online

    def _beat(self) -> None:
        pause = _BEATS
        while not self._stopped.wait(pause):
            if not self.active:
                continue
            pause = _BEATS
            try:
                request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=INTERVAL)
                if not self._fleet.call(request, SendNodeHeartbeatResponse).success:
                    self.lose()
            except Refusal as error:
                if error.status in (401, 404):
                    self.lose()
            except httpx.TransportError:
                pause = _AGAIN
            except Exception:  # a thread that has ended would be noticed by nobody
                log.exception("a heartbeat failed")
