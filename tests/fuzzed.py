"""Runs in which one node's replies are mutated: what the server makes of them, and at what cost."""

from __future__ import annotations

import json
import logging
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from flwr.app import Context, Message
from safetensors.numpy import load_file

from client.app import app as honest
from client.trainer import Trainer
from compression.flower.course import Course
from compression.flower.notes import EXAMPLES, LOSS, NOTE, STEPS
from conf.load import run_config
from simulation.job import Job
from simulation.local import run_local
from strategy.server import ParameterServer
from tests.mutations import Mutator
from tests.runs import composed

ROOT = Path(__file__).parents[1]
ALGORITHMS = sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml"))
STRATEGIES = sorted(path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml"))
CASES = [f"algorithm={name}" for name in ALGORITHMS]
CASES += [f"strategy={name}" for name in STRATEGIES if name not in ALGORITHMS]
CASES += ["algorithm=fedavg model=four_layers"]
BAD = 1  # its partition
EVERY = 2  # of its replies one is mutated: who fails too often is asked no more


def words_of(case: str, replies: int) -> list[str]:
    """Return the words of a short run in which a node replies about twice as often."""
    found = case.split()
    config = composed(*found)
    strategy = config.strategy
    turns = EVERY * replies
    many = 7 if "num_malicious_nodes" in strategy else 3
    found += ["dataset=digits", f"nodes={many}", "checkpoint_every=0"]
    segments = "segments" in strategy
    if "pushes" in strategy:
        pushes = turns * many
        found += [f"strategy.{key}={pushes}" for key in ("pushes", "record_every")]
        found += [f"eval_every={pushes}"]
    else:
        found += [f"rounds={turns}", f"eval_every={turns}"]
    if segments:
        found += ["strategy.segments=2"]
    elif "model=" not in case:
        found += ["model=mlp"]
    if strategy.get("update") == "delta" or not ("update" in strategy or segments):
        found += ["local_steps=1"]
    if "num_malicious_nodes" in strategy:
        found += ["strategy.num_malicious_nodes=1"]
    return [*found, "batch_size=8"]


@dataclass
class Fuzzed:
    """A ClientApp, one of whose nodes replies as a `Mutator` likes; what it cost the server.

    `seconds`, `memory`: from a reply of this node to its next one, by whether it was mutated.
    """

    seed: int
    traced: bool = False
    mutated: int = 0
    replies: int = 0
    bad: set[int] = field(default_factory=set)  # nodes
    blamed: dict[int, str] = field(default_factory=dict)
    done: list[list[str]] = field(default_factory=list)
    seconds: list[tuple[bool, float]] = field(default_factory=list)
    memory: list[tuple[bool, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mutate = Mutator(self.seed)
        self._left, self._spent, self._most, self._start = 0.0, 0.0, 0, 0
        self._last: bool | None = None

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer honestly, or not."""
        self._enter()
        reply = honest(message, context)
        if self._is_bad(message, context) and not reply.has_error():
            if self._last is not None:
                self.seconds.append((self._last, self._spent))
                self.memory.append((self._last, self._most))
            self._spent, self._most, self.replies = 0.0, 0, self.replies + 1
            self._last = self.replies % EVERY == 0
            if self._last:
                self.bad.add(message.metadata.dst_node_id)
                reply, done = self.mutate(reply)
                self.done.append(done)
                self.mutated += 1
        self.mutate.hear(reply) if not self._last else None
        self._leave()
        return reply

    def _is_bad(self, message: Message, context: Context) -> bool:
        config: Any = message.content.get("config", {})
        if "segment" in config:
            return bool(config["segment"] == self.seed % 2)
        return bool(context.node_config["partition-id"] == BAD)

    def _enter(self) -> None:
        if self._left:
            self._spent += process_time() - self._left
            if self.traced:
                self._most = max(self._most, tracemalloc.get_traced_memory()[1] - self._start)

    def _leave(self) -> None:
        if self.traced:
            tracemalloc.reset_peak()
            self._start = tracemalloc.get_traced_memory()[0]
        self._left = process_time()

    def blame(self, node: int, reason: str) -> None:
        """Note who was left out."""
        self.blamed.setdefault(node, reason)


def fuzz(case: str, replies: int, seed: int, *, traced: bool = False) -> tuple[Fuzzed, str]:
    """Run; return what happened, and why the run ended, "" if at its end."""
    import pytest

    app = Fuzzed(seed, traced)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        _listen(patch, app)
        _draw_updates(patch)
        values = run_config(composed(*words_of(case, replies)), folder)
        job = Job(ROOT, values, json.loads(values["config"])["nodes"], Path(folder), client_app=app)
        logging.disable(logging.CRITICAL)  # a line for each of thousands of replies
        try:
            run_local(job, workers=1)
        except Exception as error:
            return app, f"{type(error).__name__}: {error}"[:300]
        finally:
            logging.disable(logging.NOTSET)
        weights = load_file(Path(folder) / "model.safetensors")
        if not all(np.isfinite(each).all() for each in weights.values()):
            return app, "the model is not finite"
    return app, ""


def _draw_updates(patch: Any) -> None:
    """Let nodes draw what they have learned: the server's work is tried, and training is not."""

    def drawn(node: Any, number: int, size: int) -> Any:
        return np.random.default_rng((node.index, number)).normal(0, 0.01, size).astype("float32")

    def train(self: Trainer, node: Any, start: Any, orders: Any, natives: Any = None) -> Any:
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
    leave_out: Callable[..., None] = Course.leave_out
    fail: Callable[..., None] = ParameterServer.fail

    def left_out(self: Any, server_round: int, node: int, reason: str) -> None:
        app.blame(node, reason)
        leave_out(self, server_round, node, reason)

    def failed(self: Any, node: int, reason: str, when: str = "") -> None:
        app.blame(node, reason)
        fail(self, node, reason, when)

    patch.setattr(Course, "leave_out", left_out)
    patch.setattr(ParameterServer, "fail", failed)


def ratio(found: list[tuple[bool, float]]) -> float:
    """Return the largest cost of a mutated reply, in the usual cost of an honest one."""
    usual = median(cost for mutated, cost in found if not mutated)
    return max(cost for mutated, cost in found if mutated) / max(usual, 1e-9)


__all__ = ["CASES", "NOTE", "Fuzzed", "fuzz", "ratio"]
