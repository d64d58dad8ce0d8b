"""Makes runs in which nodes mutate their replies; records whom the server blames."""

import logging
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from safetensors.numpy import load_file

from edgewire.client.app import app as honest
from edgewire.client.training import Trainer
from edgewire.compression.flower.headers import EXAMPLES, LOSS, STEPS
from edgewire.compression.flower.server.failure_policy import FailurePolicy
from edgewire.conf.network import Network
from tests.local_runs import local_run
from tests.mutations import Mutator
from tests.runs import choices, composed

CASES = [f"algorithm={name}" for name in choices("algorithm")]
CASES += [f"strategy={name}" for name in choices("strategy") if name not in choices("algorithm")]
CASES += [f"algorithm={name} model=four_layers" for name in ("fedavg", "esgd", "adacomp")]
CASES += ["strategy=fedmedian model=four_layers"]
CASES += [f"algorithm={name} compact_records=true" for name in ("fedavg", "esgd", "adacomp")]
# Four nodes of five mutate every second reply; a node that always fails would get no messages.
NODES, BAD = 5, 4
EVERY = 2


def words_of(case: str, replies: int) -> list[str]:
    """Return the overrides of a run in which nodes mutate about `replies` replies in all."""
    found = case.split()
    strategy = composed(*found).strategy
    segments = "segments" in strategy
    # In a cut model (divided into segments on different nodes) one node at a time trains a segment.
    many, bad = (4, 1) if segments else (NODES, BAD)
    turns = EVERY * -(-replies // bad)
    if "num_malicious_nodes" in strategy:
        found += [f"strategy.num_malicious_nodes={BAD // EVERY}"]
        many = 4 * (BAD // EVERY) + 3  # as many as Bulyan needs
    found += ["dataset=digits", "network=ideal", f"nodes={many}", "checkpoint_every=0"]
    if "pushes" in strategy:
        pushes = turns * many
        found += [f"strategy.{key}={pushes}" for key in ("pushes", "record_every")]
        found += [f"eval_every={pushes}"]
    else:
        found += [f"rounds={turns}", f"eval_every={turns}"]
    if strategy.get("fraction_train", 1) < 1:  # too few of the nodes would get a message
        found += ["strategy.fraction_train=1"]
    if segments:
        found += ["strategy.segments=2"]
    elif "model=" not in case:
        found += ["model=mlp"]
    if strategy.get("update") == "delta" or not ("update" in strategy or segments):
        found += ["local_steps=1"]
    return [*found, "batch_size=8"]


@dataclass
class Fuzzed:
    """A ClientApp in which some nodes mutate replies: `BAD` nodes, from partition 1 on.

    In a cut model they are all nodes of one segment.
    """

    seed: int
    mutated: int = 0
    replies: Counter[int] = field(default_factory=Counter)  # number of replies by mutating node
    blamed: dict[int, str] = field(default_factory=dict)
    done: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mutate = Mutator(self.seed)

    def __call__(self, message: Message, context: Context) -> Message:
        """Reply honestly, or with a mutated reply."""
        reply, mutated = honest(message, context), False
        if self._is_bad(message, context) and not reply.has_error():
            node = message.metadata.dst_node_id
            self.replies[node] += 1
            turn = self.replies[node] + int(context.node_config["partition-id"])
            mutated = turn % EVERY == 0
        if mutated:
            reply, done = self.mutate(reply)
            self.done.append(done)
            self.mutated += 1
        else:
            self.mutate.hear(reply)
        return reply

    def _is_bad(self, message: Message, context: Context) -> bool:
        config: Any = message.content.get("config", {})
        if "segment" in config:
            return bool(config["segment"] == self.seed % 2)
        return 1 <= context.node_config["partition-id"] <= BAD

    def blame(self, node: int, reason: str) -> None:
        """Record that a node's reply was left out, and why."""
        self.blamed.setdefault(node, reason)


def fuzz(case: str, replies: int, seed: int) -> tuple[Fuzzed, str]:
    """Run a case; return the app with its records, and the error that ended the run ("": none)."""
    import pytest

    app = Fuzzed(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        _listen(patch, app)
        _draw_updates(patch)
        logging.disable(logging.CRITICAL)  # otherwise thousands of replies log a line each
        try:
            words = words_of(case, replies)
            local_run(Path(folder), *words, client_app=app, network=Network())
        except Exception as error:
            return app, f"{type(error).__name__}: {error}"[:300]
        finally:
            logging.disable(logging.NOTSET)
        weights = load_file(Path(folder) / "model.safetensors")
        if not all(np.isfinite(each).all() for each in weights.values()):
            return app, "the model is not finite"
    return app, ""


def _draw_updates(patch: Any) -> None:
    """Replace training by random updates, because only the server's work is tested."""

    def drawn(node: Any, number: int, size: int) -> Any:
        return np.random.default_rng((node.index, number)).normal(0, 0.01, size).astype("float32")

    def train(self: Trainer, node: Any, start: Any, orders: Any, *more: Any) -> Any:
        trained = start + drawn(node, orders.number, len(start))
        trained[self.trained :] = start[self.trained :]
        return trained, {LOSS: 1 + orders.number % 2, EXAMPLES: 8, STEPS: 1}

    def gradient(self: Trainer, node: Any, model: Any, natives: Any = None, *, number: int) -> Any:
        update = drawn(node, number, len(model))
        update[self.trained :] = model[self.trained :]
        return update, {LOSS: 1.0 + number % 2, EXAMPLES: 8, STEPS: 1}

    patch.setattr(Trainer, "train", train)
    patch.setattr(Trainer, "gradient", gradient)


def _listen(patch: Any, app: Fuzzed) -> None:
    leave_out: Callable[..., None] = FailurePolicy.leave_out

    def left_out(self: Any, node: int, reason: str, when: str = "") -> None:
        app.blame(node, reason)
        leave_out(self, node, reason, when)

    patch.setattr(FailurePolicy, "leave_out", left_out)
