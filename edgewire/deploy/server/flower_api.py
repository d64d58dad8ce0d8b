"""Checks that Flower's internal functions accept the arguments that this server passes.

These functions are no public interface, so a release of Flower may change their arguments. The
server checks them before the first message. The calls are in `edgewire.deploy.server.api` and
`edgewire.deploy.server.message_store`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def expect_handlers() -> None:
    """Raise `ImportError` with a one-line message unless Flower's functions take the arguments."""
    from flwr.supercore.dependencies.task import authenticate_task
    from flwr.supercore.error import http_error_translator
    from flwr.superlink.dependencies.linkstate import get_linkstate
    from flwr.superlink.routers.fleet.node_auth import authenticate_node
    from flwr.superlink.servicer.fleet import fleet_handlers as fleet
    from flwr.superlink.servicer.runtime import runtime_handlers as runtime

    found: dict[int, list[str]] = {
        1: ["authenticate_node", "get_linkstate"],
        2: ["push_messages", "push_object", "pull_object", "http_error_translator"],
        3: ["pull_messages", "confirm_message_received", "authenticate_task"],
    }
    guards = (authenticate_node, get_linkstate, http_error_translator, authenticate_task)
    apart = {each.__name__: each for each in guards}
    for count, names in found.items():
        for name in names:
            expect(apart.get(name) or getattr(fleet, name, None), name, count)
    for name in ("push_messages", "pull_messages", "push_object", "pull_object"):
        expect(getattr(runtime, name, None), name, 3)


def expect(function: Callable[..., Any] | None, name: str, count: int) -> None:
    """Raise `ImportError` unless the function exists and takes `count` positional arguments."""
    try:
        if function is None:
            raise TypeError
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise ImportError(f"{name} is called otherwise in this release") from error
