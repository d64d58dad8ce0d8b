"""Sends tasks to the nodes of a cut model, reads their replies, and sends lost tasks again."""

import math
from itertools import chain
from typing import cast

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import describe
from edgewire.compression.flower import filled
from edgewire.compression.flower.headers import (
    EXAMPLES,
    HEADER,
    LOSS,
    SECONDS,
    number,
)
from edgewire.compression.flower.message_size import measured
from edgewire.compression.flower.records import payload_records
from edgewire.compression.flower.server.failure_policy import FailurePolicy
from edgewire.compression.flower.timed_grid import SlowestReply
from edgewire.pipeline.cuts import Plan
from edgewire.pipeline.messages import (
    ACTIVATIONS,
    ERROR,
    GRADIENTS,
    GRADIENTS_OF,
    NO_SEGMENT,
    REFUSED,
    SegmentTask,
    unpack,
)
from edgewire.pipeline.server.link_traffic import Opened, opened, plain_bytes
from edgewire.pipeline.server.placement import Placement
from edgewire.pipeline.server.schedule import Flow, PipelineSchedule, Task
from edgewire.pipeline.server.snapshots import Snapshots
from edgewire.pipeline.server.state import PipelineState, UnderWay
from edgewire.strategy.base import Started
from edgewire.strategy.lr_schedule import Rates
from edgewire.strategy.ordered_grid import OrderedGrid

SEGMENT_MESSAGE = "train.segment"  # the type of these messages
TRIES = 3  # after TRIES consecutive failures another node takes over the segment


