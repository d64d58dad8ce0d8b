"""A node's main loop: it pulls a message, runs the app on it, and sends the reply.

The node writes each message to disk before it runs the app, and each reply before it sends the
reply. So after a kill at any moment and a restart, it continues where it was.

    pull -> message on disk -> objects -> app -> state and reply on disk (atomically) -> push
"""

from __future__ import annotations

from collections.abc import Collection
from logging import getLogger
from typing import NoReturn

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from flwr.app import Context, UserConfig
from flwr.common.serde import message_from_proto, run_from_proto
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.run import Run

from edgewire.deploy.device.app_runner import answered, message_of, refused
from edgewire.deploy.device.apps import AppError, Apps, OtherApp
from edgewire.deploy.device.backoff import WORTH_WAITING, Wait, reason_of
from edgewire.deploy.device.client import RUN_IS_OVER, FleetClient, ServerRefusal
from edgewire.deploy.device.deaths import Deaths, NodeDied
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.device.node_store import NodeStore
from edgewire.deploy.device.telemetry import Telemetry
from edgewire.deploy.device.throttled_log import SERVER_INFORMED, ThrottledLog
from edgewire.deploy.device.transport import ObjectGone, Transport
from edgewire.machine.errors import Ended
from edgewire.protocol.lineage import lineage_of

_NO_SUCH_RUN = (RUN_IS_OVER, 2008, 2009)  # Flower's codes: run over, run unknown, app missing
log = getLogger("edgewire")


