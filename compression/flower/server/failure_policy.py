"""Counts unusable replies, and ends a run in which no update can be used any more."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import getLogger
from typing import NamedTuple

from ...base import DIVERGED, PayloadError
from ..headers import HEALS
from ..node_names import called
from ..traffic import Traffic, in_one_line

log = getLogger("edgewire")
NOT_OPEN = "its message was answered before, or never sent"
MANY = 3  # if no reply of MANY nodes can be used, the cause is probably not a single bad node
# The run ends if every node has sent this many consecutive unusable replies.
MAX_CONSECUTIVE_FAILURES = 20
UNUSABLE = "no update could be used"  # the error that ends a run begins with this
MOD = "give the ClientApp mods=[CompressionMod(...)], before any other mod"
# What an app raises that looks for a model's arrays, and finds one with a payload.
LOOKUPS = ("KeyError", "IndexError", "not enough values")
HINTS = {
    "as long as usual": DIVERGED,
    **dict.fromkeys(("'edgewire.", "CompressionMod", "_mod expects"), MOD),
    "ArrayRecord": "a reply must hold one ArrayRecord, the model, and one MetricRecord",
}


class FailureStreak(NamedTuple):
    """A node's consecutive failures; `used`: the run's used updates before the first of them."""

    failures: int
    used: int


class FailedNode(NamedTuple):
    """How many replies of a node could not be used, and why the last one could not.

    `streak`: the failures since its last usable reply; None: there are none.
    """

    failures: int
    reason: str
    streak: FailureStreak | None = None


@dataclass
class FailurePolicyState:
    """State of `FailurePolicy`.

    `asked`: the number of messages that asked for training. `rounds`: the number of consecutive
    rounds without a usable reply. `rounds_of_many`: how many of these rounds had replies of at
    least `MANY` nodes. `healed`: True if the last round ended with the advice that nodes get the
    whole model next. `failed`: by node (in a cut model by segment), the number of consecutive
    failures. `failed_nodes`: the nodes whose replies could not all be used.
    """

    asked: int = 0
    rounds: int = 0
    rounds_of_many: int = 0
    healed: bool = False
    failed: Counter[int] = field(default_factory=Counter)
    failed_nodes: dict[int, FailedNode] = field(default_factory=dict)


@dataclass(frozen=True)
class FailureLimits:
    """Says after how many consecutive rounds without a usable reply a run ends.

    A round is unusable if it has replies and the server can use none of them. The run ends after
    `patience` consecutive unusable rounds with replies of at least three nodes. It also ends after
    `few` consecutive unusable rounds with any number of nodes; None: after `patience` rounds. `few`
    may be larger, because a single bad node may be the only node.
    """

    patience: int = 1
    few: int | None = None


ONE_ROUND = FailureLimits()
PATIENT = FailureLimits(patience=MAX_CONSECUTIVE_FAILURES)


class FailurePolicy:
    """Counts and logs unusable replies, and ends a run in which none is usable any more.

    A server with rounds calls `begin_round` and `end_round`; `FailureLimits` says after how many
    unusable rounds the run ends. A round without replies is not counted, because the network may
    recover. The first round after which nodes get the whole model again is not counted either. A
    server without rounds calls `failed` and `succeeded` for each node or segment.
    """

    def __init__(
        self,
        traffic: Traffic,
        limits: FailureLimits = ONE_ROUND,
        state: FailurePolicyState | None = None,
    ) -> None:
        self._traffic, self._patience = traffic, limits.patience
        self._few = limits.few or limits.patience
        self._reasons = deque[str](maxlen=1000)  # why the server left out replies of this round
        self._state = FailurePolicyState() if state is None else state

    def leave_out(self, node: int, reason: str, when: str = "") -> None:
        """Count a reply that the server does not use; log the reason, unless it is the last one.

        `when`: a text at the beginning of the log line, such as "round 3: ".
        """
        self._traffic.failures += 1
        self._reasons.append(reason)
        line, known = in_one_line(reason), self._state.failed_nodes
        before = known.get(node, FailedNode(0, ""))
        streak = before.streak
        if reason != NOT_OPEN:  # it answers no message
            failures, used = streak or (0, self._traffic.client_updates)
            streak = FailureStreak(failures + 1, used)
        known[node] = FailedNode(before.failures + 1, line, streak)
        if line != before.reason:  # a node may fail for the same reason each time
            log.warning("%s%s left out: %s", when, called(node), line)

    def begin_round(self, asked: int) -> None:
        """Begin a round in which `asked` nodes get a message for training."""
        self._state.asked += asked
        self._reasons.clear()

    def end_round(self, server_round: int, used: int, replies: int) -> None:
        """Count a round's usable replies; raises `PayloadError` after too many rounds without one.

        `used`: how many replies were usable. `replies`: how many replies came.
        """
        self._traffic.client_updates += used
        state = self._state
        healed = any(HEALS in reason for reason in self._reasons)
        if used or (healed and not state.healed):
            state.rounds = state.rounds_of_many = 0
        else:
            state.rounds += bool(replies)
            state.rounds_of_many += replies >= MANY
        state.healed = healed
        if state.rounds >= self._few or state.rounds_of_many >= self._patience:
            period = f"{state.rounds} rounds" if state.rounds > 1 else f"round {server_round}"
            raise PayloadError(f"{UNUSABLE} in {period}: {self._cause()}")

    def _cause(self) -> str:
        """Return the most frequent reason of this round, and a hint."""
        reason = Counter(self._reasons or ["no reply held an update"]).most_common(1)[0][0]
        hint = next((hint for sign, hint in HINTS.items() if sign in reason), "")
        if not self._traffic.client_updates and any(sign in reason for sign in LOOKUPS):
            hint = f"if it found a payload in place of the model's arrays, {MOD}"
        return f"{reason}{hint and '; ' + hint}"

    def end(self) -> None:
        """Raise `PayloadError` if the server asked for training and never used an update."""
        if self._state.asked and not self._traffic.client_updates:
            why = f"{UNUSABLE} ({self._cause()})"
            said = why if self._traffic.failures else "no node has answered"
            raise PayloadError(f"{said}: the model is as it was")

    def failed(self, source: int, every: Iterable[int], what: str, reason: str) -> None:
        """Count a failure of a node or a segment.

        Raises `PayloadError` if each of `every` has failed `MAX_CONSECUTIVE_FAILURES` consecutive
        times. `what`: a text for this error, such as "of every node".
        """
        failed = self._state.failed
        failed[source] += 1
        if all(failed[each] >= MAX_CONSECUTIVE_FAILURES for each in every):
            count = f"{MAX_CONSECUTIVE_FAILURES} failures in a row {what}"
            raise PayloadError(f"{UNUSABLE}: {count}: {reason}")

    def succeeded(self, source: int, node: int | None = None) -> None:
        """Record a usable reply of a node, or of a segment; `node`: the segment's node."""
        self._state.failed.pop(source, None)
        known, node = self._state.failed_nodes, source if node is None else node
        if node in known:
            known[node] = known[node]._replace(streak=None)

    def failures_of(self, source: int) -> int:
        """Return the number of consecutive failures of a node or a segment."""
        return self._state.failed[source]
