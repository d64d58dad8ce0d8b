"""The schedules of a cut model: when each segment works on which mini-batch.

A row is one of four segments, and a column is a period of time. The numbers are mini-batches, and
`.` is an idle node. `0a` and `0b` are the micro-batches of mini-batch 0, first in the forward pass
and later in the backward pass. In the last segment one task includes both passes.

    sequential   0 . . . 1 . . .     pipeline   0 1 2 3 4 5     GPipe      0a 0b .  .  .  .  0a 0b
                 . 0 . . . 1 . .                . 0 1 2 3 4     (2 micro-  .  0a 0b .  .  0a 0b .
                 . . 0 . . . 1 .                . . 0 1 2 3     batches)   .  .  0a 0b 0a 0b .  .
                 . . . 0 . . . 1                . . . 0 1 2                .  .  .  0a 0b .  .  .

`async` is the pipeline without a common clock: a segment continues as soon as it has an input, but
at most `queue` messages ahead."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from edgewire.pipeline.server.options import Flow


class Task(NamedTuple):
    """The work that one message asks of a segment.

    The work is on the mini-batches `batch` to `batch + batches - 1`. With micro-batches, it is on
    micro-batch `micro` of the mini-batch `batch`. `phase`: "train" (with synthetic gradients),
    "forward" or "backward". In the last segment "forward" includes the backward pass.
    """

    segment: int
    phase: str
    batch: int
    batches: int = 1
    micro: int = 0
    steps: bool = True  # whether the segment takes its step with `batch` in this task

    @property
    def end(self) -> int:
        """The number of mini-batches that the segment has processed after this task."""
        return self.batch + self.batches


@dataclass
class PipelineScheduleState:
    """Numbers of tasks by segment.

    `sent`, `done`: forward tasks that were sent, and that were answered. `backward`, `back`:
    backward tasks that were sent, and that were answered. With synthetic gradients a task includes
    the forward and the backward pass, and is counted as a forward task.
    """

    sent: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)

    def begin(self, segments: int) -> None:
        """Set all counts to 0, unless a loaded state has set them."""
        for row in (self.sent, self.done, self.backward, self.back):
            row += [0] * (segments - len(row))


class Synthetic:
    """The schedule of synthetic gradients: a segment trains on a mini-batch in one task.

    Replies must be reported (`answered`) in the order of sending, also those that are failures.
    """

    def __init__(
        self, flow: Flow, segments: int, batches: int, state: PipelineScheduleState
    ) -> None:
        self._schedule, self._queue, self._segments = flow.schedule, flow.queue, segments
        self._batches, self._per_message = batches, flow.batches_per_message
        self._groups = -(-batches // self._per_message)
        state.begin(segments)
        self._sent, self._done = state.sent, state.done

    @property
    def finished(self) -> bool:
        """Whether the last segment has answered the tasks of all mini-batches."""
        return self._done[-1] == self._groups

    def ready(self) -> Iterator[Task]:
        """Yield the tasks that may be sent now, and count each as sent."""
        if self._schedule != "async" and self._sent != self._done:
            return  # a column of the picture in the module's docstring ends with its last reply
        done = tuple(self._done)
        for segment in range(self._segments):
            while self._may_send(segment, done):
                batch = self._sent[segment] * self._per_message
                self._sent[segment] += 1
                yield Task(segment, "train", batch, min(self._per_message, self._batches - batch))
                if self._schedule != "async":
                    break
            if self._schedule == "sequential" and self._sent != self._done:
                return

    def answered(self, task: Task) -> None:
        """Record a reply."""
        self._done[task.segment] += 1

    def _may_send(self, segment: int, done: tuple[int, ...]) -> bool:
        group = self._sent[segment]
        if group == self._groups or (segment and done[segment - 1] <= group):
            return False
        if self._schedule == "sequential":
            return segment > 0 or done[-1] == group
        if self._schedule == "pipeline":
            return True
        # async: limit the inputs that wait at the next segment, and the tasks that wait at this
        # segment.
        ahead = segment + 1 == self._segments or group - self._done[segment + 1] < 2 * self._queue
        return ahead and group - self._done[segment] < self._queue


class Backpropagation:
    """Exact backpropagation across the cuts; with micro-batches it is a pipeline (GPipe).

    Huang et al. 2019. All micro-batches of a mini-batch are computed with the same weights. A
    segment may begin a mini-batch when the server has sent it all backward tasks of the mini-batch
    before. With the schedule "sequential", the first segment begins a mini-batch only when it has
    answered all backward tasks of the mini-batch before. Replies are reported as in `Synthetic`.
    """

    def __init__(
        self, flow: Flow, segments: int, batches: int, state: PipelineScheduleState
    ) -> None:
        self._sequential = flow.schedule == "sequential"
        self._segments, self._micros = segments, flow.micro_batches
        self._total = batches * self._micros
        state.begin(segments)
        self._forward, self._passed = state.sent, state.done
        self._backward, self._back = state.backward, state.back

    @property
    def finished(self) -> bool:
        """Whether the first segment has answered all backward tasks."""
        return self._back[0] == self._total

    def ready(self) -> Iterator[Task]:
        """Yield the tasks that may be sent now, and count each as sent."""
        for segment in range(self._segments):
            while segment + 1 < self._segments and (
                self._backward[segment] < self._back[segment + 1]
            ):
                self._backward[segment] += 1
                yield self._task(segment, "backward", self._backward[segment] - 1)
            while self._may_forward(segment):
                self._forward[segment] += 1
                yield self._task(segment, "forward", self._forward[segment] - 1)

    def answered(self, task: Task) -> None:
        """Record a reply."""
        ends = task.segment + 1 == self._segments
        if task.phase == "forward":
            self._passed[task.segment] += 1
        if task.phase == "backward" or ends:
            self._back[task.segment] += 1

    def _may_forward(self, segment: int) -> bool:
        number = self._forward[segment]
        if number == self._total or (segment and self._passed[segment - 1] <= number):
            return False
        before = number - number % self._micros  # micro-batches of all earlier mini-batches
        if segment == 0 and self._sequential:
            return self._back[0] >= before
        sent_back = self._forward if segment + 1 == self._segments else self._backward
        return sent_back[segment] >= before

    def _task(self, segment: int, phase: str, number: int) -> Task:
        batch, micro = divmod(number, self._micros)
        takes_back = phase == "backward" or segment + 1 == self._segments
        return Task(segment, phase, batch, 1, micro, takes_back and micro + 1 == self._micros)


PipelineSchedule = Synthetic | Backpropagation
