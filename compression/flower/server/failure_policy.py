"""Counts unusable replies, and ends a run after too many rounds without a usable reply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from logging import getLogger

from ...base import DIVERGED, PayloadError
from ..headers import HEALS
from ..records import STYPE
from ..traffic import Traffic, in_one_line

log = getLogger("edgewire")
MANY = 3  # if no reply of MANY nodes can be used, the cause is probably not a single bad node
HINTS = {
    "as long as usual": DIVERGED,
    STYPE: (
        "the ClientApp was handed a payload: give it mods=[CompressionMod(...)], before "
        "any other mod"
    ),
    "CompressionMod": "give the ClientApp mods=[CompressionMod(...)], before any other mod",
    "_mod expects": "put CompressionMod before any other mod",
    "ArrayRecord": "a reply must hold one ArrayRecord, the model, and one MetricRecord",
}


@dataclass
class FailurePolicyState:
    """State of `FailurePolicy`, which counts rounds without a usable reply.

    `asked`: the number of messages that asked for training. `consecutive_failures`: the number of
    consecutive rounds without a usable reply. `consecutive_failures_of_many`: how many of these
    rounds had replies of at least `MANY` nodes.
    """

    asked: int = 0
    consecutive_failures: int = 0
    consecutive_failures_of_many: int = 0


@dataclass(frozen=True)
class FailureLimits:
    """Says after how many consecutive rounds without a usable reply a run ends.

    A round is unusable if it has replies and the server can use none of them. The run ends after
    `patience` consecutive unusable rounds with replies of at least three nodes. It also ends after
    `few` consecutive unusable rounds with any number of nodes; None: after `patience` rounds. `few`
    may be larger, because a single bad node may be the only node. Raises `ValueError` for a number
    below 1.
    """

    patience: int = 1
    few: int | None = None

    def __post_init__(self) -> None:
        for name, rounds in (("patience", self.patience), ("few", self.few)):
            if name == "few" and rounds is None:
                continue
            if type(rounds) is not int or rounds < 1:
                raise ValueError(f"{name} must be a number of rounds, at least 1, not {rounds!r}")


ONE_ROUND = FailureLimits()


class FailurePolicy:
    """Counts and logs unusable replies, and ends a run after too many rounds without a usable one.

    `FailureLimits` says how many are too many. A round without replies is not counted, because the
    network may recover. A round after which the server sends the whole model again is not counted
    either.
    """

    def __init__(
        self,
        traffic: Traffic,
        limits: FailureLimits = ONE_ROUND,
        state: FailurePolicyState | None = None,
    ) -> None:
        self._traffic, self._patience = traffic, limits.patience
        self._few = limits.few or limits.patience
        self._reasons: list[str] = []  # why the server left out replies of this round
        self._state = FailurePolicyState() if state is None else state

    def begin_round(self, asked: int) -> None:
        """Begin a round in which `asked` nodes get a message for training."""
        self._state.asked += asked
        self._reasons.clear()

    def leave_out(self, server_round: int, node: int, reason: str) -> None:
        """Count and log a reply that the server does not use; `reason`: why it does not."""
        self._traffic.failures += 1
        self._reasons.append(reason)
        log.warning("round %d: node %d left out: %s", server_round, node, in_one_line(reason))

    def end_round(self, server_round: int, used: int, replies: int) -> None:
        """Count a round's usable replies; raises `PayloadError` after too many rounds without one.

        `used`: how many replies were usable. `replies`: how many replies came.
        """
        self._traffic.client_updates += used
        heals = any(HEALS in reason for reason in self._reasons)
        of_use = used or heals
        state = self._state
        state.consecutive_failures = 0 if of_use else state.consecutive_failures + bool(replies)
        state.consecutive_failures_of_many = (
            0 if of_use else state.consecutive_failures_of_many + (replies >= MANY)
        )
        if (
            state.consecutive_failures >= self._few
            or state.consecutive_failures_of_many >= self._patience
        ):
            raise PayloadError(f"round {server_round}: {nobody_usable(self._reasons, replies)}")

    def end(self) -> None:
        """Raise `PayloadError` if the server asked for training and never used an update."""
        if self._state.asked and not self._traffic.client_updates:
            raise PayloadError("no node has answered: the model is as it was")


def nobody_usable(reasons: Iterable[str], replies: int) -> str:
    """Return a line about a round without usable replies: the most frequent reason, and a hint."""
    reason = Counter(reasons).most_common(1)[0][0]
    hint = next((hint for sign, hint in HINTS.items() if sign in reason), "")
    return f"not one of {replies} replies could be used: {reason}{hint and '; ' + hint}"
