"""One model, its layers on different devices: the server of synthetic gradients."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from logging import getLogger
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from compression import Codec, Layout, PayloadError
from compression.flower import filled, flat_record, to_vector
from compression.flower.arrays import payload_records
from compression.flower.traffic import reason_of
from conf import Config
from strategy.activations import ActivationStore
from strategy.answer import number
from strategy.copies import Copies
from strategy.crew import Crew
from strategy.flow import SCHEDULES, Backpropagation, Flow, Synthetic, Task
from strategy.links import Links
from strategy.nodes import OrderedGrid
from strategy.plan import Plan, plan_of
from strategy.server import FLOWER, HOPELESS, EvaluateFn, ParameterServer, expect_positive
from task.datasets import Data

MESSAGE = "train.segment"  # the type of their messages
AUTO = "auto"
log = getLogger("edgewire")


@dataclass
class Sent:
    """A task under way: its message, and what that holds for who may have to take over."""

    task: Task
    arrays: dict[str, bytes]
    copy: str  # what is asked for of the segment
    message_id: str = ""
    when: float = 0.0  # a moment of the grid's `now`
    reply: Message | None = None


class Segmented(ParameterServer):
    """Each node trains consecutive layers on activations that come by message.

    Chen et al. 2019, "Exploring the use of synthetic gradients for distributed deep learning across
    cloud and edge resources", after Jaderberg et al. 2017: with `synthetic`, a node steps along the
    gradient that a module of its own predicts for its output, and goes on; the true one (made with
    the next segment's own prediction) comes with a later message, and trains the module. Without,
    gradients go back through all segments before any of them steps (split backpropagation).

    `cuts`: numbers of the layers with which a new segment begins, or "auto": `segments` of them
    (null: one a node), the slowest as fast as can be by seconds measured here, within `memory_mb`
    a node. `schedule`: `strategy.flow`; `queue`: messages that may wait at a node (async);
    `batches_per_message`: mini-batches in a message, a step for each; `micro_batches`: of a
    mini-batch, for backpropagation in a pipeline. `conditioned`: modules see the labels; `hidden`:
    their units. `gradients`: how gradients are compressed (`uplink` is for activations);
    `feedback`: what compression loses is kept, and added to the next mini-batch's.
    `segment_every`: mini-batches from one full copy of the segments at the server to the next, with
    which another node takes over from one that is gone; 0: only the first.
    `record_every`: mini-batches from one evaluation to the next.
    """

    unit = "STEP"
    sends_models = False

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
        if segment_every < 0:
            raise ValueError(f"segment_every must be at least 0, not {segment_every}")
        if record_every % batches_per_message:
            raise ValueError(
                f"eval_every={record_every} must be a multiple of "
                f"batches_per_message={batches_per_message}"
            )
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
        self._plan: Plan | None = None

    def summary(self) -> None:
        """Log what the strategy does."""
        what = "synthetic gradients" if self.synthetic else "backpropagation over cuts"
        FLOWER.info("%s: schedule %s, cuts %s", what, self.schedule, self.cuts)

    def cut(self, config: Config, data: Data) -> None:
        """Cut the configured model, or say why it cannot be: `TaskError`, `ValueError`."""
        self._plan = plan_of(self, config, data)
        alone = len(self._plan.cuts) == 0
        if not self.synthetic and self.per_message > 1 and not alone:
            raise ValueError("batches_per_message goes with synthetic gradients")

    def details(self) -> dict[str, Any]:
        """Return what a record of the run holds beside what all runs' do."""
        return self._links.as_dict()

    def outcome(self) -> dict[str, Any]:
        """Return what the result of the run holds beside what all runs' do."""
        return {"segments": self._plan.described() if self._plan else []}

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

        `evaluate_fn` gets the model, put together, as it was after a number of mini-batches.
        """
        self._announce()
        self._begin(grid, initial_arrays, num_rounds, timeout, train_config or ConfigRecord())
        result = Result()
        result.arrays = initial_arrays
        self._evaluate(evaluate_fn, 0, num_rounds, flat_record(to_vector(initial_arrays)), result)
        while not self._flow.finished or self._under_way() or self._fetch_owed(num_rounds):
            for task in self._flow.ready():
                self._send(self._prepared(task))
            self._wait()
            self._take_answers()
            while (model := self._copies.complete()) is not None:
                result.arrays = flat_record(model[1])
                self._sum_up()
                self._evaluate(evaluate_fn, model[0], num_rounds, result.arrays, result)
        return result

    def _begin(
        self, grid: Grid, arrays: ArrayRecord, rounds: int, timeout: float, config: ConfigRecord
    ) -> None:
        if self._plan is None:
            raise ValueError("the model is not cut: call cut() first")
        plan, self._timeout, self._config = self._plan, timeout, config
        self._grid = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid)
        shapes = tuple(tuple(array.shape) for array in arrays.values())
        layout = Layout(tuple(arrays), shapes, ("float32",) * len(arrays))
        self._copies = Copies(plan.parts, layout, to_vector(arrays), self.segment_every)
        self._copies.begin(self.record_every, rounds, plan.beside)
        count = len(plan.parts)
        self._flow: Flow
        if self.synthetic or count == 1:
            self._flow = Synthetic(self.schedule, count, rounds, self.per_message, self.queue)
        else:
            self._flow = Backpropagation(self.schedule, count, rounds, self.micros)
        first = 1 if self.synthetic and self.conditioned else count - 1
        self._store = ActivationStore(range(first, count), self.synthetic)
        self._crew = Crew(self._grid, count)
        self._links = Links(count, self.traffic)
        self._sent: list[deque[Sent]] = [deque() for _ in range(count)]
        self._handed = [0] * count  # how often each segment was handed out
        self._fresh = [True] * count  # it goes with the next message
        self._hopeless = [0] * count  # failures in a row
        self._losses: list[float] = []
        self._errors: list[float] = []

    # sending

    def _prepared(self, task: Task) -> Sent:
        """Take what a task needs out of the store; without arrays, if something was lost."""
        arrays = self._store.take(task)
        sent = Sent(task, arrays or {}, self._copies.wanted(task))
        self._sent[task.segment].append(sent)
        if arrays is None:
            sent.message_id = "lost"
        return sent

    def _send(self, sent: Sent) -> None:
        """Send a task's message, unless its segment is with nobody now."""
        task, plan = sent.task, cast(Plan, self._plan)
        node = self._crew.node(task.segment)
        if sent.message_id == "lost" or node is None:
            return
        arrays = dict(sent.arrays)
        if self._fresh[task.segment]:
            self._fresh[task.segment] = False
            self._handed[task.segment] += 1
            arrays["copy"] = self._copies.last(task.segment)
        config = {
            "segment": task.segment,
            "cuts": list(plan.cuts),
            "life": self._handed[task.segment],
            "phase": task.phase,
            "batch": task.batch,
            "batches": task.batches,
            "micro": task.micro,
            "micros": self.micros,
            "samples": self._store.samples(task),
            "lr": cast(float, self._config.get("lr", 0.1)),
            "copy": sent.copy,
            "num-steps": plan.steps(task, self.micros),
        }
        content = filled(
            RecordDict(),
            {"arrays": payload_records(arrays), "config": filled(ConfigRecord(), config)},
        )
        message = Message(content, node, MESSAGE, group_id=str(task.end))
        (sent.message_id,) = self._grid.push_messages([message], self._timeout)
        sent.when = self._grid.now
        shapes = plan.plain(task, self._store.samples(task))
        self._links.down(task.segment, arrays, shapes)

    def _fetch_owed(self, rounds: int) -> bool:
        """At the end, ask segments for copies that they could not send; whether there are any."""
        owing = [i for i in range(len(self._sent)) if self._copies.owed(i, rounds)]
        for segment in owing:
            task = Task(segment, "", rounds, 0)
            self._sent[segment].append(Sent(task, {}, "weights"))
            self._send(self._sent[segment][-1])
        return bool(owing)

    # answers

    def _under_way(self) -> bool:
        return any(self._sent)

    def _wait(self) -> None:
        """Wait for the next answers; give up those that take too long, look for missing nodes."""
        waiting = {
            sent.message_id: sent
            for row in self._sent
            for sent in row
            if sent.reply is None and sent.message_id not in ("", "lost")
        }
        if any(row and (row[0].message_id == "lost" or row[0].reply) for row in self._sent):
            return  # there is something to go on with
        oldest = min((sent.when for sent in waiting.values()), default=math.inf)
        deadline = min(oldest + self._timeout, self._crew.next_look)
        if not waiting and deadline == math.inf:
            raise PayloadError(f"{self._crew.missing()}: no node is left that could take over")
        for reply in self._grid.pull_before(waiting, deadline):
            waiting[reply.metadata.reply_to_message_id].reply = reply
        self._give_up_late()
        for segment in self._crew.find():
            self._hand_out(segment)

    def _give_up_late(self) -> None:
        for segment, row in enumerate(self._sent):
            head = row[0] if row else None
            if head is None or head.reply or head.message_id in ("", "lost"):
                continue
            if head.when + self._timeout <= self._grid.now:
                self._failed(segment, f"no answer in time (timeout={self._timeout:g})")
                self._crew.replace(segment, present=False)
                self._hand_out(segment)

    def _take_answers(self) -> None:
        """Go through the answers, each segment's in the order of sending."""
        for row in self._sent:
            while row and (row[0].reply is not None or row[0].message_id == "lost"):
                if not self._take(row[0]):
                    break
                sent = row.popleft()
                if sent.task.phase:
                    self._flow.answered(sent.task)
                ends = len(self._sent) - 1 if self.synthetic else 0  # who is the last to see it
                if sent.task.steps and sent.task.segment == ends:
                    self._store.done(sent.task)

    def _take(self, sent: Sent) -> bool:
        """Take an answer, or say why not; False: the task is to be done again."""
        task, reply = sent.task, sent.reply
        if reply is None:  # what it needed was lost before
            self._store.lose(task.batch)
            return True
        try:
            if reply.has_error():
                raise PayloadError(reason_of(reply))
            self._open(sent, reply.content)
            self._hopeless[task.segment] = 0
            self.traffic.client_updates += task.steps and bool(task.phase)
        except PayloadError as error:
            reason = str(error)
            self._failed(task.segment, reason)
            unusable = not reply.has_error() or "PayloadError" in reason
            if not unusable or "has no segment" in reason:
                present = "has no segment" in reason
                self._crew.replace(task.segment, present=present)
                self._hand_out(task.segment)
                return False
            self._store.lose(task.batch)
        return True

    def _open(self, sent: Sent, content: RecordDict) -> None:
        """Take what an answer holds. Raises `PayloadError` for what cannot be used."""
        task, plan = sent.task, cast(Plan, self._plan)
        found = self._links.up(task.segment, content)
        metrics = self._links.metrics(content)
        if task.phase and task.segment == 0 and task.phase != "backward":
            samples = number(metrics, "num-examples") / task.batches
            self._store.put_samples(task, int(samples))
        samples = self._store.samples(task)
        self._links.plain_up(task.segment, found, plan.plain(task, samples))
        plan.check(task, samples, found)
        if "loss" in metrics:
            self._losses.append(number(metrics, "loss"))
        if "prediction-error" in metrics:
            self._errors.append(number(metrics, "prediction-error"))
        if sent.copy:
            if "copy" not in found:
                raise PayloadError("the answer holds no copy of its segment")
            self._copies.take(task, sent.copy, found["copy"])
        for name in ("output", "gradients", "labels"):
            if name in found:
                self._store.put(task, name, found[name])

    # faults

    def _failed(self, segment: int, reason: str) -> None:
        node = self._crew.node(segment) or -1
        self._fail(node, f"segment {segment}: {reason}")
        self._hopeless[segment] += 1
        if self._hopeless[segment] >= HOPELESS:
            raise PayloadError(f"segment {segment} has failed {HOPELESS} times in a row: {reason}")

    def _hand_out(self, segment: int) -> None:
        """Let a segment's node begin with its last copy, and with what it has not answered."""
        self._fresh[segment] = True
        for sent in self._sent[segment]:
            if sent.message_id != "lost":
                sent.message_id, sent.reply = "", None
                self._send(sent)

    def _sum_up(self) -> None:
        """Set `train_metrics` to the means since the last record."""
        self.train_metrics = None
        if self._losses:
            self.train_metrics = {"loss": sum(self._losses) / len(self._losses)}
            if self._errors:
                mean = sum(self._errors) / len(self._errors)
                self.train_metrics["prediction_error"] = mean
        self._losses, self._errors = [], []
