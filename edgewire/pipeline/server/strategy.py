"""Trains one model that is cut across nodes, by synthetic gradients or split backpropagation."""

from collections.abc import Callable, Collection
from functools import partial
from itertools import chain
from typing import Any

from edgewire.compression.flower import flat_record, to_vector
from edgewire.compression.flower.native_tensors import with_natives
from edgewire.compression.validation import expect_kinds
from edgewire.conf.check import NO_CODECS, Codecs
from edgewire.conf.schema import Config
from edgewire.pipeline.cuts import NO_LABELS, Cutting, Plan, plan_of
from edgewire.pipeline.gradient_predictor import GradientModules
from edgewire.pipeline.server.dispatcher import Dispatcher
from edgewire.pipeline.server.schedule import Flow
from edgewire.pipeline.server.state import PipelineState
from edgewire.strategy.base import (
    FLOWER,
    ParameterServer,
    Started,
    log,
)
from edgewire.strategy.lr_schedule import Rates
from edgewire.task.datasets import Data

CUTTING, MODULES, FLOW = Cutting(), GradientModules(), Flow()  # the defaults


class PipelineStrategy(ParameterServer):
    """Each node trains a segment, consecutive layers, with activations that it gets in messages.

    Chen et al. 2019, "Exploring the use of synthetic gradients for distributed deep learning across
    cloud and edge resources", after Jaderberg et al. 2017. If `synthetic` is True, a node has a
    module that predicts the gradient of the node's output. The node takes its step with this
    prediction and does not wait. The node of the next segment computes the target gradient from its
    own prediction, and the server forwards this gradient in a later message. Then the first node
    trains its module with the target. If `synthetic` is False, gradients pass back through all
    segments before a segment takes its step (split backpropagation).

    `cutting`: where the model is cut. `modules`: the modules that predict gradients. `flow`: when a
    segment works on which mini-batch. `feedback`: True if a node stores the error of compression
    and adds it to the tensors of the next mini-batch. `codecs`: the codec `uplink` encodes
    activations. The codec `gradients` of the configuration encodes gradients.
    """

    unit = "STEP"
    sends_models = False
    State = PipelineState
    state: PipelineState

    def __init__(
        self,
        *,
        synthetic: bool = True,
        cutting: Cutting = CUTTING,
        modules: GradientModules = MODULES,
        flow: Flow = FLOW,
        feedback: bool = False,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        super().__init__("gradient", 1.0, codecs)
        expect_kinds(cutting=(cutting, Cutting), modules=(modules, GradientModules))
        expect_kinds(flow=(flow, Flow))
        self.synthetic, self.cutting, self.modules, self.flow = synthetic, cutting, modules, flow
        self.feedback, self.record_every = feedback, flow.record_every
        self.plan: Plan | None = None
        self._rates: Callable[[list[float]], Rates]

    @property
    def done(self) -> int:
        """The number of mini-batches that all segments have finished."""
        tasks = self.state.done[-1] if self.state.done else 0
        return tasks * self.flow.batches_per_message // self.flow.micro_batches

    def abandon(self, back: Collection[int] = ()) -> None:
        """Delete unanswered messages, and assign nodes anew; they begin with the last copies."""
        for sent in chain(*self.state.under_way):
            sent.message_id, sent.reply = "", None
        self.state.holders[:] = [None] * len(self.state.holders)

    def summary(self) -> None:
        """Log the kind of gradients, the schedule and the cuts."""
        what = "synthetic gradients" if self.synthetic else "backpropagation over cuts"
        FLOWER.info("%s: schedule %s, cuts %s", what, self.flow.schedule, self.cutting.cuts)

    def cut(self, config: Config, data: Data) -> None:
        """Cut the configured model; raises `TaskError` or `ValueError` if that is not possible."""
        modules = self.modules if self.synthetic else None
        self.plan = plan_of(config, data, self.cutting, modules, self.flow.micro_batches)
        self._rates = partial(Rates, config.schedule, config.lr)
        if not self.synthetic and self.flow.batches_per_message > 1 and self.plan.cuts:
            raise ValueError("batches_per_message goes with synthetic gradients")

    def details(self) -> dict[str, Any]:
        """Return the counters that only this strategy adds to each row of `history.jsonl`."""
        return self.state.links.as_dict()

    def outcome(self) -> dict[str, Any]:
        """Return the entries that only this strategy adds to `result.json`."""
        return {"segments": self.plan.described() if self.plan else []}

    def _train(self, run: Started) -> None:
        """Train with `rounds` mini-batches.

        `evaluate_fn` gets a model whose segments were all copied after the same mini-batch.
        """
        if self.plan is None:
            raise ValueError("the model is not cut: call cut() first")
        if self.plan.unlabelled:
            log.warning("%s, or strategy.conditioned=false", NO_LABELS)
        work = Dispatcher(
            self.plan, self._ordered(run.grid), run, self.state, self.flow, self.synthetic,
            self._rates(self.state.rates), self.failures,
        )  # fmt: skip
        run.result.arrays = run.arrays
        if not run.goes_on:
            natives = self.initial.arrays if self.initial else {}
            first = with_natives(flat_record(to_vector(run.arrays)), natives)
            self._evaluate(run, 0, run.rounds, first)
        while work.goes_on():
            work.advance()
            while (model := work.copies.complete()) is not None:
                run.result.arrays = with_natives(flat_record(model[1]), model[2])
                self.state.train_metrics = work.means()
                self._evaluate(run, model[0], run.rounds, run.result.arrays)
            self.on_state_complete()
