"""Gives each node as much work, entries and bits as arrive by a round's deadline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np

from edgewire.conf.option_group import OptionGroup, bounded

MEASUREMENTS = 8  # the newest replies of a node that its times are estimated from
SAFETY = 0.9  # the share of the deadline that is planned, because times vary
GROWTH = 8  # the most times as many steps as in the last measurement
TICK, MOST_STEPS = 1e-6, 10**9  # the least seconds and the most steps that are reckoned with
TRIED = 1.25  # the most of the planned time that one step more may take, to learn its time
RECENT = 0.7  # the weight of a measurement relative to the next newer one
ALIKE = 1.05  # numbers whose largest is below this multiple of the smallest tell no rate
GROWN = 1.4  # how many times as many bytes must have room before a value gets one bit more
MEMORY = 0.01  # the weight of a node's last fit relative to that of its measurements


class Measurement(NamedTuple):
    """A node's reply: its seconds from sending to arrival, its local steps, and its bytes."""

    seconds: float
    steps: float
    size: float


class NodePlan(NamedTuple):
    """What a node may do in a round.

    `steps`: the most local steps; 0: as many as the run's configuration says. `density_factor`: the
    factor of the sparsifier's density. `more_bits`: how many bits per value the quantizer takes
    more.
    """

    steps: int = 0
    density_factor: float = 1.0
    more_bits: int = 0


PROBE = NodePlan(steps=1)  # the first message to a node, whose speed is unknown


@dataclass(frozen=True)
class Deadline(OptionGroup):
    """Says how long a round should last, and how much the densities may differ from the codec's.

    `deadline`: seconds from sending the messages to the arrival of the replies; None: every node
    does what the configuration says. The server plans with it and does not end a round at it: a
    node that cannot reply in time with one step and the least density is late. A round ends as
    `Participation` says. `least_factor`, `most_factor`: bounds of the factor by which the server
    multiplies the density of a node's sparsifier. `most_bits`: how many bits per value a node's
    quantizer may take more, once the density is the largest.
    """

    deadline: float | None = bounded(None, above=0)
    least_factor: float = bounded(0.125, above=0, at_most=1)
    most_factor: float = bounded(1.0, at_least=1)
    most_bits: int = bounded(0, at_least=0)


@dataclass
class NodePace:
    """The last plan of a node, its newest measurements, and what `fitted` returned for them.

    `probed`: whether the density was lowered to learn the time of a byte.
    """

    plan: NodePlan
    measured: list[Measurement] = field(default_factory=list)
    fit: tuple[float, float, float] | None = None
    probed: bool = False


