"""The strategy for one model cut over nodes: synthetic gradients, or split backpropagation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from compression import Codec
from compression.flower import flat_record, to_vector
from compression.flower.native_tensors import with_natives
from conf import Config, ConfigError
from conf.schema import FOREVER
from strategy.base import FLOWER, EvaluateFn, ParameterServer, expect_positive
from strategy.lr_schedule import Rates
from strategy.ordered_grid import OrderedGrid
from strategy.pipeline.dispatcher import Dispatcher
from strategy.pipeline.plan import AUTO, Plan, plan_of
from strategy.pipeline.schedule import (
    SCHEDULES,
    Backpropagation,
    PipelineSchedule,
    PipelineScheduleState,
    Synthetic,
)
from strategy.pipeline.state import LOST, PipelineState
from task.datasets import Data


class PipelineStrategy(ParameterServer):
    """Each node trains consecutive layers (a segment) on activations that it gets by message.

    Chen et al. 2019, "Exploring the use of synthetic gradients for distributed deep learning across
    cloud and edge resources", after Jaderberg et al. 2017. With `synthetic`, a node has a module
    that predicts the gradient of its output; the node steps along that prediction and goes on. The
    next segment computes the target gradient, from its own prediction; a later message brings it,
    and the node trains the module on it. Without `synthetic`, gradients go back through all
    segments before any of them steps (split backpropagation).

    `cuts`: numbers of the layers with which a new segment begins, or "auto". "auto" makes
    `segments` of them (null: one for each node), within `memory_mb` a node, so that the slowest
    segment is as fast as possible by times measured on the server. `schedule`: see
    `strategy.pipeline.schedule`. `queue`: messages that may wait at a node (async).
    `batches_per_message`: mini-batches in a message, with a step for each. `micro_batches`: of a
    mini-batch, for backpropagation in a pipeline. `conditioned`: modules see the labels. `hidden`:
    units of a module's hidden layer. `uplink`: the codec of activations; the configuration's
    `gradients` is that of gradients. `feedback`: a node keeps what compression loses and adds it to
    the next mini-batch's tensors. `segment_every`: mini-batches between two full copies of the
    segments at the server, from which another node can take over; 0: only the first copy.
    `record_every`: mini-batches between two evaluations.
    """

    unit = "STEP"
    sends_models = False
    State = PipelineState
    state: PipelineState

    def __init__(
        self,
        *,
        synthetic: bool = True,
        cuts: Any = AUTO,
        segments: int | None = None,
        memory_mb: Any = None,
        schedule: str = "pipeline",
        queue: int = 2,
        batches_per_message: int = 1,
        micro_batches: int = 1,
        conditioned: bool = True,
        hidden: int = 64,
        feedback: bool = False,
        segment_every: int = 0,
        record_every: int = 1,
        uplink: Codec | None = None,
        downlink: Codec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__("gradient", 1.0)
        counts = {"batches_per_message": batches_per_message, "micro_batches": micro_batches}
        expect_positive(queue=queue, hidden=hidden, record_every=record_every, **counts)
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
        if segments is not None:
            expect_positive(segments=segments)
        if segment_every < 0:
            raise ValueError(f"segment_every must be at least 0, not {segment_every}")
        if record_every % batches_per_message:
            raise ValueError(
                f"eval_every={record_every} must be a multiple of "
                f"batches_per_message={batches_per_message}"
            )
        if batches_per_message > 1 and micro_batches > 1:
            raise ValueError("batches_per_message does not go with micro_batches")
        if synthetic and micro_batches > 1:
            raise ValueError("micro_batches goes with synthetic=false (algorithm=split_backprop)")
        if not synthetic and schedule == "async":
            raise ValueError("schedule=async goes with synthetic gradients alone")
        if not synthetic and schedule == "sequential" and micro_batches > 1:
            raise ValueError("micro_batches goes with schedule=pipeline")
        if downlink is not None:
            raise ValueError("activations go down as they came up: downlink=full")
        self.synthetic, self.schedule, self.queue = synthetic, schedule, queue
        self.cuts, self.segments, self.memory_mb = cuts, segments, memory_mb
        self.per_message, self.micros = batches_per_message, micro_batches
        self.conditioned, self.hidden = conditioned, hidden if synthetic else 0
        self.segment_every, self.record_every = segment_every, record_every
        self.plan: Plan | None = None
        self._problem: tuple[Config, Data] | None = None

    def check_config(self, config: Config) -> None:
        """Raise `ConfigError` for options that nodes would ignore, or a run that could hang."""
        self._expect_recorded(config.eval_every)
        if config.local_steps is not None or config.local_epochs != 1:
            raise ConfigError(
                "a cut model's nodes step with each mini-batch: drop local_steps= and local_epochs="
            )
        if config.network.crash and config.timeout >= FOREVER:
            raise ConfigError(
                f"network.crash={config.network.crash:g} needs a timeout= here, the virtual "
                "seconds after which another node takes a segment over"
            )

    @property
    def done(self) -> int:
        """The number of mini-batches that all segments are done with."""
        flow = self.state.flow
        if not flow.done:
            return 0
        if self._goes_forward(len(flow.done)):
            return flow.done[-1] * self.per_message
        return flow.back[0] // self.micros

    def abandon(self, back: Collection[int] = ()) -> None:
        """Give up the messages under way and the placement: new holders get the last copies."""
        for row in self.state.under_way:
            for sent in row:
                sent.message_id, sent.reply = LOST if sent.message_id == LOST else "", None
        self.state.holders[:] = [None] * len(self.state.holders)

    def load(self, data: bytes) -> None:
        """Take a saved state, with its cuts, even if measured times now suggest other ones."""
        super().load(data)
        if self._problem is not None and self.plan and self.plan.cuts != tuple(self.state.cuts):
            self.plan = plan_of(self, *self._problem, cuts=tuple(self.state.cuts))

    def summary(self) -> None:
        """Log what the strategy does."""
        what = "synthetic gradients" if self.synthetic else "backpropagation over cuts"
        FLOWER.info("%s: schedule %s, cuts %s", what, self.schedule, self.cuts)

    def cut(self, config: Config, data: Data) -> None:
        """Cut the configured model. Raises `TaskError` or `ValueError` if that is not possible."""
        self.plan, self._problem = plan_of(self, config, data), (config, data)
        self.rates = Rates(config.schedule, config.lr)
        alone = len(self.plan.cuts) == 0
        if not self.synthetic and self.per_message > 1 and not alone:
            raise ValueError("batches_per_message goes with synthetic gradients")

    def details(self) -> dict[str, Any]:
        """Return this strategy's own entries of a history row."""
        return self.state.links.as_dict()

    def outcome(self) -> dict[str, Any]:
        """Return this strategy's own entries of `result.json`."""
        return {"segments": self.plan.described() if self.plan else []}

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
        """Train for `num_rounds` mini-batches; arguments and result as `Strategy.start`.

        `evaluate_fn` gets the model joined from copies that all segments made after the same
        mini-batch.
        """
        if self.plan is None:
            raise ValueError("the model is not cut: call cut() first")
        goes_on = self._begin()
        config = train_config or ConfigRecord()
        grid = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid)
        work = Dispatcher(
            self, self.plan, grid, initial_arrays, num_rounds, timeout, config, self.state
        )
        result = Result()
        result.arrays = initial_arrays
        self.state.cuts = list(self.plan.cuts)
        if not goes_on:
            natives = self.initial.arrays if self.initial else {}
            first = with_natives(flat_record(to_vector(initial_arrays)), natives)
            self._evaluate(evaluate_fn, 0, num_rounds, first, result)
        while work.goes_on():
            work.turn()
            while (model := work.copies.complete()) is not None:
                result.arrays = with_natives(flat_record(model[1]), model[2])
                self.state.train_metrics = work.means()
                self._evaluate(evaluate_fn, model[0], num_rounds, result.arrays, result)
            self._turned()
        return result

    def flow(self, segments: int, batches: int, state: PipelineScheduleState) -> PipelineSchedule:
        """Return the schedule of a run; `state`: what was sent and answered so far."""
        if self._goes_forward(segments):
            return Synthetic(self.schedule, segments, batches, self.per_message, self.queue, state)
        return Backpropagation(self.schedule, segments, batches, self.micros, state)

    def _goes_forward(self, segments: int) -> bool:
        """Return whether a mini-batch passes each segment once, without a backward task."""
        return self.synthetic or (segments == 1 and self.micros == 1)
