"""A resumed run's lineage in its messages: nodes go back to the checkpoint with their server.

For Flower a resumed run is a new run. Its server starts from a checkpoint, so its nodes' states are
newer than its own. Each of these Flower runs is called a life of one course. A node keeps its
current state of the course and its state at the newest checkpoint; in a new life it goes back to
the latter.

The lineage is the end of a message's group id, which Flower passes on:
"17 kept/KEY/LIFE:DONE/LIFE:DONE". KEY is the number of the first life, under which nodes store the
state; then follows each life's last checkpoint, with what was done by then. The number of the
message's own life is left out: "kept//:16". A node that stores its state this way ends its reply's
group id with "keeps".
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_SAID = re.compile(r"(.*) kept/(\d{0,20})((?:/\d{0,20}:\d{1,20})*)", re.DOTALL)
_KEEPS = " keeps"
MOST = 100  # lives in a message: the newest ones


class Checkpoint(NamedTuple):
    """A checkpoint: the number of the life that wrote it, and how much was done by then."""

    life: int
    done: int


class RunLineage(NamedTuple):
    """A course's first life, its current life, and each life's last checkpoint, the newest last."""

    key: int
    life: int
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def newest(self) -> Checkpoint | None:
        """The checkpoint that a resumed run would start from; None: there is none yet."""
        return self.checkpoints[-1] if self.checkpoints else None

    def of(self, life: int) -> Checkpoint | None:
        """Return the last checkpoint of a life, where the course has left it; None: not known."""
        return next((each for each in self.checkpoints if each.life == life), None)

    def kept(self, done: int) -> RunLineage:
        """Return the lineage after a new checkpoint of the current life."""
        before = [each for each in self.checkpoints if each.life != self.life]
        return self._replace(checkpoints=(*before[1 - MOST :], Checkpoint(self.life, done)))


class Turn(Enum):
    """The state that a node uses for a message: the current, the checkpoint's, or an empty one."""

    STAY, BACK, ANEW = range(3)


def turn_of(lineage: RunLineage, life: int, past: Checkpoint | None) -> Turn:
    """Return which state a node uses, given the life of its current state (0: it has none).

    `past`: the newest checkpoint that the node has heard of; it has its state of that moment.
    """
    if life in (0, lineage.life):
        return Turn.STAY
    left = lineage.of(life)
    if left is None:  # the course keeps nothing of that life
        return Turn.BACK if past in lineage.checkpoints else Turn.ANEW
    if past is None or past.life != life or past.done < left.done:
        return Turn.STAY  # no message after the checkpoint `left` has reached the node
    return Turn.BACK if past == left else Turn.ANEW


def told(group: str, lineage: RunLineage) -> str:
    """Return a message's group id with this lineage at its end."""
    key = "" if lineage.key == lineage.life else lineage.key
    words = [
        f"/{'' if life == lineage.life else life}:{done}" for life, done in lineage.checkpoints
    ]
    return f"{group} kept/{key}{''.join(words)}"


def heard(group: str, life: int) -> RunLineage | None:
    """Return the lineage in the group id of a message of a life; None if it has none."""
    found = _SAID.fullmatch(group)
    if found is None:
        return None
    pairs = [each.split(":") for each in found[3].split("/")[1:]]
    checkpoints = [Checkpoint(int(other or life), int(done)) for other, done in pairs]
    return RunLineage(int(found[2] or life), life, tuple(checkpoints))


def keeping(group: str) -> str:
    """Return the group id of a node's reply to a message with this group id."""
    found = _SAID.fullmatch(group)
    return group if found is None else f"{found[1]}{_KEEPS}"


def keeps(group: str) -> bool:
    """Return whether a reply's group id says that its node stores its state by the lineage."""
    return group.endswith(_KEEPS)
