"""Runs any app's ClientApp on one message, isolated from other nodes."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from logging import ERROR

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore import log

from edgewire.machine.errors import UsageError
from edgewire.simulation.any_app.app import App


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


@contextmanager
def seeded(*entropy: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch (if imported) within this context.

    At the end their earlier states are restored, also those of the GPUs that torch has begun to
    use: `torch.manual_seed` seeds all. `entropy`: integers of at least 0.
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what apps draw from
    cpu = torch and torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch and torch.cuda.is_initialized() else []
    first, second, third = np.random.SeedSequence(entropy).generate_state(3).tolist()
    random.seed(first)
    np.random.seed(second)  # noqa: NPY002
    if torch:
        torch.manual_seed(third)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(cpu)
            torch.cuda.set_rng_state_all(gpus)