class Device:
    """A node; `serve` runs it.

    `apps`: the SHA-256 of each app that the node accepts; `owner`: the key that signs further ones.
    Without any of both the node accepts all apps. `wait`: the pauses after failures.
    `tells_errors`: see `Telemetry`.
    """

    def __init__(
        self,
        fleet: FleetClient,
        node_folder: NodeFolder,
        member: Membership,
        node_config: UserConfig,
        *,
        apps: Collection[str] = (),
        owner: Ed25519PublicKey | None = None,
        wait: Wait | None = None,
        tells_errors: bool = False,
    ) -> None:
        self._fleet, self._node_folder, self._member = fleet, node_folder, member
        self._node_config = node_config
        self._apps = Apps(node_folder.folder / "apps", apps, owner)
        self._fleet_transport = Transport(fleet)
        self._telemetry = Telemetry(node_folder.folder, tells_errors)
        self._wait, self._failing = wait or Wait(), ThrottledLog(self._telemetry.failed)
        self._run: Run | None = None
        self._claim = node_folder.claimed()
        left = "" if self._claim is None else self._claim.message_object_trees[0].object_id
        self._deaths = Deaths(node_folder.database, left)
        self._known = False  # the node knows the server's calls, and its own name there
        self._written = True  # the current message is on disk
        self._bundle: bytes | None = None  # the reply to the current message, before it is sent

    def serve(self) -> NoReturn:
        """Reply to messages for ever; after a failure wait and try again.

        Raises `OtherApp` if a message needs another app than the one that this process has loaded.
        """
        try:
            while True:
                try:
                    self.step()
                    self._wait.over()
                except WORTH_WAITING as error:
                    if isinstance(error, ServerRefusal) and error.status in (401, 404, 405, 412):
                        self._member.active = False
                    if isinstance(error, OSError):  # of the disk; the others are of the network
                        self._telemetry.failed(error)
                    self._telemetry.until = 0.0  # perhaps it is another server process
                    self._wait.after(reason_of(error, self._fleet))
                    self._fleet.reload_root()
        except (Ended, OtherApp):
            self._deaths.spare()
            raise

    def step(self) -> None:
        """Come online if necessary; reply to the current message, or pull the next one first.

        Raises the errors in `WORTH_WAITING`. After such an error the next call continues the work.
        """
        if not self._member.active:
            self._member.enter()
            self._known = False
        if not self._known:  # a lost answer is asked for again
            if self._fleet_transport.begin():
                self._member.ask()
            name = self._member.name or f"node {self._member.node_id}"
            log.info("online at %s as %s", self._fleet.address, name)
            self._known = True
        if self._claim is None:
            telemetry = self._telemetry.due(self._fleet.ahead)
            self._claim = self._fleet_transport.pull(self._member.node, telemetry)
            self._written = False
            if self._claim is None:
                return
        if not self._written:
            self._node_folder.claim(self._claim)
            self._written = True
        try:
            self._answer(self._claim)
        except ServerRefusal as error:
            if error.code not in _NO_SUCH_RUN:
                raise
            log.info("the run of the message in hand is over: it is put aside")
        self._claim = self._bundle = None

    def _answer(self, claim: PullMessagesResponse) -> None:
        """Send the reply to a message. If the reply is stored, the app does not run again."""
        metadata = claim.messages_list[0].metadata
        run = self._known_run(metadata.run_id)
        lineage = lineage_of(metadata.group_id, run.run_id)
        # As Flower chooses a state: runs of a series share one.
        key = lineage.key if lineage else run.series_id or run.run_id
        name = claim.message_object_trees[0].object_id
        try:
            self._deaths.begin(name, str(key))
        except NodeDied as error:
            if self._bundle is None:
                self._failing.say("a message is given up", error)
                self._bundle = refused(message_from_proto(claim.messages_list[0]), error)
            self._fleet_transport.push(self._bundle)
            return
        node_store = self._node_folder.node_store(key)
        if name in node_store.answered[:-1]:
            log.info("a message came again that was replied to long ago: it is put aside")
            return
        if name not in node_store.answered:
            node_store.take_up(self._member.node_id, lineage)
            if self._bundle is None:  # else only writing the reply to disk has failed
                self._bundle = self._reply(claim, run, node_store)
            node_store.commit(node_store.state, name, self._bundle)
        bundle = node_store.reply() if self._bundle is None else self._bundle
        if not bundle:
            died = NodeDied("the node ended before it sent a reply that is not stored")
            bundle = refused(message_from_proto(claim.messages_list[0]), died)
        self._fleet_transport.push(bundle)
        self._deaths.over(node_store.name)

    def _reply(self, claim: PullMessagesResponse, run: Run, node_store: NodeStore) -> bytes:
        head = message_from_proto(claim.messages_list[0])
        try:
            objects = self._fleet_transport.objects(claim, self._member.node)
        except ObjectGone as error:
            # Perhaps the server already has a reply.
            log.error("a message's objects are gone; %s", SERVER_INFORMED)
            return refused(head, error)
        try:
            message = message_of(claim, objects)
        except Exception as error:  # hostile bytes may raise anything
            self._failing.say("a message cannot be read", repr(error))
            return refused(head, error)
        try:
            self._fetch(run)
            config = self._apps.config(run.fab_hash, run.override_config)
        except (AppError, ValueError) as error:
            self._failing.say("the app cannot be had", error)
            return refused(message, error)
        context = Context(
            run.run_id,
            self._member.node_id,
            dict(self._node_config),
            node_store.state,
            config,
            run.series_id,
        )
        self._member.in_app = True
        try:
            reply = answered(message, context, lambda: self._apps.load(run.fab_hash), self._failing)
        finally:
            self._member.in_app = False
        node_store.state = context.state
        return reply

    def _known_run(self, run_id: int) -> Run:
        if self._run is None or self._run.run_id != run_id:
            request = GetRunRequest(node=self._member.node, run_id=run_id)
            self._run = run_from_proto(self._fleet.call(request, GetRunResponse).run)
            log.info("run %d of %s, app %s", run_id, self._run.fab_id, self._run.fab_hash)
        return self._run

    def _fetch(self, run: Run) -> None:
        if not self._apps.has(run.fab_hash):
            request = GetFabRequest(
                node=self._member.node, hash_str=run.fab_hash, run_id=run.run_id
            )
            self._apps.put(run.fab_hash, self._fleet.call(request, GetFabResponse).fab.content)
