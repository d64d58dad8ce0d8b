"""Models how long a run's messages take over a link, compressed and as Flower would send them.

Two additional virtual clocks follow the run's messages. One clock uses the real bytes. The other
uses the bytes of Flower's Arrays instead of those of the compressed payloads. The model must know
when the server would have sent each message over such a link. It distinguishes two cases:

* No other message is under way when a message is sent. Then the server had waited for all replies,
  as in synchronous training.
* The server sends a single message, either while other messages are under way, or to a node whose
  reply it has just taken. Then the server had waited for the last reply of this node, as in
  asynchronous training.

In all other cases the model cannot know when the message would have been sent. The time is also
unknown if crashes, losses or time-outs decide which nodes answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edgewire.compression.flower.message_size import Size, other_than_payloads
from edgewire.conf.network import Network
from edgewire.simulation.clock import ClockState, VirtualClock

DOWN_MBPS, UP_MBPS = 10.0, 2.0  # the modelled link if the network does not limit any link
Times = tuple[float, float]  # virtual seconds with the real bytes, and with Flower's


class Traced(NamedTuple):
    """An unanswered message: its node, its bytes, the bytes that Flower would send.

    A reply is too late after `timeout` virtual seconds. `at`: when it was sent on each clock.
    """

    node: int
    down: int
    down_plain: int
    timeout: float
    at: Times = (0.0, 0.0)


@dataclass
class BandwidthModelState:
    """The state of a `BandwidthModel`.

    `known`: whether the run would have made the same decisions over the modelled link. `calls`: the
    calls that sent messages since the server last took replies. `sent`: unanswered messages by id.
    `arrivals`: node and arrival times of the replies that the server has not taken yet. An arrival
    has two times, one on each clock. `last`: the arrival times of each node's last reply. `now`:
    the arrival times of the reply that the server took last. `idle`: whether no message was under
    way after the server last took replies. `heard`: the nodes whose replies the server took last.
    """

    known: bool
    calls: list[dict[str, Traced]] = field(default_factory=list)
    sent: dict[str, Traced] = field(default_factory=dict)
    arrivals: dict[str, tuple[int, Times]] = field(default_factory=dict)
    last: dict[int, Times] = field(default_factory=dict)
    now: Times = (0.0, 0.0)
    idle: bool = True
    heard: set[int] = field(default_factory=set)
    clocks: list[ClockState] = field(default_factory=list)


class BandwidthModel:
    """Follows a run on two clocks: one for the real bytes, one for the bytes in Flower's format.

    `plain_bytes`: the bytes of the model as Flower sends it. The second clock counts them in place
    of the bytes of a message's payloads.
    """

    def __init__(self, network: Network, seed: int, plain_bytes: int) -> None:
        self._network = network
        limits = (network.up_mbps, network.down_mbps, network.server_mbps)
        if limits == (None, None, None):
            self._network = replace(network, up_mbps=UP_MBPS, down_mbps=DOWN_MBPS)
        plain = replace(self._network, encoding_seconds=0.0)  # Flower does not compress
        self._clocks = VirtualClock(self._network, seed), VirtualClock(plain, seed)
        self._plain = plain_bytes
        known = not (network.loss or network.crash or network.join_seconds)
        self.state = BandwidthModelState(known, clocks=[clock.state for clock in self._clocks])

    def load(self, state: BandwidthModelState) -> None:
        """Continue from the state of another `BandwidthModel`."""
        self.state = state
        for clock, kept in zip(self._clocks, state.clocks, strict=True):
            clock.state = kept

    @property
    def comparison(self) -> dict[str, float | None]:
        """The link, and when the last reply that the server took arrives on both clocks.

        `link_seconds`: with the real bytes; `link_seconds_float32`: with the bytes that Flower
        would send. {}: the times are unknown.
        """
        if not self.state.known:
            return {}
        real, plain = self.state.now
        return {
            "link_down_mbps": self._network.down_mbps,
            "link_up_mbps": self._network.up_mbps,
            "link_seconds": real,
            "link_seconds_float32": plain,
        }

    def push(self, messages: list[tuple[str, int, Size]], timeout: float) -> None:
        """Record the messages of one call: their ids, nodes and sizes."""
        if self.state.known:
            plain = self._plain_bytes
            sent = {i: Traced(node, size[2], plain(size), timeout) for i, node, size in messages}
            self.state.calls.append(sent)

    def send(self) -> None:
        """Decide when the server sent the messages recorded by `push` since the last call.

        Call it before the first answer to these messages.
        """
        calls, self.state.calls = self.state.calls, []
        if not calls:
            return
        # The two cases of the module's docstring: `own` is the asynchronous one.
        alone = all(len(call) == 1 for call in calls)
        if not self.state.idle and (self._network.server_mbps is not None or not alone):
            return self.lose_track()
        messages = {name: message for call in calls for name, message in call.items()}
        heard = all(message.node in self.state.heard for message in messages.values())
        own = alone and (heard or not self.state.idle)
        for message_id, message in messages.items():
            at = self.state.last.get(message.node, (0.0, 0.0)) if own else self.state.now
            self.state.sent[message_id] = message._replace(at=at)
        self.state.idle = False

    def answer(self, message_id: str, steps: float, up: Size) -> None:
        """Record a reply's local steps and size. Call it in the order of each node's replies."""
        if (sent := self.state.sent.pop(message_id, None)) is None:
            return
        (real, plain), (node, down, down_plain, timeout, at) = self._clocks, sent
        there = (
            real.arrival(node, at[0], down, steps, up[2]),
            plain.arrival(node, at[1], down_plain, steps, self._plain_bytes(up)),
        )
        self.state.arrivals[message_id] = node, there
        if there[0] - at[0] > timeout or there[1] - at[1] > timeout:
            self.lose_track()

    def take(self, message_ids: Iterable[str]) -> None:
        """Record that the server has taken the replies to these messages."""
        if not self.state.known:
            return
        now = self.state.now
        self.state.heard.clear()
        for message_id in message_ids:
            node, at = self.state.arrivals.pop(message_id)
            self.state.heard.add(node)
            self.state.last[node], now = at, (max(now[0], at[0]), max(now[1], at[1]))
        self.state.now, self.state.idle = now, not (self.state.sent or self.state.arrivals)

    def _plain_bytes(self, size: Size) -> int:
        """Return the bytes of a message's content if Flower had sent it without compression."""
        return other_than_payloads(size) + (self._plain if size[0] else 0)

    def lose_track(self) -> None:
        """Make the modelled times unknown: over this link the run could have other decisions."""
        self.state.known = False
        for kept in (self.state.calls, self.state.sent, self.state.arrivals, self.state.last):
            kept.clear()
