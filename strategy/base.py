"""The base class of EdgeWire's strategies, with traffic counters, saved state and failed nodes."""

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, ClassVar, NamedTuple, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from edgewire.compression.flower import Traffic
from edgewire.compression.flower.headers import HEADER
from edgewire.compression.flower.message_size import measured
from edgewire.compression.flower.native_tensors import Initial
from edgewire.compression.flower.server.failure_policy import (
    NOT_OPEN,
    PATIENT,
    FailedNode,
    FailurePolicy,
    FailurePolicyState,
)
from edgewire.compression.screening import Screening
from edgewire.conf.check import NO_CODECS, Codecs
from edgewire.conf.schema import Config, Secure
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.serialization import from_bytes, to_bytes
from edgewire.task.objectives import Objective

UPDATES = ("gradient", "delta")
STEP_MESSAGE = "train.step"  # the message type of these strategies
log = getLogger("edgewire")
FLOWER = getLogger("flwr")  # `flwr run --stream` shows this logger's messages
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class ServerState:
    """The state that all EdgeWire servers have: counters of bytes, and of failures."""

    traffic: Traffic = field(default_factory=Traffic)
    train_metrics: dict[str, float] | None = None
    failures: FailurePolicyState = field(default_factory=FailurePolicyState)


class Started(NamedTuple):
    """The arguments of `RunStrategy.start`.

    `goes_on`: True if the run resumes from a loaded state. `result`: what `start` will return.
    """

    grid: Grid
    arrays: ArrayRecord
    rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None
    goes_on: bool
    result: Result


