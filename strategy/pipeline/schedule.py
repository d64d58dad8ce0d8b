"""The schedules of a cut model: which segment works on which mini-batch, and when.

Four segments (rows), mini-batches 0, 1, 2, ...; each column is a moment, `.` an idle node:

    sequential   0 . . . 1 . . .     pipeline   0 1 2 3 4 5     GPipe      0a 0b .  .  .  .  0a 0b
                 . 0 . . . 1 . .                . 0 1 2 3 4     (F B,      .  0a 0b .  0a 0b .  .
                 . . 0 . . . 1 .                . . 0 1 2 3     2 micro-   .  .  .. .. .. .. .  .
                 . . . 0 . . . 1                . . . 0 1 2     batches)

`async` is the pipeline without a common clock: a segment goes on as soon as it has an input, at
most `queue` messages ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

SCHEDULES = ("sequential", "pipeline", "async")


class Task(NamedTuple):
    """The work that one message asks of a segment: mini-batches `batch` to `batch + batches - 1`.

    With micro-batches it is micro-batch `micro` of one mini-batch. `phase`: "train" (with synthetic
    gradients), "forward" or "backward"; in the last segment "forward" includes the backward pass.
    """

    segment: int
    phase: str
    batch: int
    batches: int = 1
    micro: int = 0
    steps: bool = True  # whether the segment takes its step with `batch` in this task

    @property
    def end(self) -> int:
        """The number of mini-batches that the segment has seen after this task."""
        return self.batch + self.batches


class PipelineSchedule(Protocol):
    """Yields tasks when they may be sent; must be told of answers in the order of sending."""

    def ready(self) -> Iterator[Task]:
        """Yield the tasks that may be sent now; each of them counts as sent."""

    def answered(self, task: Task) -> None:
        """Note a reply; a failed task counts as answered too."""

    @property
    def finished(self) -> bool:
        """Whether all mini-batches are done."""


@dataclass
class PipelineScheduleState:
    """Numbers of tasks by segment: `sent` and `done` forward, `backward` and `back` backward.

    With synthetic gradients a task is both, and counts as forward.
    """

    sent: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)

    def begin(self, segments: int) -> None:
        """Begin with counts of 0, unless a loaded state has counts."""
        for row in (self.sent, self.done, self.backward, self.back):
            row += [0] * (segments - len(row))


class Synthetic:
    """The schedule of synthetic gradients: each segment steps with a mini-batch in one task."""

    def __init__(
        self,
        schedule: str,
        segments: int,
        batches: int,
        per_message: int,
        queue: int,
        state: PipelineScheduleState,
    ) -> None:
        self._schedule, self._segments, self._queue = schedule, segments, queue
        self._batches, self._per_message = batches, per_message
        self._groups = -(-batches // per_message)
        state.begin(segments)
        self._sent, self._done = state.sent, state.done

    @property
    def finished(self) -> bool:
        """Whether the last segment is done with all mini-batches."""
        return self._done[-1] == self._groups

    def ready(self) -> Iterator[Task]:
        """Yield the tasks that may be sent now."""
        if self._schedule != "async" and self._sent != self._done:
            return  # a column of the picture above ends when all its tasks are answered
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
        """Note a reply."""
        self._done[task.segment] += 1

    def _may_send(self, segment: int, done: tuple[int, ...]) -> bool:
        group = self._sent[segment]
        if group == self._groups or (segment and done[segment - 1] <= group):
            return False
        if self._schedule == "sequential":
            return segment > 0 or done[-1] == group
        if self._schedule == "pipeline":
            return True
        # async: bound the inputs that wait at the next segment, and the tasks that wait at this one
        ahead = segment + 1 == self._segments or group - self._done[segment + 1] < 2 * self._queue
        return ahead and group - self._done[segment] < self._queue


class Backpropagation:
    """Ordinary backpropagation over the cuts; with micro-batches a pipeline (GPipe).

    Huang et al. 2019. All micro-batches of a mini-batch see the same weights. A segment may begin
    the next mini-batch when the server has sent it all backward tasks of the previous one. With
    schedule "sequential", the first segment waits until it has answered them.
    """

    def __init__(
        self, schedule: str, segments: int, batches: int, micros: int, state: PipelineScheduleState
    ) -> None:
        self._sequential = schedule == "sequential"
        self._segments, self._micros, self._total = segments, micros, batches * micros
        state.begin(segments)
        self._forward, self._passed = state.sent, state.done
        self._backward, self._back = state.backward, state.back

    @property
    def finished(self) -> bool:
        """Whether the first segment has answered all backward tasks."""
        return self._back[0] == self._total

    def ready(self) -> Iterator[Task]:
        """Yield the tasks that may be sent now."""
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
        """Note a reply."""
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
