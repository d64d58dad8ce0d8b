"""Selects a run's nodes, and informs nodes of checkpoints so they can resume with the server."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from edgewire.compression.flower.node_names import called, learn_names
from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.protocol.lineage import RunLineage, stores_states, with_lineage
from edgewire.strategy.base import RunStrategy

# A strategy is waiting for nodes if it has asked for the nodes at least ASKS times, for at least
# SECONDS seconds, and has not sent a message.
ASKS, SECONDS = 10, 10.0
REPEATED, SAID = 3, (3, 10, 100)  # consecutive failures: for a pause; for a line in the log
SHORTEST_PAUSE, LONGEST_PAUSE = 600.0, 86_400.0  # seconds
log = getLogger("edgewire")


class NodePause(NamedTuple):
    """The last pause of a node that fails repeatedly, during which it ranks last.

    `failures`: the node's consecutive failures so far. `seconds`: the length of the pause; 0: there
    was none. `until`: its end, as in `now`; in a checkpoint, the seconds from then to its end.
    """

    failures: int = 0
    seconds: float = 0.0
    until: float = -math.inf


@dataclass
class RunLineageState:
    """The state of a `MembershipGrid`.

    `lineage`: this run and those that it resumes. `keeping`: the nodes that store their states for
    a resume. `first`: the first nodes that joined. `part`: the nodes that take part. `pauses`: of
    the nodes that fail repeatedly.
    """

    lineage: RunLineage
    keeping: set[int]
    first: set[int]
    part: set[int]
    pauses: dict[int, NodePause]


class MembershipGrid(GridWrapper):
    """A grid whose nodes continue after this process ends.

    Each message lists the run's server processes and their checkpoints (`RunLineageState`). From
    this list a node finds the checkpoint from which a restarted server resumed, and resumes from
    the same checkpoint. `keeping`: the nodes that store their states for a resume, according to
    their replies (`edgewire.protocol.lineage`). `most`: the number of nodes that take part; None:
    all. `strategy`: counts the failures of nodes; None: nobody counts them.
    """

    def __init__(self, grid: Grid, run_id: int, most: int | None = None) -> None:
        super().__init__(grid)
        self._most = most
        self._first: set[int] = set()  # the first `most` nodes of the run
        self._part: set[int] = set()  # nodes that take part
        self._surplus: set[int] = set()  # nodes that are online and do not take part
        self._pauses: dict[int, NodePause] = {}
        self.strategy: RunStrategy | None = None
        self._lineage = RunLineage(run_id, run_id)
        self.keeping: set[int] = set()
        self._asked, self._since = 0, 0.0

    def state(self, done: int) -> RunLineageState:
        """Return this grid's state for a checkpoint after `done` units (rounds, updates, ...)."""
        lineage = self._lineage.at_checkpoint(done)
        pauses = {n: e._replace(until=e.until - self.now) for n, e in self._pauses.items()}
        return RunLineageState(lineage, self.keeping, self._first, self._part, pauses)

    def load(self, state: RunLineageState) -> None:
        """Resume with this grid's state from a checkpoint."""
        self._lineage = state.lineage._replace(run_id=self._lineage.run_id)
        self.keeping, self._first, self._part = state.keeping, state.first, state.part
        self._pauses = {n: e._replace(until=e.until + self.now) for n, e in state.pauses.items()}

    def at_checkpoint(self, done: int) -> None:
        """Record that a checkpoint after `done` units is on the disk; later messages name it."""
        self._lineage = self._lineage.at_checkpoint(done)

    def get_node_ids(self) -> Sequence[int]:
        """Return the online nodes that take part; see `TimedGrid`.

        If more than `most` nodes are online, the run's first nodes are chosen, then nodes that take
        part already, then others. Nodes that fail repeatedly come last (`_put_last`). In real time,
        the log names nodes that have left, and nodes that do not take part.
        """
        found = super().get_node_ids()
        most = len(found) if self._most is None else self._most
        new = [node for node in found if node not in self._first]
        self._first.update(new[: max(most - len(self._first), 0)])
        last = self._put_last(found, most, self.strategy) if self.strategy else set[int]()
        ranked = sorted(found, key=lambda n: (n in last, n not in self._first, n not in self._part))
        part, surplus = set(ranked[:most]), set(ranked[most:])
        if self.virtual_seconds is None:
            for node in sorted(self._part.difference(found)):
                log.warning("%s has left: the run continues with %d", called(node), len(part))
            if aside := sorted(surplus - self._surplus - last):
                learn_names(self)
            for node in aside:
                log.warning(
                    "%s takes no part unless one goes: there are nodes=%d", called(node), most
                )
            self._warn_of_waiting(len(part))
        self._part, self._surplus = part, surplus
        return [node for node in found if node in part]

    def _put_last(self, found: Sequence[int], most: int, strategy: RunStrategy) -> set[int]:
        """Return the online nodes that pause because they fail repeatedly.

        A pause begins if another node has succeeded since the node's first failure, and if a spare
        node is online. After the pause the node has its usual rank. If it then fails again, the
        next pause is twice as long. A usable reply ends all this.
        """
        failed, now = strategy.failed_nodes, self.now
        streaks = {n: s for n, e in failed.items() if (s := e.streak) and s.failures >= REPEATED}
        pauses = self._pauses = {n: self._pauses.get(n, NodePause()) for n in streaks}
        usual = {node for node in found if node not in pauses or pauses[node].until <= now}
        for node in filter(pauses.__contains__, found):
            (failures, used), pause = streaks[node], pauses[node]
            pauses[node] = pause._replace(failures=failures)
            if failures == pause.failures or node not in self._part:
                continue
            said = f"{called(node)} has failed {failures} times in a row"
            if node in usual and len(usual) > most and strategy.traffic.client_updates > used:
                usual.remove(node)
                seconds = min(max(2 * pause.seconds, SHORTEST_PAUSE), LONGEST_PAUSE)
                pauses[node] = NodePause(failures, seconds, now + seconds)
                log.warning("%s: a spare node has its place for %.0f minutes", said, seconds / 60)
            elif len(usual) <= most and any(pause.failures < each <= failures for each in SAID):
                log.warning("%s: it keeps its place, because no spare node is online", said)
        return set(found) - usual

    def _warn_of_waiting(self, there: int) -> None:
        """Log one warning if the strategy waits for more nodes than the `there` that take part."""
        now = time.monotonic()
        if not self._asked:
            self._since = now
        self._asked += 1
        if self._asked >= ASKS and now - self._since >= SECONDS:
            self._since = math.inf
            log.warning(
                "the strategy waits for more nodes than the %d that take part: start others, or "
                "stop the run and let it ask for fewer",
                there,
            )

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """See `TimedGrid`."""
        self._asked, found = 0, list(messages)
        for message in found:
            message.metadata.group_id = with_lineage(message.metadata.group_id, self._lineage)
        return super().push_messages(found, ttl)

    def _received(self, replies: Iterable[Message]) -> list[Message]:
        self._asked, found = 0, list(replies)
        self.keeping.update(
            reply.metadata.src_node_id for reply in found if stores_states(reply.metadata.group_id)
        )
        return found
