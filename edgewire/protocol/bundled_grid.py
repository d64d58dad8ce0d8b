"""A ServerApp's grid that sends and receives messages with their objects in bundles.

Flower's own grid needs a request for each object, and polls for replies. This grid sends all
messages with their objects in one request. To get replies it sends one request, and the server
holds this request until a reply exists (`edgewire.deploy.server.api`).
`edgewire.protocol.choose_grid.bundled` chooses this grid if the release of Flower supports it.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Iterable
from typing import Any, cast

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE, TASK_TOKEN_HEADER
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from edgewire.compression.flower.timed_grid import PolledGrid, gathered
from edgewire.compression.validation import FOREVER
from edgewire.protocol.bundle import OF_MANY, frames, parts_of
from edgewire.protocol.lost_calls import PATIENCE, patient
from edgewire.protocol.run_ended import STOPPED, RunEnded

LONGEST_WAIT = 20.0  # the most seconds that the server holds one pull request while no reply exists
MARGIN = 30.0  # seconds by which a request's time-out exceeds the time that the server may hold it
LONGEST_PAUSE = 5.0  # seconds between two attempts
LIMIT = 4 << 30  # the most bytes of a pull's response


class Connection:
    """Sends requests to the server, with the address, certificate and token of Flower's grid.

    These three are private attributes of Flower's grid, as is what repeats its own calls. Raises
    `AttributeError` if this release of Flower lacks them. `lost`: seconds so far in which the
    server has not answered.
    """

    def __init__(self, grid: Any) -> None:
        insecure, root = grid._insecure, grid._cert
        verify: Any = True
        if not insecure and root is not None:
            verify = ssl.create_default_context(cadata=root.decode("ascii"))
        self._headers, self._repeated = {TASK_TOKEN_HEADER: grid._token}, grid._retry_invoker
        self.lost = 0.0
        patient(self._repeated)
        self._http = httpx.Client(
            base_url=f"{'http' if insecure else 'https'}://{grid._addr}",
            verify=verify,
            timeout=LONGEST_WAIT + MARGIN,
        )

    def takes_bundles(self) -> bool:
        """Return whether the server accepts bundles."""
        found: httpx.Response = self._repeated.invoke(self._http.get, "/v1/fleet/edgewire")
        return found.status_code == 200 and found.text == "1"

    def post(self, what: str, content: bytes, wait: float = 0.0) -> bytes:
        """Send a request to the call `what`, "push" or "pull"; return the response's body.

        `wait`: for how many seconds the server may hold a pull. If the server cannot be reached,
        the request is repeated for `PATIENCE` seconds. Raises `RunEnded` if the run was stopped,
        `ConnectionError` if the server stays unreachable, and `httpx.HTTPStatusError`.
        """
        headers = {**self._headers, "edgewire-wait": f"{wait:g}"}
        pause, began = 0.1, time.monotonic()
        while True:
            tried = time.monotonic()
            try:
                path = f"/v1/runtime/edgewire/{what}"
                found = self._http.post(path, content=content, headers=headers)
                if found.status_code in STOPPED:
                    raise RunEnded("the run was ended at the server")
                if found.status_code not in (502, 503, 504):
                    return found.raise_for_status().content
                reason = f"status {found.status_code}"
            except httpx.TransportError as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() - began >= PATIENCE:
                raise ConnectionError(f"the server is gone: {reason}")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            self.lost += time.monotonic() - tried


class BundledGrid(PolledGrid):
    """A grid that sends and receives bundles, made from Flower's grid; safe for threads.

    It is a `TimedGrid`: a Flower `Grid` with a clock and deadlines.
    """

    def __init__(self, grid: Any, connection: Connection) -> None:
        super().__init__(grid)
        self._connection = connection
        self._run_id: int = grid.run.run_id

    @property
    def now(self) -> float:
        """Real seconds since a fixed moment, without those in which the server did not answer.

        So no deadline passes while nodes cannot deliver their replies.
        """
        return super().now - self._connection.lost

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> list[str]:
        """Send messages with their objects; return their ids.

        `ttl`: the most seconds that a message is valid; a message may have a shorter `ttl`.
        """
        messages = list(messages)
        if not messages:
            return []
        parts: dict[str, bytes] = {}
        request = PushAppMessagesRequest()
        with no_object_id_recompute():
            for message in messages:
                message.metadata.ttl = min(ttl, message.metadata.ttl)
                message.metadata.__dict__["_message_id"] = message.object_id
                for name, each in get_all_nested_objects(message).items():
                    if name not in parts:  # an object for several nodes is sent once
                        parts[name] = each.deflate()
                request.messages_list.append(message_to_proto(remove_content_from_message(message)))
                request.message_object_trees.append(get_object_tree(message))
        bundle = frames([("request", request.SerializeToString()), *parts.items()])
        response = PushAppMessagesResponse.FromString(self._connection.post("push", bundle))
        return list(response.message_ids)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that have arrived."""
        return self._pull(list(message_ids), 0.0)

    def pull_before(self, message_ids: Iterable[str], deadline: float) -> list[Message]:
        """Wait for the next replies, until `deadline` at the latest; see `TimedGrid`."""
        ids = list(message_ids)
        if not ids:
            return super().pull_before(ids, deadline)
        while True:
            left = max(deadline - self.now, 0.0)
            replies = self._pull(ids, min(left, LONGEST_WAIT))
            if replies or deadline - self.now <= 0:
                return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages; return their replies, at the latest after `timeout` seconds."""
        return gathered(self, list(messages), FOREVER if timeout is None else timeout)

    def _pull(self, message_ids: list[str], wait: float) -> list[Message]:
        request = PullAppMessagesRequest(message_ids=message_ids).SerializeToString()
        (_, head), *objects = parts_of(self._connection.post("pull", request, wait), LIMIT, OF_MANY)
        response, contents = PullAppMessagesResponse.FromString(head), dict(objects)
        return [
            self._message(message.metadata, tree, contents)
            for message, tree in zip(
                response.messages_list, response.message_object_trees, strict=True
            )
        ]

    def _message(self, said: Any, tree: Any, contents: dict[str, bytes]) -> Message:
        """Make a message from its objects; return an error message if they make none.

        `said`: the content's metadata, which the server has checked; `tree`: the ids of the
        objects; `contents`: their bytes, as the node has sent them.
        """
        asked = said.reply_to_message_id
        if not all(each.object_id in contents for each in iterate_object_tree(tree)):
            return self._unavailable(asked, "the reply has not come whole")
        try:
            found = inflate_object_from_contents(
                said.message_id,
                contents,
                keep_object_contents=True,  # several replies may share an object
            )
            message = cast(Message, found)
            message.metadata.__dict__["_message_id"] = said.message_id
        except Exception as error:  # hostile bytes may raise anything
            return self._unavailable(asked, f"the reply cannot be read: {error!r}")
        return message

    def _unavailable(self, asked: str, reason: str) -> Message:
        """Return the error message that Flower's own grid returns for an incomplete reply.

        `asked`: the id of the message that the reply answers.
        """
        metadata = Metadata(
            run_id=self._run_id,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=SUPERLINK_NODE_ID,
            message_type=SYSTEM_MESSAGE_TYPE,
            group_id="",
            ttl=0,
            reply_to_message_id=asked,
            created_at=time.time(),
        )
        return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))
