"""Writes `nodes.json`: for each node its messages, bytes, failures, times and newest metrics.

Other programs read this file during the run (docs/run-files.md).
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid

from edgewire.compression.base import PayloadError
from edgewire.compression.flower.compact_records import restored
from edgewire.compression.flower.headers import EXAMPLES, LOSS, trains
from edgewire.compression.flower.message_size import size_of
from edgewire.compression.flower.node_names import NAMES, NUMBERS, add_names, learn_names
from edgewire.compression.flower.records import content_of, metadata_of, records, values_of
from edgewire.compression.flower.server.failure_policy import FailedNode
from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.strategy.run.whole_files import replace_file

log = getLogger("edgewire")
FILE = "nodes.json"
OFTEN = 2.0  # least real seconds from one writing of the file to the next
SHARE = 0.02  # the most of the run's real time that writing the file may take
LISTED = 2000  # nodes in the file, at most
HIDDEN = ("measured", "answered")  # of `NodeActivity`: not in the file under these names
OPEN = 10_000  # messages without a reply that are remembered, at most


@dataclass
class NodeActivity:
    """What one node has done in a run so far.

    `messages`, `replies`: how many there were. `uplink_bytes`, `downlink_bytes`: their bytes,
    everything included. `failures`, `reason`: replies that could not be used, and why the last one
    could not. `sent`, `heard`: the run's seconds at the last message and at the last reply. `lag`,
    `mean_lag`: seconds from a message to its reply: the last ones, and their mean. `samples`,
    `train_loss`, `measured`: of its last replies: the number of samples, the loss of its training,
    and the run's main metric. `answered`: when the last message that it has answered was sent.
    """

    messages: int = 0
    replies: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    failures: int = 0
    reason: str | None = None
    sent: float | None = None
    heard: float | None = None
    lag: float | None = None
    mean_lag: float | None = None
    samples: float | None = None
    train_loss: float | None = None
    measured: float | None = None
    answered: float | None = None


@dataclass
class NodeLogState:
    """The state of a `NodeLog`.

    `nodes`: the activities by node. `seconds`: the run's seconds so far. `open`: by message id, the
    node of a message without a reply, and the seconds when it was sent. `places`: by node, its
    place in the list of nodes. `online`: the nodes that were there when the list was last read.
    """

    nodes: dict[int, NodeActivity] = field(default_factory=dict)
    seconds: float = 0.0
    open: dict[str, tuple[int, float]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    online: set[int] = field(default_factory=set)


class NodeLog(GridWrapper):
    """A grid that observes the messages and replies of each node, and writes `nodes.json`.

    It changes no message. `folder`: the run's folder; "": no file is written. `metric`: the name of
    the run's main metric. `measured`: computes the metrics from the sums and the number of samples
    in a reply to an evaluation; None: the reply holds them.
    """

    losses = True  # whether the file may hold the losses of the nodes' training
    samples = True  # whether it may hold the nodes' numbers of samples

    def __init__(
        self,
        grid: Grid,
        folder: str,
        metric: str,
        measured: Callable[[Mapping[str, Any], Any], Mapping[str, float]] | None = None,
    ) -> None:
        super().__init__(grid)
        self._folder = Path(folder) if folder else None
        self._metric, self._measured = metric, measured
        self.state = NodeLogState()
        NUMBERS.clear()  # of an earlier run in this process
        NAMES.clear()
        self._places: Sequence[str] = ()  # the names that the places give
        self._met = set[int]()  # the nodes whose names this process has asked for
        self._virtual = self._grid.virtual_seconds is not None
        self._began = 0.0 if self._virtual else self._grid.now
        # The last arguments of `write`.
        self._newest: tuple[int, Mapping[int, FailedNode]] = (0, {})
        self._written, self._cost = -math.inf, 0.0  # when and in how many seconds it was written

    def load(self, state: NodeLogState) -> None:
        """Resume with the state of a checkpoint."""
        self.state = state
        NUMBERS.update((node, place + 1) for node, place in state.places.items())
        if not self._virtual:
            self._began = self._grid.now - state.seconds

    def save(self) -> NodeLogState:
        """Return the state for a checkpoint."""
        self.state.seconds = self._since(self._grid.now)
        return self.state

    def get_node_ids(self) -> Sequence[int]:
        """See `TimedGrid`; remembers the places of the nodes, and learns their names."""
        found = super().get_node_ids()
        if len(found) <= LISTED:
            self.state.online = set(found)
        if not self._virtual and (new := [node for node in found if node not in self._met]):
            self._met.update(new)
            for node in new:
                self.state.places.setdefault(node, len(self.state.places))
                NUMBERS[node] = self.state.places[node] + 1
            learn_names(self)
            named = zip(new, (self.state.places[node] for node in new), strict=True)
            add_names({node: self._places[at] for node, at in named if at < len(self._places)})
        return found

    def name_places(self, names: Sequence[str]) -> None:
        """Learn the names of the nodes that have no name of their own, by their places."""
        self._places = names
        if self._virtual:
            add_names({place + 1: each for place, each in enumerate(names)})

    def _place(self, node: int) -> int | None:
        """Return a node's place in the list of nodes; on the local engine it is the node's part."""
        return node - 1 if self._virtual else self.state.places.get(node)

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """See `TimedGrid`."""
        messages = list(messages)
        now = self._since(self._grid.now)
        ids = list(super().push_messages(messages, ttl))
        self._sent(messages, now)
        return ids

    def _since(self, moment: float) -> float:
        """Return the run's seconds at a moment of the grid's clock."""
        return moment - self._began

    def _sent(self, messages: Sequence[Message], now: float) -> None:
        sizes: dict[int, int] = {}  # nodes may get the same content
        for message in messages:
            content, about = content_of(message), metadata_of(message)
            node = about["_dst_node_id"]
            if id(content) not in sizes:
                sizes[id(content)] = size_of(content)
            self.state.open[about["_message_id"]] = node, now
            activity = self._of(node)
            activity.messages += 1
            activity.downlink_bytes += sizes[id(content)]
            activity.sent = now
        while len(self.state.open) > OPEN:
            del self.state.open[next(iter(self.state.open))]
        self._refresh()

    def _received(self, replies: Iterable[Message]) -> list[Message]:
        now, found = self._since(self._grid.now), list(replies)
        for reply in found:
            about = metadata_of(reply)
            unknown = about["_src_node_id"], now
            node, sent = self.state.open.pop(about["_reply_to_message_id"], unknown)
            self._count(reply, node, sent, now)
        if found:
            self._refresh()
        return found

    def _refresh(self) -> None:
        """Write `nodes.json` in the middle of a round, which may last for hours on devices."""
        if self._written >= 0:
            self.write(*self._newest)

    def _count(self, reply: Message, node: int, sent: float, now: float) -> None:
        activity = self._of(node)
        activity.heard, activity.lag, activity.answered = now, now - sent, sent
        before = activity.replies * (activity.mean_lag or 0.0)
        activity.replies += 1
        activity.mean_lag = (before + activity.lag) / activity.replies
        if reply.has_error():
            return
        activity.uplink_bytes += size_of(content_of(reply))
        self._measure(reply, activity)

    def _measure(self, reply: Message, activity: NodeActivity) -> None:
        """Store the metrics of a reply, which is not checked yet."""
        try:
            content = restored(content_of(reply))
        except PayloadError:
            return
        for _, metrics in records(content, MetricRecord):
            if trains(reply):
                said = values_of(metrics)
                if self.samples:
                    activity.samples = _number(said.get(EXAMPLES), activity.samples)
                if self.losses:
                    activity.train_loss = _number(said.get(LOSS), activity.train_loss)
            else:
                found: Mapping[str, Any] = {} if self._measured else metrics
                with suppress(Exception):  # a hostile reply may hold anything
                    found = self._measured(metrics, metrics[EXAMPLES]) if self._measured else found
                activity.measured = _number(found.get(self._metric), activity.measured)

    def _of(self, node: int) -> NodeActivity:
        return self.state.nodes.setdefault(node, NodeActivity())

    def write(
        self, server_round: int, failed: Mapping[int, FailedNode], *, end: bool = False
    ) -> None:
        """Write `nodes.json`, unless it was written a moment ago and this is not the run's `end`.

        `failed`: the failures by node. A file that cannot be written is left as it is.
        """
        began = time.monotonic()
        pause = max(OFTEN, self._cost / SHARE)
        if self._folder is None or (not end and began - self._written < pause):
            return
        self._newest = server_round, failed
        for node, each in failed.items():
            activity = self._of(node)
            activity.failures, activity.reason = each.failures, each.reason
        text = json.dumps(self._content(server_round), allow_nan=False)
        try:
            replace_file(self._folder / FILE, text, "\n")
        except OSError as error:
            if self._written < 0 or end:
                log.warning("%s cannot be written: %s", FILE, error)
        self._written = time.monotonic()
        self._cost = self._written - began

    def _content(self, server_round: int) -> dict[str, Any]:
        nodes = self.state.nodes
        # A node replies in order. So an earlier message than the last answered one was lost.
        waiting = {
            node for node, sent in self.state.open.values() if sent >= (nodes[node].answered or 0.0)
        }
        rows = []
        order = sorted(nodes, key=lambda node: (self.state.places.get(node, math.inf), node))
        for node in order[:LISTED]:
            values = asdict(nodes[node])
            place = self._place(node)
            rows.append(
                {
                    "node": node,
                    "number": None if place is None else place + 1,
                    "name": NAMES.get(node),
                    "partition": place,
                    "online": node in self.state.online if self.state.online else None,
                    "waiting": node in waiting,
                    **{key: value for key, value in values.items() if key not in HIDDEN},
                    self._metric: values["measured"],
                }
            )
        return {
            "round": server_round,
            "seconds": self._since(self._grid.now),
            "virtual": self._virtual,
            "updated": time.time(),
            "others": max(len(nodes) - LISTED, 0),
            "nodes": rows,
        }


def _number(value: Any, before: float | None) -> float | None:
    """Return a metric of a reply if it is a finite number, else the value before."""
    if type(value) is bool or not isinstance(value, int | float) or not math.isfinite(value):
        return before
    return value
