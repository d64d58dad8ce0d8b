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
from dataclasses import dataclass
from typing import NamedTuple

from edgewire.conf.option_group import OptionGroup, bounded


@dataclass(frozen=True)
class Flow(OptionGroup):
    """Says when a segment works on which mini-batch, and when the server gets copies of it.

    `schedule`: "sequential", "pipeline" or "async" (see above). `queue`: with "async", the number
    of messages that may wait at a node. `batches_per_message`: the number of mini-batches in a
    message; a node takes one step for each. `micro_batches`: the number of parts of a mini-batch,
    for backpropagation in a pipeline. `segment_every`: the number of mini-batches after which the
    server gets full copies of the segments. With such a copy another node can take over a segment.
    0: the server has only the initial copies. `record_every`: the number of mini-batches between
    two evaluations. Raises `ValueError` for another schedule, and for a number below 1, or 0 of
    `segment_every`.
    """

    schedule: str = bounded("pipeline", one_of=("sequential", "pipeline", "async"))
    queue: int = bounded(2, at_least=1)
    batches_per_message: int = bounded(1, at_least=1)
    micro_batches: int = bounded(1, at_least=1)
    segment_every: int = bounded(0, at_least=0)
    record_every: int = bounded(1, at_least=1)


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


class PipelineSchedule:
    """Gives each task as soon as it may be sent.

    A mini-batch, or each of its micro-batches, passes a chain of stations: a segment with a phase.
    With synthetic gradients the stations are "train" at each segment. In backpropagation (also of a
    single segment with micro-batches) they are "forward" at each segment, then "backward" at each
    but the last, from behind. All micro-batches of a mini-batch are computed with the same weights
    (GPipe, Huang et al. 2019): a segment begins a mini-batch when the server has sent it all
    backward tasks of the one before, and with the schedule "sequential" when the last station has
    answered them.

    Replies must be reported (`answered`) in the order of sending, also those that are failures.
    `sent`, `done`: by station, how many tasks were sent, and answered; empty at first.
    """

    def __init__(
        self,
        flow: Flow,
        synthetic: bool,
        segments: int,
        batches: int,
        sent: list[int],
        done: list[int],
    ) -> None:
        self._flow, self._batches, self._last = flow, batches, segments - 1
        self._total = -(-batches // flow.batches_per_message) * flow.micro_batches
        trains = synthetic or (segments == 1 and flow.micro_batches == 1)
        self._stations = [(k, "train" if trains else "forward") for k in range(segments)]
        if not trains:
            self._stations += [(k, "backward") for k in reversed(range(self._last))]
        self._in_columns = trains and flow.schedule == "pipeline"
        self._sent, self._done = sent, done
        for row in (sent, done):  # empty, unless a loaded state has set them
            row += [0] * (len(self._stations) - len(row))

    @property
    def finished(self) -> bool:
        """Whether the last station has answered the tasks of all mini-batches."""
        return self._done[-1] == self._total

    def ready(self) -> Iterator[Task]:
        """Yield the tasks that may be sent now, and count each as sent."""
        if self._in_columns and self._sent != self._done:
            return  # a column of the picture in the module's docstring ends with its last reply
        micros, each = self._flow.micro_batches, self._flow.batches_per_message
        for segment, phase in sorted(self._stations):  # a segment's backward tasks come first
            station = self._station(segment, phase)
            while self._may_send(station):
                number, micro = divmod(self._sent[station], micros)
                self._sent[station] += 1
                steps = micro + 1 == micros and (phase != "forward" or segment == self._last)
                many = min(each, self._batches - number * each)
                yield Task(segment, phase, number * each, many, micro, steps)
                if self._in_columns:
                    break

    def answered(self, task: Task) -> None:
        """Record a reply."""
        self._done[self._station(task.segment, task.phase)] += 1

    def _station(self, segment: int, phase: str) -> int:
        return 2 * self._last - segment if phase == "backward" else segment

    def _may_send(self, station: int) -> bool:
        number, (segment, phase) = self._sent[station], self._stations[station]
        if number == self._total or (station and self._done[station - 1] <= number):
            return False
        before = number - number % self._flow.micro_batches  # tasks of all earlier mini-batches
        if self._flow.schedule == "sequential":
            return station > 0 or self._done[-1] >= before
        if phase == "forward":
            return self._sent[self._station(segment, "backward")] >= before
        if phase == "backward" or self._flow.schedule == "pipeline":
            return True
        # async: limit the inputs that wait at the next segment, and the tasks that wait at this
        # segment.
        ahead = segment == self._last or number - self._done[station + 1] < 2 * self._flow.queue
        return ahead and number - self._done[station] < self._flow.queue
