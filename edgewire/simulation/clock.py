"""The virtual clock: when a message arrives over a node's link, and when its reply comes back.

    sent            received       done                arrived
      |-- latency ----|             |                     |
      |-- bytes/down -|-- compute --|-- latency + bytes/up|

A node needs time for its local steps, and waits for some time before it begins them. Each node has
its own link and does one thing at a time. If the server's link is limited, it carries one message
after another, in the order in which they were sent. A node works as long on a lost reply as on any
other. A lost reply never arrives: its arrival time is infinity. A node crashes after it has sent a
reply, and its state is lost. A crashed node replies to a message after it has rejoined, or never.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from edgewire.conf.network import Network, transfer_seconds

MOST_STEPS = 1e9  # the most local steps of one message
NEVER = float("inf")  # the arrival time of a lost reply
_LOSS, _LIFE, _JOIN = 0x1055, 0x11FE, 0x301  # separate the random streams of one (seed, node)


class Journey(NamedTuple):
    """A message to a node: what the clock knows before the node has answered."""

    node: int
    sent: float  # virtual seconds
    received: float
    waiting: float  # seconds in which the node is idle before it computes
    earliest: float  # lower bound of the reply's arrival; `NEVER`: the message will expire
    expires: float  # the message is lost if the node has not begun its work by then
    crashes: bool  # whether the node crashes after its reply
    life: int  # how often the node had crashed when the message was sent
    steps: float  # local steps that the message announces, at least


@dataclass
class ClockState:
    """The state of a clock.

    Most fields have an entry for each node. `free`: when the node has sent its last computed reply.
    `busy`: a lower bound of the time when it will have computed its other replies. `under_way`: its
    unanswered messages. `answers`: the number of its replies so far, if the network loses replies.
    `draws`: how often a waiting time and a crash were drawn at random for it. `gone`: when it
    crashed last. `crashes`: how often it has crashed. Of the server's link, if it is limited, until
    when it is busy: `sending`, `receiving`.
    """

    now: float = 0.0
    free: dict[int, float] = field(default_factory=dict)
    busy: dict[int, float] = field(default_factory=dict)
    under_way: dict[int, deque[Journey]] = field(default_factory=dict)
    sending: float = 0.0
    receiving: float = 0.0
    answers: Counter[int] = field(default_factory=Counter)
    draws: Counter[int] = field(default_factory=Counter)
    gone: dict[int, float] = field(default_factory=dict)
    crashes: Counter[int] = field(default_factory=Counter)


class VirtualClock:
    """Virtual seconds since the start; when each node is free again; which nodes are online.

    `state` holds the whole state: another clock of the same network and seed can continue from it.
    """

    def __init__(self, network: Network | None = None, seed: int = 0) -> None:
        self.network = network or Network()
        self.seed = seed
        self.state = ClockState()
        self._generators: dict[int, np.random.Generator] = {}  # by node, for waits and crashes
        self._joined: dict[int, float] = {}
        self._speeds: dict[int, float] = {}
        self._takes_time = bool(self.network.seconds_per_step or self.network.encoding_seconds)
        self._limits = np.cumsum([c.share for c in self.network.classes.values()])

    def speed(self, node: int) -> float:
        """Return the speed factor of a node's device class, drawn once from (seed, node)."""
        if not len(self._limits):
            return 1.0
        if node not in self._speeds:
            draw = np.random.default_rng([self.seed, node]).random()
            index = int(np.searchsorted(self._limits, draw, side="right"))
            classes = list(self.network.classes.values())
            self._speeds[node] = classes[min(index, len(classes) - 1)].speed
        return self._speeds[node]

    def send(
        self, node: int, sent: float, down: int, ttl: float = NEVER, steps: float = 0.0
    ) -> Journey:
        """Return the journey of a message of `down` bytes sent at `sent`; it draws random numbers.

        `steps`: a lower bound of the local steps that the message takes. With a closer bound, the
        grid computes fewer other replies before it knows that this message's reply is the next to
        arrive. If a node has not begun to work on the message after `ttl` seconds, it never will.
        Calls must be in the order of sending. For each node the calls of `answer` must be in the
        same order, except for messages that are never answered.
        """
        received, waiting, crashes = self._received(node, sent, down)
        expires, life = sent + ttl, self.state.crashes[node] if self.state.crashes else 0
        busy = self._busy_until(node)
        begins = busy if busy > received else received  # `max` takes a call, as below
        if begins > expires:
            return Journey(node, sent, received, waiting, NEVER, expires, False, life, steps)
        work = self._work(node, steps) if steps and self._takes_time else 0.0
        earliest = begins + waiting + work
        if earliest > sent:
            self.state.busy[node] = earliest if earliest < expires else expires
        # A limited server link serves messages in the order of sending: with -NEVER (minus
        # infinity) as the lower bound the grid computes replies in that order, too.
        net = self.network
        earliest = -NEVER if net.server_mbps is not None else earliest + net.latency_ms / 1e3
        task = Journey(node, sent, received, waiting, earliest, expires, crashes, life, steps)
        self.state.under_way.setdefault(node, deque()).append(task)
        return task

    def _received(self, node: int, sent: float, down: int) -> tuple[float, float, bool]:
        """Return when a node gets a message, how long it is idle then, and whether it crashes."""
        net = self.network
        reaches = sent if net.down_mbps is None else sent + transfer_seconds(down, net.down_mbps)
        if net.server_mbps is not None:
            taken = transfer_seconds(down, net.server_mbps)
            self.state.sending = max(sent, self.state.sending) + taken
            reaches = max(reaches, self.state.sending)
        waiting, crashes = 0.0, False
        if net.waiting != "none" or net.crash:
            waiting, crashes = self.draw_life(node)
        return net.latency_ms / 1e3 + reaches, waiting, crashes

    def _busy_until(self, node: int) -> float:
        """Return a lower bound of the time until which a node is busy."""
        state = self.state
        free, busy = state.free.get(node, 0.0), state.busy.get(node, 0.0)
        busy = free if free > busy else busy
        if node not in state.under_way or node in state.gone:
            return busy
        waiting = state.under_way[node]
        first = waiting[0]
        begins = max(first.received, free)
        if begins > first.expires:
            return busy
        work = self._work(node, first.steps) if self._takes_time else 0.0
        return max(busy, begins + first.waiting + work)

    def _work(self, node: int, steps: float) -> float:
        """Return a node's seconds for local steps, and for encoding the model update."""
        encoding = self.network.encoding_seconds if steps else 0.0
        seconds = steps * self.network.seconds_per_step + encoding
        return seconds / self.speed(node) if self.network.classes else seconds

    def answer(self, task: Journey, steps: float, up: int) -> float:
        """Return when the reply arrives at the server, in virtual seconds, or `NEVER`.

        `up`: the reply's bytes; `steps`: the local steps that were computed. If the message had
        announced more steps, the clock uses the announced number, because a node that fails after
        fewer steps needs time too.
        """
        under_way = self.state.under_way
        under_way[task.node].popleft()
        if not under_way[task.node]:
            del under_way[task.node]
        net, node = self.network, task.node
        start, free = task.received, self.state.free.get(node, 0.0)
        start = free if free > start else start
        if node in self.state.gone:
            if net.rejoin_seconds is None:
                return NEVER
            start = max(start, self.state.gone[node] + net.rejoin_seconds)
        if start > task.expires:
            return NEVER
        steps = task.steps if task.steps > steps else steps
        work = self._work(node, steps) if self._takes_time else 0.0
        done = start + task.waiting + work
        sent_back = done if net.up_mbps is None else done + transfer_seconds(up, net.up_mbps)
        if sent_back > task.sent:  # else nothing takes time, and no entry is needed
            self.state.free[node] = sent_back
        if task.crashes:
            self.state.gone[node] = sent_back
            self.state.crashes[node] += 1
        arrived = sent_back + net.latency_ms / 1e3
        if net.server_mbps is not None:
            taken = transfer_seconds(up, net.server_mbps)  # the last byte was sent at `arrived`
            arrived = self.state.receiving = max(arrived, self.state.receiving + taken)
        return NEVER if net.loss and self.draw_loss(node) else arrived

    def arrival(self, node: int, sent: float, down: int, steps: float, up: int) -> float:
        """Send a message at the time `sent`; return when the reply to it arrives, or `NEVER`."""
        return self.answer(self.send(node, sent, down), steps, up)

    @property
    def steady(self) -> bool:
        """Whether all nodes are online all the time."""
        return not (self.network.crash or self.network.join_seconds)

    def joined(self, node: int) -> float:
        """Return when a node joins for the first time, drawn from (seed, node)."""
        if not self.network.join_seconds:
            return 0.0
        if node not in self._joined:
            draw = np.random.default_rng([self.seed, node, _JOIN]).random()
            self._joined[node] = float(draw) * self.network.join_seconds
        return self._joined[node]

    def present(self, node: int) -> bool:
        """Return whether a node is online now: it has joined, and is not away after a crash."""
        gone, back = self.state.gone.get(node, NEVER), self.network.rejoin_seconds
        away = gone <= self.state.now and (back is None or self.state.now < gone + back)
        return self.joined(node) <= self.state.now and not away

    def change(self, nodes: Iterable[int]) -> float:
        """Return the next moment at which one of these nodes joins or rejoins, or `NEVER`."""
        back = self.network.rejoin_seconds
        moments = [self.joined(node) for node in nodes] if self.network.join_seconds else []
        moments += [] if back is None else [gone + back for gone in self.state.gone.values()]
        return min((moment for moment in moments if moment > self.state.now), default=NEVER)

    def draw_life(self, node: int) -> tuple[float, bool]:
        """Draw a waiting time, and whether the node crashes after its reply."""
        net = self.network
        if node not in self._generators:
            drawn = np.random.PCG64([self.seed, node, _LIFE])  # as `default_rng`
            drawn.advance(2 * self.state.draws[node])  # a loaded state has drawn these already
            self._generators[node] = np.random.Generator(drawn)
        self.state.draws[node] += 1
        first, second = self._generators[node].random(2).tolist()
        mean = net.waiting_seconds / self.speed(node)
        waiting = {
            "none": 0.0,
            "uniform": 2 * first * mean,
            "exponential": -math.log1p(-first) * mean,
            "fixed": mean,
        }[net.waiting]
        return waiting, second < net.crash

    def draw_loss(self, node: int) -> bool:
        """Draw from (seed, node, its replies so far) whether a node's next reply is lost."""
        self.state.answers[node] += 1
        random = np.random.default_rng([self.seed, node, self.state.answers[node], _LOSS])
        return bool(random.random() < self.network.loss)


def steps_of(metrics: Mapping[str, object]) -> float:
    """Return the local steps that a reply's metrics report as `num-steps`; 0 without a report.

    An impossible number, below 0 or above a billion, counts as 0.
    """
    steps = metrics.get("num-steps", 0)
    sure = isinstance(steps, int | float) and 0 <= steps <= MOST_STEPS
    return float(steps) if sure else 0.0  # type: ignore[arg-type]
