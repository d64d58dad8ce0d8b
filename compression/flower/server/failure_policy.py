"""What becomes of a run's replies: counted and named, and the run given up if for nothing."""

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
MANY = 3  # nodes; if not one of so many is of use it is not them
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
    """Messages that asked for training; rounds in a row of no use: all, and those of `MANY`."""

    asked: int = 0
    hopeless: int = 0
    hopeless_of_many: int = 0


class FailurePolicy:
    """What becomes of the nodes' replies: counted and named, and the run given up if for nothing.

    `patience`: so many rounds in a row with replies of which not one could be used; `few`: so many
    of which fewer than `MANY` nodes have replied, one of which may be the only bad one. A round in
    which nobody has answered is not among them (a link that is down comes back), nor one after
    which nodes get the model whole again.
    """

    def __init__(
        self,
        traffic: Traffic,
        patience: int,
        few: int | None = None,
        state: FailurePolicyState | None = None,
    ) -> None:
        if not isinstance(patience, int) or patience < 1:
            raise ValueError(f"patience must be a number of rounds, at least 1, not {patience!r}")
        self._traffic, self._patience, self._few = traffic, patience, few or patience
        self._reasons: list[str] = []  # why replies of this round were left out
        self._state = FailurePolicyState() if state is None else state

    def begin_round(self, asked: int) -> None:
        """Begin a round in which so many nodes were asked."""
        self._state.asked += asked
        self._reasons.clear()

    def leave_out(self, server_round: int, node: int, reason: str) -> None:
        """Count a node that is left out, and name it."""
        self._traffic.failures += 1
        self._reasons.append(reason)
        log.warning("round %d: node %d left out: %s", server_round, node, in_one_line(reason))

    def end_round(self, server_round: int, used: int, replies: int) -> None:
        """Count what was used. Raises `PayloadError` if for too long nothing was."""
        self._traffic.client_updates += used
        heals = any(HEALS in reason for reason in self._reasons)
        of_use = used or heals
        state = self._state
        state.hopeless = 0 if of_use else state.hopeless + bool(replies)
        state.hopeless_of_many = 0 if of_use else state.hopeless_of_many + (replies >= MANY)
        if state.hopeless >= self._few or state.hopeless_of_many >= self._patience:
            raise PayloadError(f"round {server_round}: {nobody_usable(self._reasons, replies)}")

    def end(self) -> None:
        """Raise `PayloadError` if nodes were asked, and not one update was ever used."""
        if self._state.asked and not self._traffic.client_updates:
            raise PayloadError("no node has answered: the model is as it was")


def nobody_usable(reasons: Iterable[str], replies: int) -> str:
    """Return one line on a round of which no reply could be used: why, and what to do."""
    reason = Counter(reasons).most_common(1)[0][0]
    hint = next((hint for sign, hint in HINTS.items() if sign in reason), "")
    return f"not one of {replies} replies could be used: {reason}{hint and '; ' + hint}"
