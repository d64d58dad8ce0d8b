"""Runs any app's ClientApp on one message, isolated from other nodes."""

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

from edgewire.machine.errors import UsageError
from edgewire.simulation.any_app.app import App
from edgewire.simulation.any_app.generators import seeded


@dataclass(frozen=True)
class GuestNode:
    """Calls the app's ClientApp; the engine calls this object instead of the ClientApp.

    It copies the content of a message, so nodes do not share it. It copies the reply, so the reply
    does not share data with the node's state. It seeds the global random generators by `seed`, the
    node's number, and the number of messages that the node had before. It logs an exception of the
    ClientApp with the traceback, as Flower's simulation does.
    """

    app: App
    seed: int

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the ClientApp's reply; raise its exception, or an error for an invalid reply."""
        given = context.run_config
        context.run_config = dict(given)
        if self.app.client_app.partition(":")[0] not in sys.modules:  # a new worker process
            with seeded(self.seed), suppress(UsageError):  # the call below then raises
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
            sys.stdout.flush()  # a worker ends without flushing
            sys.stderr.flush()
