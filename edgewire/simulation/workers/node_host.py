"""Hosts the nodes of one process: it calls the ClientApp and keeps the nodes' Contexts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from edgewire.compression.flower.records import content_of, metadata_of, values_of
from edgewire.machine.errors import Ended
from edgewire.machine.own_package import load_object

log = logging.getLogger("edgewire")

KINDS = (ArrayRecord, ConfigRecord, MetricRecord)
Answering = Callable[[Message, Context], Message]  # the type of a ClientApp


@dataclass(frozen=True)
class NodeHostSpec:
    """The data that a process needs to host nodes; worker processes receive it.

    `client_app` is a reference (`edgewire.client.app:app`) or, within one machine, the app itself.
    """

    client_app: str | Answering
    nodes: int
    run_id: int
    run_config: dict[str, Any]


class NodeHost:
    """Answers messages for the nodes of this process, and holds their states."""

    def __init__(self, spec: NodeHostSpec) -> None:
        app = spec.client_app
        self._app = cast(Answering, load_object(app)) if isinstance(app, str) else app
        self._spec = spec
        self.contexts: dict[int, Context] = {}  # node -> Context, for nodes with state

    def answer(self, message: Message) -> tuple[Message, bool]:
        """Return the node's reply, and whether the node has state in this process.

        An exception of the ClientApp becomes an error reply, as in Flower's own runtimes.
        """
        asked = metadata_of(message)
        node = asked["_dst_node_id"]
        context = self.contexts.get(node) or self._new_context(node)
        try:
            reply = self._app(message, context)
            answers = isinstance(reply, Message) and metadata_of(reply)["_reply_to_message_id"]
            if answers != asked["_message_id"]:
                raise ValueError("the ClientApp must return a reply to its message")
            if not reply.has_error() and not _is_content(content_of(reply)):
                raise ValueError("the ClientApp's reply must hold a RecordDict of Flower's records")
        except Ended:
            raise
        except (Exception, SystemExit) as error:
            log.debug("node %d raised", node, exc_info=True)
            reason = f"{type(error).__name__}: {error}"
            reply = Message(raised(reason), reply_to=message)
        if has_state := bool(values_of(context.state)):
            self.contexts[node] = context
        return reply, has_state

    def forget(self, node: int) -> None:
        """Drop a node's state."""
        self.contexts.pop(node, None)

    @property
    def states(self) -> dict[int, RecordDict]:
        """Return the states of all nodes with state, by node."""
        return {node: context.state for node, context in self.contexts.items()}

    def load(self, states: Mapping[int, RecordDict]) -> None:
        """Replace the states of all nodes; `states` has the new ones by node."""
        self.contexts = {node: self._new_context(node, state) for node, state in states.items()}

    def _new_context(self, node: int, state: RecordDict | None = None) -> Context:
        """Make a node's Context. The host stores it only if the app has put state into it."""
        spec = self._spec
        return Context(
            run_id=spec.run_id,
            node_id=node,
            node_config={"partition-id": node - 1, "num-partitions": spec.nodes},
            state=RecordDict() if state is None else state,
            run_config=spec.run_config,
        )


def _is_content(content: Any) -> bool:
    is_dict = isinstance(content, RecordDict)
    return is_dict and all(isinstance(each, KINDS) for each in values_of(content).values())


def raised(reason: str) -> Error:
    """Return the error of a ClientApp that raised an exception."""
    return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)


def unavailable(message: Message, reason: str) -> Message:
    """Return the error reply for a node that cannot answer."""
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)