class DeadlinePlanner:
    """Plans each node's steps, density and bits, so that all replies arrive by the deadline.

    The seconds from a message to its reply are modelled as a + b steps + c bytes, with a, b and c
    of at least 0. The model is fitted to each node's newest `MEASUREMENTS` replies. `a` holds the
    latency and the time of the download, `b` the device's time for a step, and `c` its uplink's
    time for a byte. A measurement weighs `RECENT` times as much as the next newer one.
    The server measures the times with the grid's clock, which is virtual in a simulation. So the
    same rule works in simulation and on devices, and nodes need no clock.

    The first plan is one step at the codec's density. The first fit assigns all the time to the
    steps, and each fit stays near to the last one. So the number of steps grows from below, and
    noise cannot change what measurements of equal steps and sizes do not tell.

    A node gets a lower density if the time without its steps takes more than half of the deadline.
    It gets a higher one, up to `most_factor`, if all its steps leave half of the time. Then it gets
    more bits per value, up to `most_bits`: more entries are worth more than finer values.

    `paces`: the state, which a checkpoint holds. `limited`: False if an update is one gradient, so
    that there are no steps to plan.
    """

    def __init__(
        self, options: Deadline, paces: dict[int, NodePace], *, limited: bool = True
    ) -> None:
        self._options, self._paces, self._limited = options, paces, limited

    def plan(self, node: int) -> NodePlan:
        """Return the plan of a node's next message."""
        if self._options.deadline is None:
            return NodePlan()
        if node not in self._paces:
            first = PROBE if self._limited else NodePlan()
            self._paces[node] = NodePace(first)
        return self._paces[node].plan

    def observe(self, node: int, measured: Measurement) -> None:
        """Learn from the reply of a node that had a plan, and make its next plan."""
        pace, deadline = self._paces[node], self._options.deadline
        assert deadline is not None  # else no node has a pace
        within = SAFETY * deadline
        # A node may report any number of steps, and on a network without delays no time passes.
        steps, seconds = min(max(1, measured.steps), MOST_STEPS), max(TICK, measured.seconds)
        measured = Measurement(seconds, steps, measured.size)
        pace.measured = [*pace.measured, measured][-MEASUREMENTS:]
        pace.fit = fixed, per_step, per_byte = fitted(pace.measured, pace.fit)
        factor, bits = self._amount(pace, fixed, per_step, per_byte, within)
        if not self._limited:
            pace.plan = NodePlan(0, factor, bits)
            return
        # With a lower density a reply may be as large as before, because of its other parts. A
        # value has a bit or more.
        more = (1 + bits) / (1 + pace.plan.more_bits) * factor / pace.plan.density_factor
        size = measured.size * max(1.0, more)
        rest = within - fixed - per_byte * size
        steps = rest / per_step if per_step > 0 else MOST_STEPS
        # The first bound is safe: it assigns all to the steps. Numbers of steps that differ little
        # say little about many steps. If they are equal, the fit assigns all but the bytes to them.
        counts = [each.steps for each in pace.measured]
        growth = min((max(counts) / min(counts)) ** 3, GROWTH) if not _alike(counts) else 2.0
        most = max(within * measured.steps / measured.seconds, growth * measured.steps)
        if _alike(counts) and len(pace.measured) < MEASUREMENTS:
            more = measured.steps + 1  # another number of steps tells what a step takes
            if measured.seconds * more / measured.steps <= TRIED * within:
                steps = max(steps, more)
        pace.plan = NodePlan(max(1, math.floor(min(steps, most, MOST_STEPS))), factor, bits)

    def _amount(
        self, pace: NodePace, fixed: float, per_step: float, per_byte: float, within: float
    ) -> tuple[float, int]:
        """Return the next factor of a node's density, and the next number of bits.

        Of the planned time, the download, the latency and the upload get at most a half. They get
        more only if one step and a small upload take more.
        """
        (_, factor, bits), last = pace.plan, pace.measured[-1]
        sending = per_byte * last.size
        room = max(within / 2 - fixed, within / 8)
        room = max(min(room, within - fixed - per_step), within / 64)
        alike = _alike([each.size for each in pace.measured])  # they do not tell a byte's time
        late = fixed > within / 2 or (last.steps <= 1 and last.seconds > within)
        if sending > room and bits:
            bits -= 1
        elif sending > room:
            factor *= max(room / sending, 0.5)
        elif late and not pace.probed and alike:
            # Another size will tell which part of the time is the upload's.
            factor, bits = (factor, 0) if bits else (0.5 * factor, 0)
            pace.probed = True
        elif factor < 1 and not alike and 1.5 * sending <= room:
            factor = min(1.5 * factor, 1.0)  # the bytes are not what takes the time
        elif last.seconds < within / 2 and (not self._limited or last.steps < pace.plan.steps):
            # It has done all its steps.
            grown = factor * (min(1.5, room / sending) if sending > 0 else 1.5)
            if factor >= self._options.most_factor and grown >= GROWN * factor:
                bits = min(bits + 1, self._options.most_bits)
            factor = grown
        return min(max(factor, self._options.least_factor), self._options.most_factor), bits

    def miss(self, node: int) -> None:
        """Halve a node's steps, because its reply came too late.

        If it had one step, it gets the codec's own bits, and half of the density the next time.
        """
        pace = self._paces[node]
        steps, factor, bits = pace.plan
        if steps <= 1 and bits:
            bits = 0
        elif steps <= 1:
            factor = max(factor / 2, self._options.least_factor)
        pace.plan = NodePlan(max(steps // 2, 1) if self._limited else 0, factor, bits)


def fitted(
    measured: Sequence[Measurement], before: tuple[float, float, float] | None = None
) -> tuple[float, float, float]:
    """Return a, b, c >= 0 of seconds = a + b steps + c bytes, fitted by least squares.

    Of several best fits, it takes the one with the fewest parts, and of these the one with steps.
    `before`: the last fit of this node, which the result stays near to (ridge regression towards
    it). So measurements that do not vary do not change how the time is divided.
    """
    rows = np.array(measured, dtype=np.float64)
    weights = RECENT ** (np.arange(len(rows))[::-1] / 2)
    seconds = rows[:, 0] * weights
    parts = np.column_stack([rows[:, 1], np.ones(len(rows)), rows[:, 2]]) * weights[:, None]
    # Columns of unit length, so that the tolerance below is the same for steps and bytes.
    lengths = np.maximum(np.linalg.norm(parts, axis=0), 1e-12)
    parts = parts / lengths
    total = float(seconds @ seconds)
    if before is not None:
        near = math.sqrt(MEMORY)
        last = np.array([before[1], before[0], before[2]]) * lengths
        parts = np.vstack([parts, near * np.eye(3)])
        seconds = np.concatenate([seconds, near * last])
    best, least = np.zeros(3), math.inf
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            found, _, rank, _ = np.linalg.lstsq(parts[:, chosen], seconds, rcond=1e-9)
            miss = parts[:, chosen] @ found - seconds
            error = float(miss @ miss)
            if rank == count and found.min() >= 0 and error < least - 1e-9 * total:
                best, least = np.zeros(3), error
                best[list(chosen)] = found
    per_step, fixed, per_byte = (best / lengths).tolist()
    return fixed, per_step, per_byte


def _alike(numbers: Sequence[float]) -> bool:
    return max(numbers) < ALIKE * min(numbers)
