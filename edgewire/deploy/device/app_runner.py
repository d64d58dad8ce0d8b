"""Runs the ClientApp on a message, and encodes the reply as Flower's own nodes do."""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.app import Context, Error, Message
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from edgewire.deploy.device.apps import AppError, OtherApp
from edgewire.deploy.device.deaths import NodeDied
from edgewire.deploy.device.throttled_log import ThrottledLog
from edgewire.deploy.device.transport import CONFIRM, REQUEST
from edgewire.machine.errors import Ended
from edgewire.protocol.bundle import frames
from edgewire.protocol.lineage import reply_group_id


def message_of(response: PullMessagesResponse, objects: dict[str, bytes]) -> Message:
    """Return the message of a pull's response; remove the message's objects from `objects`.

    Raises `TypeError` if the objects hold no message.
    """
    name = response.message_object_trees[0].object_id
    message = inflate_object_from_contents(name, objects)
    if not isinstance(message, Message):
        raise TypeError(f"a {type(message).__name__} came as a message")
    message.metadata.__dict__["_message_id"] = name  # an object cannot hold its own id
    return message


def answered(
    message: Message, context: Context, load: Callable[[], ClientApp], failing: ThrottledLog
) -> bytes:
    """Run the app on a message; return the reply as a bundle (`edgewire.protocol.bundle`).

    `load`: returns the app. If `load` or the app raises an error, the reply is an error reply, as
    on Flower's own nodes, and `failing` logs the error. `context` then holds what the app has
    stored, even after an error. If `load` raises `OtherApp`, this function raises it too.
    """
    TaskIdentity.run_id, TaskIdentity.node_id = context.run_id, context.node_id
    TaskIdentity.task_id = message.metadata.dst_task_id or context.run_id
    began = time.perf_counter()
    try:
        reply = load()(message, context)
        bundle = _bundle(reply, message, time.perf_counter() - began)
    except (OtherApp, Ended):
        raise
    except (Exception, SystemExit) as error:  # the app may raise anything, or call sys.exit
        cause = error.__cause__ or error  # Flower's wrapper may have raised its own error
        what = "the app failed"
        failing.say(what, cause) if _is_one_line(cause) else failing.say(what, error=error)
        return refused(message, error, time.perf_counter() - began)
    failing.over()
    return bundle


def _is_one_line(error: BaseException) -> bool:
    """Return whether an error is logged in one line, without a traceback."""
    return getattr(error, "one_line", False)


def refused(message: Message, error: BaseException, seconds: float = 0.0) -> bytes:
    """Return an error reply to a message, as a bundle. `seconds`: how long the app has run."""
    died = isinstance(error, NodeDied)
    code = ErrorCode.CLIENT_APP_CRASHED if died else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    reason = str(error) if died or _is_one_line(error) else f"{type(error).__name__}: {error}"
    if isinstance(error, AppError):
        code, reason = ErrorCode.LOAD_CLIENT_APP_EXCEPTION, f"the ClientApp did not load: {error}"
    return _bundle(Message(Error(code, reason), reply_to=message), message, seconds)


def _bundle(reply: Message, message: Message, seconds: float) -> bytes:
    """Return a bundle that holds a reply, its objects, and the confirmation of the message.

    `seconds`: how long the app has run.
    """
    node = ProtoNode(node_id=reply.metadata.src_node_id)
    reply.metadata.group_id = reply_group_id(message.metadata.group_id)
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree = get_object_tree(reply)
        objects = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
        request = PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )
    confirm = ConfirmMessageReceivedRequest(
        node=node, run_id=message.metadata.run_id, message_object_id=message.metadata.message_id
    )
    return frames(
        [
            (REQUEST, request.SerializeToString()),
            *objects.items(),
            (CONFIRM, confirm.SerializeToString()),
        ]
    )