class RunStrategy(Strategy):
    """A strategy of a run: it counts the bytes that cross the network, and its state can be saved.

    `initial`: the native tensors. These are sent in their own dtype, and are not in the flat model
    that `start` gets (`compression/flower/native_tensors.py`). `evaluate_metrics`: the metrics of
    the last round's evaluation at the nodes; None if there was none.

    `state` holds the whole state of a run. The strategy calls `on_state_complete` whenever the
    state is complete, for example after a round. Only then `save` returns it as bytes. After
    `load`, a strategy with the same options resumes at that point. The grid must still have the
    messages that had no reply at that point.
    """

    unit = "ROUND"  # the unit of progress in the log
    State: ClassVar[type[Any]]
    state: Any

    def __init__(self, *wrapped: Strategy) -> None:
        self.state = self.State()
        self.initial: Initial | None = None
        self.evaluate_metrics: MetricRecord | None = None
        self.evaluated: dict[str, Any] | None = None
        self.on_state_complete: Callable[[], None] = lambda: None
        # With privacy: writes a round into the ledger, before the round begins.
        self.count_round: Callable[[], None] | None = None
        self._goes_on = False  # whether `start` resumes a loaded state
        super().__init__(*wrapped)

    @property
    def traffic(self) -> Traffic:
        """The counters of bytes and messages so far."""
        return cast(Traffic, self.state.traffic)

    @property
    def failed_nodes(self) -> Mapping[int, FailedNode]:
        """The nodes whose replies could not all be used."""
        return cast(FailurePolicyState, self.state.failures).failed_nodes

    @property
    def train_metrics(self) -> Mapping[str, Any] | None:
        """The means of the nodes' newest training metrics; None before the first reply."""
        return cast(Mapping[str, Any] | None, self.state.train_metrics)

    @property
    def done(self) -> int:
        """The number of units (rounds, asynchronous updates or mini-batches) so far."""
        return cast(int, self.state.round)

    @abstractmethod
    def abandon(self, back: Collection[int] = ()) -> None:
        """Delete the messages without a reply, which no node will answer, and plan new messages.

        A resumed server calls this method if the nodes' states may be newer than its state. Then
        all nodes get the whole model, except those in `back`, which resume from the same
        checkpoint.
        """

    def save(self) -> bytes:
        """Return the state as bytes; raises `TypeError` for a value that cannot be saved."""
        return to_bytes(self.state)

    def load(self, data: bytes) -> None:
        """Set the state to a saved one; the next `start` resumes from it.

        Raises `StateError` for a state of another class. The options must be the same.
        """
        self.state, self._goes_on = from_bytes(self.State, data), True

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the whole training, like Flower's `Strategy.start`; `evaluate_fn` gets a flat model.

        `num_rounds`: the number of rounds or mini-batches; an asynchronous server has `pushes` in
        its place. `timeout`: the most seconds of one round, or to wait for the reply to a message.
        The server reads `train_config["lr"]` for every message, so `evaluate_fn` may change it.
        """
        train, evaluate = train_config or ConfigRecord({"lr": 0.1}), evaluate_config
        goes_on, self._goes_on = self._goes_on, False
        if not goes_on:
            self.state = self.State()
        FLOWER.info("Starting %s strategy:", type(getattr(self, "strategy", self)).__name__)
        self.summary()
        result = Result()
        configs = train, evaluate or ConfigRecord()
        run = Started(
            grid, initial_arrays, num_rounds, timeout, *configs, evaluate_fn, goes_on, result
        )
        self._train(run)
        return result

    @abstractmethod
    def _train(self, run: Started) -> None:
        """Run the whole training; see `start`."""

    def _evaluate(self, run: Started, done: int, of: int, arrays: ArrayRecord) -> None:
        """Call `evaluate_fn`; put its metrics into the result, and log them as Flower does."""
        metrics = run.evaluate_fn(done, arrays) if run.evaluate_fn else None
        if metrics:
            run.result.evaluate_metrics_serverapp[done] = metrics
            FLOWER.info("[%s %d/%d] %s", self.unit, done, of, metrics)


class ParameterServer(RunStrategy):
    """A server that trains a model with updates from its nodes.

    `update="gradient"`: an update is the gradient of one mini-batch, applied at the run's learning
    rate. `update="delta"`: an update is the model before local training minus the model after it,
    applied at the rate `server_lr`. Raises `ValueError` for another `update`, and for a `server_lr`
    that is not above 0.
    """

    knows_context = False  # both ends know what the server sent: index sets may be coded by context
    sends_models = True  # the messages in both directions hold whole models or updates
    State: ClassVar[type[ServerState]]
    state: ServerState
    record_every = 1  # units (rounds, updates, mini-batches) from one evaluation to the next
    no_steps = "drop it"  # advice in an error: what to do with optimizer= if nodes take no steps

    def __init__(self, update: str, server_lr: float, codecs: Codecs = NO_CODECS) -> None:
        if update not in UPDATES:
            raise ValueError(f"update must be one of {', '.join(UPDATES)}, not {update!r}")
        if not 0 < server_lr < math.inf:
            raise ValueError(f"server_lr must be a number above 0, not {server_lr:g}")
        self.update, self.server_lr = update, float(server_lr)  # messages hold it as a float
        # The rate at which updates are applied; None: the run's learning rate.
        self.rate = None if update == "gradient" else self.server_lr
        self.codecs = codecs
        super().__init__()
        self.failures = FailurePolicy(self.traffic, PATIENT, self.state.failures)
        self.screening = Screening()
        self.secure = Secure()
        # For an evaluation at the nodes: the run's objective, and the rounds between two of them.
        self.objective: Objective | None = None
        self.eval_every = 1

    def _ordered(self, grid: Grid) -> OrderedGrid:
        """Return the grid in the nodes' order; it refuses replies to messages that are not open."""
        self.failures = FailurePolicy(self.traffic, PATIENT, self.state.failures)
        grid = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid)
        grid.refuse = self._refuse
        return grid

    def _refuse(self, reply: Message) -> None:
        if not reply.has_error():
            self.traffic.count_received(measured(reply.content, HEADER), 0)
        self.failures.leave_out(reply.metadata.src_node_id, NOT_OPEN)

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError` for options that one's own subclass lacks.

        The combinations that this package's strategies lack are in `edgewire.conf.rules`.
        """

    def _in_start(self, *arguments: Any, **options: Any) -> Any:
        """Refuse Flower's calls by round: `start` makes the messages, and aggregates the updates.

        Flower's `Strategy` declares them abstract. Raises `NotImplementedError`.
        """
        # Not unfinished: only Flower's own `start` calls these four, and a subclass has another.
        raise NotImplementedError(f"{type(self).__name__}.start runs the whole training")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _in_start
