"""A node's membership at its server: it comes online, sends heartbeats, and goes offline."""

from __future__ import annotations

import threading
import time
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

from edgewire.deploy.device.backoff import clock_trouble
from edgewire.deploy.device.client import BUNDLED, NOT_ACTIVATED, FleetClient, ServerRefusal
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.sd_notify import ALIVE, READY, notify
from edgewire.machine.errors import one_line
from edgewire.machine.liveness import INTERVAL

STILL = 300.0  # seconds without any work, outside of the app, after which systemd ends the node
NOISE = 1e-4  # seconds of processor time that are no work
_BEATS, _AGAIN = 20.0, 5.0  # seconds between two heartbeats; after a failed one
_BEAT, _LEAVING = 10.0, 3.0  # time limits in seconds: of a heartbeat, of going offline
_KEY_IN_USE = 23  # Flower's error code
log = getLogger("edgewire")


class Membership:
    """Keeps a node online at its server. After `stop` or `leave` this object sends nothing.

    `active`: whether the server counts this node as online, as far as the node knows. `name`: what
    the server calls this node (`ask`).
    `registers`: the node has made its own key, so it registers the key itself. `beats`: seconds
    between two heartbeats. This object sends no heartbeat before the time `fleet.counted_until`,
    because the server counts the node as online until then.

    The thread of the heartbeats also tells systemd that the node goes on. It stops that if the
    other threads have used no processor time for `STILL` seconds: then the main thread hangs. It
    waits for no server that long. `in_app`: the main thread runs the app, which may take any time.
    """

    def __init__(
        self, fleet: FleetClient, node_folder: NodeFolder, *, registers: bool, beats: float = _BEATS
    ) -> None:
        self._fleet, self._node_folder, self._registers = fleet, node_folder, registers
        self._pause = beats
        self._stopped = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.node_id, self.active, self.in_app = 0, False, False
        self.name = ""
        self._used, self._moved = 0.0, time.monotonic()  # processor time of the other threads

    @property
    def node(self) -> ProtoNode:
        """The node's id as the protobuf message `Node`, which requests contain."""
        return ProtoNode(node_id=self.node_id)

    def enter(self) -> None:
        """Come online, under the earlier id if the node has one.

        For an earlier id a heartbeat is enough. The node must not deactivate that id first:
        otherwise the server itself would reply to the node's current message, with an error. A node
        that has lost its id gets it from the server. Raises the errors of `FleetClient`.
        """
        fleet = self._fleet
        if not self._beats.is_alive():
            self._beats.start()
            notify(READY)
        before = self._node_folder.known_id(fleet.address, fleet.public_key)
        if before is None or not self._goes_on(before):
            if self._registers:
                self._register()
            request = ActivateNodeRequest(public_key=fleet.public_key, heartbeat_interval=INTERVAL)
            try:
                self.node_id = fleet.call(request, ActivateNodeResponse).node_id
            except ServerRefusal as error:
                if error.code != NOT_ACTIVATED or not self._goes_on(self.ask()):
                    raise
            self._node_folder.remember(fleet.address, fleet.public_key, self.node_id)
        self.active = True

    def stop(self) -> None:
        """Stop the heartbeats without going offline; wait for a heartbeat in progress."""
        self._stopped.set()
        if self._beats.is_alive():
            self._beats.join(_LEAVING)

    def leave(self) -> None:
        """Stop the heartbeats and go offline; wait at most 3 s (`_LEAVING`) for the server."""
        self.stop()
        if self.node_id:
            with suppress(httpx.TransportError, ServerRefusal):
                request = DeactivateNodeRequest(node_id=self.node_id)
                self._fleet.call(request, DeactivateNodeResponse, timeout=_LEAVING)

    def _register(self) -> None:
        request = RegisterNodeFleetRequest(public_key=self._fleet.public_key)
        try:
            self._fleet.call(request, RegisterNodeFleetResponse)
        except ServerRefusal as error:
            if error.code != _KEY_IN_USE:
                raise

    def ask(self) -> int:
        """Ask the server for this node's name; return the node's id there, 0 if it tells none."""
        with suppress(ValueError, KeyError, TypeError):  # Flower's SuperLink has no such path
            said = self._fleet.get(f"{BUNDLED}/status").json()
            self.name = one_line(str(said.get("name") or ""))
            return int(said["node"])
        return 0

    def _goes_on(self, before: int) -> bool:
        """Return whether the server accepts this node under its earlier id."""
        self.node_id = before
        try:
            return self._heard()
        except ServerRefusal as error:
            if error.status not in (401, 404) or clock_trouble(error.ahead) is not None:
                raise
            return False

    def _heard(self) -> bool:
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=INTERVAL)
        return self._fleet.call(request, SendNodeHeartbeatResponse, timeout=_BEAT).success

    def _watch(self) -> None:
        """Tell systemd that the node goes on, if it does."""
        used, now = time.process_time() - time.thread_time(), time.monotonic()
        if self.in_app or used - self._used > NOISE:
            self._used, self._moved = used, now
        if now - self._moved < STILL:
            notify(ALIVE)

    def _beat(self) -> None:
        pause = self._pause
        while not self._stopped.wait(pause):
            self._watch()
            counted = self._fleet.counted_until - time.monotonic()
            pause = min(counted, self._pause) if counted > 0 else self._pause
            if counted > 0 or not self.active:
                continue
            try:
                if not self._heard():
                    self.active = False
            except ServerRefusal as error:
                if error.status in (401, 404):
                    self.active = False
            except httpx.TransportError:
                pause = _AGAIN
            except Exception:  # otherwise the thread would end without a message
                if self._stopped.is_set():
                    return
                log.exception("a heartbeat failed")