class Dispatcher:
    """Sends tasks in the order of the schedule, reads replies, and handles faults.

    If a task fails because of its input, later segments skip its mini-batch. If a node has left the
    run, or has lost its segment, another node takes over. This node begins with the last copy of
    the segment at the server, so the steps since that copy are lost. It gets all unanswered tasks
    of the segment again.
    """

    def __init__(
        self,
        plan: Plan,
        grid: OrderedGrid,
        run: Started,
        state: PipelineState,
        flow: Flow,
        synthetic: bool,
        rates: Rates,
        failures: FailurePolicy,
    ) -> None:
        self._plan, self._grid, self._state, self._synthetic = plan, grid, state, synthetic
        self._batches, self._timeout, self._config = run.rounds, run.timeout, run.train_config
        self._micros, self._failures, self._lr = flow.micro_batches, failures, rates
        self.copies = Snapshots(plan, run.arrays, run.rounds, flow, state.copies)
        count = len(plan.parts)
        if not state.under_way:
            state.begin(count)
        elif grid.virtual_seconds is None:  # the saved times are those of another clock
            for sent in chain(*state.under_way):
                sent.when += grid.now - state.now
        self._sent, self.links = state.under_way, state.links
        self._flow = PipelineSchedule(flow, synthetic, count, run.rounds, state.sent, state.done)
        first = 1 if plan.conditioned else count - 1
        self._receivers = range(first, count) if plan.targets else range(0)  # of labels
        self._store = state.store
        # The segment that is the last to train on a mini-batch. Backpropagation ends at the first
        # segment, synthetic gradients at the last.
        self._sees_last = count - 1 if synthetic else 0
        self._slowest = SlowestReply()
        self._placement = Placement(grid, count, state.holders, state.failed)

    def goes_on(self) -> bool:
        """Return whether any work is left; at the end, request missing copies of the segments."""
        return not self._flow.finished or any(self._sent) or self._fetch_owed()

    def advance(self) -> None:
        """Send the tasks that are ready, wait for replies, and read them."""
        for task in self._flow.ready():
            self._send(self._prepared(task))
        self._wait()
        self._take_replies()
        self._state.now = self._grid.now

    def means(self) -> dict[str, float] | None:
        """Return the mean loss and the mean error of synthetic gradients since the last call.

        The result is None if no node has reported a loss.
        """
        state = self._state
        found = {"loss": state.losses, "prediction_error": state.errors}
        means = {name: sum(row) / len(row) for name, row in found.items() if row}
        state.losses, state.errors = [], []
        return means if "loss" in means else None

    # messages

    def _prepared(self, task: Task) -> UnderWay:
        """Take a task's payloads from the store; if one of them is lost, mark the task as lost."""
        labelled = task.segment in self._receivers
        arrays = self._store.take(task, labelled=labelled, synthetic=self._synthetic)
        copy = "" if arrays is None else self.copies.wanted(task)
        sent = UnderWay(task, arrays or {}, copy, lost=arrays is None)
        self._sent[task.segment].append(sent)
        return sent

    def _send(self, sent: UnderWay) -> None:
        """Send a task's message, unless its input is lost or its segment has no node."""
        task, plan = sent.task, self._plan
        node = self._placement.node(task.segment)
        if sent.lost or node is None:
            return
        arrays = dict(sent.arrays)
        if self._state.fresh[task.segment]:
            self._state.fresh[task.segment] = False
            self._state.assignments[task.segment] += 1
            arrays["copy"] = self.copies.last(task.segment)
        work = SegmentTask(
            *task[:5],
            self._micros,
            list(plan.cuts),
            self._state.assignments[task.segment],
            self._store.samples_of(task),
            self._rates(task),
            sent.copy,
            plan.steps(task, self._micros),
        )
        content = filled(
            RecordDict,
            {"arrays": payload_records(arrays), "config": filled(ConfigRecord, work.config())},
        )
        message = Message(content, node, SEGMENT_MESSAGE, group_id=str(task.end))
        (sent.message_id,) = self._grid.push_messages([message], self._timeout)
        sent.when, sent.number = self._grid.now, work.number
        plain = plain_bytes(arrays, plan.targets, (task.batches, work.samples))
        size = measured(content, HEADER)
        self.links.sent(task.segment, arrays, size, plain, self._state.traffic)

    def _rates(self, task: Task) -> list[float]:
        """Return a list with the learning rate of each mini-batch of a task."""
        newest = cast(float, self._config["lr"])
        numbers = range(task.batch, task.batch + max(task.batches, 1))
        return [self._lr.of(number, newest) for number in numbers]

    def _fetch_owed(self) -> bool:
        """At the end, request missing copies of the segments; return whether any is missing."""
        owing = [i for i in range(len(self._sent)) if self.copies.owed(i, self._batches)]
        for segment in owing:
            task = Task(segment, "", self._batches, 0)
            self._sent[segment].append(UnderWay(task, {}, "weights"))
            self._send(self._sent[segment][-1])
        return bool(owing)

    # replies

    def _wait(self) -> None:
        """Wait for the next replies; handle late tasks, and find nodes for segments without one."""
        waiting = {
            sent.message_id: sent
            for sent in chain(*self._sent)
            if sent.reply is None and sent.message_id
        }
        if any(row and (row[0].lost or row[0].reply) for row in self._sent):
            return  # a reply or a lost task can be processed without waiting
        oldest = min((sent.when for sent in waiting.values()), default=math.inf)
        patience = self._slowest.limit(self._grid, self._timeout)
        deadline = min(oldest + patience, self._placement.next_look)
        if not waiting and deadline == math.inf:
            raise PayloadError(f"{self._placement.missing()}: no node is left that could take over")
        for reply in self._grid.pull_before(waiting, deadline):
            sent = waiting[reply.metadata.reply_to_message_id]
            sent.reply = opened(reply)
            self._slowest.took(self._grid.now - sent.when)
        self._give_up_late(patience)
        for segment in self._placement.find():
            self._hand_out(segment, anew=True)

    def _give_up_late(self, patience: float) -> None:
        for segment, row in enumerate(self._sent):
            head = row[0] if row else None
            if head is None or head.reply or not head.message_id:
                continue
            if head.when + patience <= self._grid.now:
                self._failed(segment, f"no reply in time ({patience:.0f} s)")
                self._hand_out(segment, self._placement.replace(segment))

    def _take_replies(self) -> None:
        """Process the replies, for each segment in the order in which the tasks were sent."""
        for row in self._sent:
            while row and (row[0].reply is not None or row[0].lost):
                if not self._take(row[0]):
                    break
                sent = row.popleft()
                if sent.task.phase:
                    self._flow.answered(sent.task)
                if sent.task.steps and sent.task.segment == self._sees_last:
                    self._store.done(sent.task)

    def _take(self, sent: UnderWay) -> bool:
        """Process the reply to a task, or its failure; return False if it must be sent again."""
        task, reply = sent.task, sent.reply
        if reply is None:  # the task was never sent, because its input is lost
            self._store.skip_batch(task.batch, synthetic=self._synthetic)
            return True
        try:
            if reply.error is not None:
                raise PayloadError(reply.error)
            self._open(sent, reply)
        except PayloadError as error:
            return self._without(sent, reply, str(error))
        self._failures.succeeded(task.segment, self._placement.node(task.segment) or -1)
        if task.phase != "backward":
            self._state.accused.pop((task.segment - 1, task.segment), None)
        elif not self._synthetic:
            self._state.accused.pop((task.segment + 1, task.segment), None)
        self._state.traffic.client_updates += task.steps and bool(task.phase)
        return True

    def _without(self, sent: UnderWay, reply: Opened, reason: str) -> bool:
        """Handle a task without a usable reply; return False if the task must be sent again.

        The task is sent again if its node has left the run or has lost the segment. It is also sent
        again if the node has failed so often that another node takes over. Otherwise the other
        segments skip the task's mini-batch.
        """
        segment, failed = sent.task.segment, reply.error is not None
        guilty = self._sender_of_damage(sent) if failed else None
        self._failed(segment if guilty is None else guilty, reason)
        if sent.copy:
            self.copies.failed(segment)
        for what, sender in ((ACTIVATIONS, segment - 1), (GRADIENTS_OF, segment + 1)):
            if failed and what in reason and 0 <= sender < len(self._sent):
                self._report_bad_peer(sender, segment)
        gone = failed and reply.code != ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        failures = self._failures.failures_of(segment)
        often = guilty is None and failures % TRIES == 0
        if often and self._placement.replace(segment, fails=True):
            self._hand_out(segment, anew=True)
        elif gone or (failed and NO_SEGMENT in reason):
            if gone:
                self._placement.replace(segment)
            self._hand_out(segment, anew=True)
        else:
            self._store.skip_batch(sent.task.batch, synthetic=self._synthetic)
            return True
        return False

    def _sender_of_damage(self, sent: UnderWay) -> int | None:
        """Return the segment that sent an undecodable payload of a failed task; None if none did.

        The server checks only the headers of the payloads that it forwards. After a failure it
        decodes the payloads here, to find out whether the sender or the receiver caused the
        failure.
        """
        segment, part = sent.task.segment, self._plan.parts[sent.task.segment]
        samples = self._store.samples_of(sent.task)
        for name, payload in sent.arrays.items():
            sender = segment + 1 if name.startswith(GRADIENTS) else segment - 1
            shape = (samples, *(part.output if name.startswith(GRADIENTS) else part.input))
            try:
                if name != "labels":
                    unpack(payload, describe(payload).n // max(math.prod(shape), 1), shape, "")
            except PayloadError:
                return sender
        return None

    def _open(self, sent: UnderWay, reply: Opened) -> None:
        """Check a segment's reply and store its content; raises `PayloadError` for a bad reply."""
        task, plan = sent.task, self._plan
        found, metrics, traffic = reply.payloads, reply.metrics, self._state.traffic
        self.links.count_received(task.segment, reply, traffic)
        if reply.number != sent.number:
            raise PayloadError(f"it replies to {reply.number}, {sent.number} was to be answered")
        if metrics is None:
            raise PayloadError("a reply must hold a MetricRecord")
        if task.phase and task.segment == 0 and task.phase != "backward":
            samples = number(metrics, EXAMPLES) / task.batches
            if samples not in range(1, plan.copies[0].samples + 1):
                raise PayloadError(f"mini-batches of {samples:g} samples are none of this run's")
            self._store.put_samples(task, int(samples))
        samples = self._store.samples_of(task)
        plan.check(task, samples, found, bool(sent.copy))
        self.links.worked(task.segment, metrics.get(SECONDS), task.batches / self._micros)
        if LOSS in metrics:
            self._state.losses.append(number(metrics, LOSS))
        if ERROR in metrics:
            self._state.errors.append(number(metrics, ERROR))
        if sent.copy:
            self.copies.take(task, sent.copy, found["copy"])
        traffic.uplink_bytes_float32 += plain_bytes(found, plan.targets, (task.batches, samples))
        for name in plan.asked(task):
            self._store.put(task, name, found[name])
        if any(name.startswith(GRADIENTS) for name in sent.arrays):
            self._count_refusals(task.segment, bool(metrics.get(REFUSED)))

    # faults

    def _count_failure(self, segment: int, reason: str) -> None:
        node = self._placement.node(segment) or -1
        self._failures.leave_out(node, f"segment {segment}: {reason}")

    def _failed(self, segment: int, reason: str) -> None:
        self._count_failure(segment, reason)
        self._failures.failed(segment, [segment], f"of segment {segment}", reason)

    def _count_refusals(self, segment: int, refused: bool) -> None:
        """Record whether a segment could use the gradients that the next segment has sent it."""
        if refused:
            self._count_failure(segment + 1, "gradients that the segment before could not use")
            self._report_bad_peer(segment + 1, segment)
        else:
            self._state.accused.pop((segment + 1, segment), None)

    def _report_bad_peer(self, segment: int, by: int) -> None:
        """Record that the neighbouring segment `by` could not use a payload from `segment`.

        After `TRIES` consecutive reports another node takes over `segment`. After `TRIES` more
        reports another node takes over `by`, because the node that reports may be the faulty one.
        """
        said = self._state.accused[segment, by] = self._state.accused[segment, by] + 1
        if said % TRIES == 0:
            guilty = segment if said % (2 * TRIES) else by
            self._hand_out(guilty, self._placement.replace(guilty, fails=True))

    def _hand_out(self, segment: int, anew: bool) -> None:
        """Send the unanswered tasks of a segment to its node again.

        `anew`: True if the node must begin with the last copy of the segment. If False, the node is
        only late and continues with its own state. Then it may train twice on a mini-batch.
        """
        self._state.fresh[segment] |= anew
        for sent in self._sent[segment]:
            sent.message_id, sent.reply = "", None
            self._send(sent)
