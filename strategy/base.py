"""What our own strategies share: counters, whom they leave out, no evaluation at the nodes."""

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
STEP_MESSAGE = "train.step"  # the type of their messages
MAX_CONSECUTIVE_FAILURES = 20  # replies in a row of every node, not one of use: the run ends
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
    """What every server of ours has come to: counters, and why each node was left out last."""

    traffic: Traffic = field(default_factory=Traffic)
    train_metrics: dict[str, float] | None = None
    reasons: dict[int, str] = field(default_factory=dict)


class ParameterServer(Strategy):
    """A server whose nodes send updates of its model.

    `update`: "gradient" of one mini-batch, applied at the run's lr, or "delta": what local steps
    changed, with the sign of a gradient, applied at `server_lr`. Raises `ValueError` for others.

    All that a run has come to is in `state`, which `save` returns as bytes between two turns (when
    `after_turn` is called); a strategy of the same options that has taken them by `load` goes on
    from there when it is started, over a grid on which the same messages are still under way.
    """

    unit = "ROUND"  # what a run is counted in
    sends_models = True  # both ways; else what they are of
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
        self._goes_on = False  # with a state that was loaded

    @property
    def traffic(self) -> Traffic:
        """What has crossed the network so far."""
        return self.state.traffic

    @property
    def train_metrics(self) -> dict[str, float] | None:
        """What the nodes have reported last; None if not one answered."""
        return self.state.train_metrics

    @property
    @abstractmethod
    def done(self) -> int:
        """How many units are through."""

    @abstractmethod
    def abandon(self, back: Collection[int] = ()) -> None:
        """Give up what is under way: nobody will answer it, and nodes are sent messages anew.

        For a state that is older than what nodes have: they get the model whole, but those that go
        `back` with the server.
        """

    def save(self) -> bytes:
        """Return the state as bytes."""
        return to_bytes(self.state, self._options())

    def load(self, data: bytes) -> None:
        """Take a state with which the next `start` goes on.

        Raises `StateError` for another's, or one that was saved with other options.
        """
        self.state, self._goes_on = from_bytes(self.State, data, self._options()), True

    def _options(self) -> dict[str, str]:
        """Return the options that a state is bound to; how long a run is is none of them."""
        found = {}
        for name, value in vars(self).items():
            if name in FREE or name.startswith("_"):
                continue
            plain = isinstance(value, PLAIN) or is_dataclass(value)
            found[name] = repr(value) if plain else type(value).__name__
        return found

    def _begin(self) -> bool:
        """Begin a run, with an empty state unless one was loaded; return whether it goes on."""
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
        """Say that a turn is over: all that has come is in the state."""
        if self.after_turn is not None:
            self.after_turn()

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError`, one line, for what of a run's configuration does not go with it."""
        self._expect_recorded(config.eval_every)
        if self.update == "gradient":
            self._expect_no_steps(config)

    def _expect_recorded(self, eval_every: int) -> None:
        """Refuse records between which an evaluation would fall out."""
        if eval_every % self.record_every:
            raise ConfigError(
                f"eval_every={eval_every} must be a multiple of "
                f"strategy.record_every={self.record_every}"
            )

    def _expect_no_steps(self, config: Config) -> None:
        """Refuse what a node that sends the gradient of one mini-batch would not heed."""
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
        """Hand over the model; keep what it gave, and log it as Flower's own strategies do."""
        metrics = evaluate_fn(done, arrays) if evaluate_fn else None
        if metrics:
            result.evaluate_metrics_serverapp[done] = metrics
            FLOWER.info("[%s %d/%d] %s", self.unit, done, of, metrics)

    def fail(self, node: int, reason: str, when: str = "") -> None:
        """Count a reply that was not used; name it, `when` first, if the reason is a new one."""
        self.traffic.failures += 1
        reason = in_one_line(reason)
        if self.state.reasons.get(node) != reason:  # once, not at every one of 100,000 messages
            self.state.reasons[node] = reason
            log.warning("%snode %d left out: %s", when, node, reason)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """`start` does it all."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """`start` does it all."""
        return None, None

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing is evaluated at the nodes."""
        return None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing is evaluated at the nodes."""
        return []


def expect_positive(**options: int) -> None:
    """Raise `ValueError` for the first option that is below 1."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
