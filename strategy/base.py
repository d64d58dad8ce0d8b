"""The base class of EdgeWire's strategies: traffic counters, state as bytes, failed nodes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, is_dataclass
from logging import getLogger
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from compression.flower import Traffic
from compression.flower.native_tensors import Initial
from compression.flower.server.update_filter import Screening
from compression.flower.traffic import in_one_line
from conf import Config, ConfigError
from strategy.run.serialization import PLAIN, from_bytes, to_bytes

UPDATES = ("gradient", "delta")
STEP_MESSAGE = "train.step"  # the message type of these strategies
MAX_CONSECUTIVE_FAILURES = 20  # the run ends after so many unusable replies in a row of every node
FREE = (
    "state",
    "initial",
    "pushes",
    "record_every",
    "evaluate_metrics",
    "after_turn",
    "plan",
    "rates",
)
log = getLogger("edgewire")
FLOWER = getLogger("flwr")  # what `flwr run --stream` shows: the course of a run
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class ServerState:
    """The state of every EdgeWire server: counters, and each node's last failure reason."""

    traffic: Traffic = field(default_factory=Traffic)
    train_metrics: dict[str, float] | None = None
    reasons: dict[int, str] = field(default_factory=dict)


class ParameterServer(Strategy):
    """A server whose nodes send updates of its model.

    `update`: "gradient" of one mini-batch, applied at the run's lr, or "delta": the model before
    local steps minus the model after them, applied at `server_lr`. Raises `ValueError` for others.

    `state` holds the whole state of a run. `save` returns it as bytes between two turns, when the
    strategy calls `after_turn`. After `load`, a strategy with the same options resumes at that
    point; its grid must still have the same messages under way.
    """

    unit = "ROUND"  # of progress, for the log
    sends_models = True  # whole models or their updates, both ways
    State: ClassVar[type[ServerState]]
    state: ServerState
    record_every = 1  # units from one evaluation to the next
    no_steps = "drop it"  # what to do about an optimizer= of nodes that take no steps

    def __init__(self, update: str, server_lr: float) -> None:
        if update not in UPDATES:
            raise ValueError(f"update must be one of {', '.join(UPDATES)}, not {update!r}")
        if not 0 < server_lr < math.inf:
            raise ValueError(f"server_lr must be a number above 0, not {server_lr:g}")
        self.update, self.server_lr = update, server_lr
        self.rate = None if update == "gradient" else server_lr  # of updates; None: the run's lr
        self.state = self.State()
        self.screening = Screening()
        self.initial: Initial | None = None  # native tensors of the model that is trained
        self.evaluate_metrics: MetricRecord | None = None
        self.after_turn: Callable[[], None] | None = None
        self._goes_on = False  # whether `start` resumes a loaded state

    @property
    def traffic(self) -> Traffic:
        """The bytes and messages that have crossed the network so far."""
        return self.state.traffic

    @property
    def train_metrics(self) -> dict[str, float] | None:
        """The nodes' last metrics; None if no node has answered."""
        return self.state.train_metrics

    @property
    @abstractmethod
    def done(self) -> int:
        """The number of units (rounds, pushes, mini-batches) so far."""

    @abstractmethod
    def abandon(self, back: Collection[int] = ()) -> None:
        """Give up the messages under way, which no node will answer, and plan new ones.

        A resumed server calls this if its state may be older than the nodes' state. Nodes then get
        the whole model, except the nodes in `back`, which return to the same checkpoint.
        """

    def save(self) -> bytes:
        """Return the state as bytes."""
        return to_bytes(self.state, self._options())

    def load(self, data: bytes) -> None:
        """Take a saved state; the next `start` resumes from it.

        Raises `StateError` for a state of another strategy, or one saved with other options.
        """
        self.state, self._goes_on = from_bytes(self.State, data, self._options()), True

    def _options(self) -> dict[str, str]:
        """Return the options that must be the same when a state is loaded; the run's length may
        differ.
        """
        found = {}
        for name, value in vars(self).items():
            if name in FREE or name.startswith("_"):
                continue
            plain = isinstance(value, PLAIN) or is_dataclass(value)
            found[name] = repr(value) if plain else type(value).__name__
        return found

    def _begin(self) -> bool:
        """Begin a run, with an empty state unless one was loaded; return whether it resumes."""
        FLOWER.info("Starting %s strategy:", type(self).__name__)
        self.summary()
        goes_on, self._goes_on = self._goes_on, False
        if not goes_on:
            self.state = self.State()
        return goes_on

    def forget(self, nodes: set[int]) -> None:
        """Forget nodes that are gone."""
        for node in nodes:
            self.state.reasons.pop(node, None)

    def _turned(self) -> None:
        """Call `after_turn` at the end of a turn: the state is complete and can be saved."""
        if self.after_turn is not None:
            self.after_turn()

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError`, one line, for options that this strategy does not support."""
        self._expect_recorded(config.eval_every)
        if self.update == "gradient":
            self._expect_no_steps(config)

    def _expect_recorded(self, eval_every: int) -> None:
        """Raise `ConfigError` unless every evaluation falls on a record."""
        if eval_every % self.record_every:
            raise ConfigError(
                f"eval_every={eval_every} must be a multiple of "
                f"strategy.record_every={self.record_every}"
            )

    def _expect_no_steps(self, config: Config) -> None:
        """Raise `ConfigError` for options that only local steps use: a gradient node takes none."""
        for key, value, alone in (
            ("local_steps", config.local_steps, None),
            ("local_epochs", config.local_epochs, 1),
        ):
            if value != alone:
                raise ConfigError(
                    f"{key} goes with strategy.update=delta; with strategy.update=gradient a node "
                    "sends the gradient of one mini-batch"
                )
        unheeded = config.optimizer.get("weight_decay") or config.optimizer.get("nesterov")
        if unheeded or not str(config.optimizer["_target_"]).endswith(".SGD"):
            raise ConfigError(
                "optimizer= is for steps at the nodes, and with strategy.update=gradient they take "
                f"none: {self.no_steps}, or give strategy.update=delta"
            )

    def _evaluate(
        self,
        evaluate_fn: EvaluateFn | None,
        done: int,
        of: int,
        arrays: ArrayRecord,
        result: Result,
    ) -> None:
        """Call `evaluate_fn`; keep its metrics and log them as Flower's own strategies do."""
        metrics = evaluate_fn(done, arrays) if evaluate_fn else None
        if metrics:
            result.evaluate_metrics_serverapp[done] = metrics
            FLOWER.info("[%s %d/%d] %s", self.unit, done, of, metrics)

    def fail(self, node: int, reason: str, when: str = "") -> None:
        """Count an unused reply; log node and reason, after `when`, if the reason is new."""
        self.traffic.failures += 1
        reason = in_one_line(reason)
        if self.state.reasons.get(node) != reason:  # one line, not one for each of 100,000 messages
            self.state.reasons[node] = reason
            log.warning("%snode %d left out: %s", when, node, reason)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: `start` makes its own."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return nothing: `start` aggregates by itself."""
        return None, None

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing: the nodes do not evaluate."""
        return None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: the nodes do not evaluate."""
        return []


def expect_positive(**options: int) -> None:
    """Raise `ValueError` for the first option that is below 1."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
