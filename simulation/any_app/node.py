"""A node of somebody else's app: its ClientApp, alone with its message."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from logging import ERROR

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore import log

from ..errors import UsageError
from .app import App
from .generators import seeded


@dataclass(frozen=True)
class GuestNode:
    """Answers as the app's ClientApp does; what the engine calls in its place, in any process.

    Nothing is shared: neither a message's content with other nodes, nor a reply's with the node's
    state. Global generators are seeded by (`seed`, node, which of its messages this is). What the
    ClientApp raises is logged in full, as in Flower's simulation.
    """

    app: App
    seed: int

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message; raises what the ClientApp raises, and for what Flower refuses."""
        given = context.run_config
        context.run_config = dict(given)
        if self.app.client_app.partition(":")[0] not in sys.modules:  # a worker that began anew
            with seeded(self.seed), suppress(UsageError):  # if it is what cannot be loaded
                self.app.load_both()
        client_app = self.app.load(self.app.client_app, ClientApp)
        message.content = deepcopy(message.content)
        try:
            with seeded(self.seed, *message.metadata.message_id.encode()):
                answer: object = client_app(message, context)
            if context.run_config != given:
                raise ValueError("the `run_config` of a Context cannot be modified")
            if not isinstance(answer, Message):
                raise TypeError(f"the ClientApp returned {type(answer).__name__}, not a Message")
            return deepcopy(answer)
        except Exception:
            log(ERROR, traceback.format_exc())
            raise
        finally:
            context.run_config = given
            sys.stdout.flush()  # a worker ends without
            sys.stderr.flush()
