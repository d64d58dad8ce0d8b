"""The lineage of a resumed run, by which a node returns to the server's checkpoint.

For Flower a resumed run is a new run, with a new run id. Here each of these Flower runs is called a
life, and all lives together are called the course. A new life starts from the checkpoint of an
earlier life. At that moment the nodes' states are newer than the checkpoint. So a node stores two
states of the course: the current state, and its state at the newest checkpoint. In a new life the
node returns to its state at the checkpoint.

The lineage is written at the end of a message's group id, which Flower forwards to the node:
"17 kept/KEY/LIFE:DONE/LIFE:DONE". LIFE is the run id of a life, and DONE is the progress of its
last checkpoint (rounds or updates). KEY is the run id of the first life. A node stores its state
under KEY. The message's own run id is left out: "kept//:16". A node that stores its states this way
writes "keeps" at the end of its reply's group id.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_SAID = re.compile(r"(.*) kept/(\d{0,20})((?:/\d{0,20}:\d{1,20})*)", re.DOTALL)
_KEEPS = " keeps"
MOST = 100  # the most lives in a message; older ones are left out


class Checkpoint(NamedTuple):
    """A checkpoint: the run id of the life that wrote it, and the progress at that moment."""

    life: int
    done: int


class RunLineage(NamedTuple):
    """The lineage of a course.

    `key`: the run id of the first life; `life`: of the current life; `checkpoints`: each life's
    last checkpoint, the newest last.
    """

    key: int
    life: int
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def newest(self) -> Checkpoint | None:
        """The checkpoint from which a new life would start; None: no checkpoint exists yet."""
        return self.checkpoints[-1] if self.checkpoints else None

    def of(self, life: int) -> Checkpoint | None:
        """Return the last checkpoint of a life, where the next life started; None: not known."""
        return next((each for each in self.checkpoints if each.life == life), None)

    def kept(self, done: int) -> RunLineage:
        """Return the lineage after a new checkpoint of the current life, with progress `done`."""
        before = [each for each in self.checkpoints if each.life != self.life]
        return self._replace(checkpoints=(*before[1 - MOST :], Checkpoint(self.life, done)))


class Turn(Enum):
    """Which state a node uses for a message.

    STAY: the current state; BACK: the state at the newest checkpoint; ANEW: an empty state.
    """

    STAY, BACK, ANEW = range(3)


def turn_of(lineage: RunLineage, life: int, past: Checkpoint | None) -> Turn:
    """Return which state a node uses for a message with this lineage.

    `life`: the run id of the life of the node's current state; 0: the node has no state. `past`:
    the newest checkpoint at which the node has stored its state; None: no checkpoint.
    """
    if life in (0, lineage.life):
        return Turn.STAY
    left = lineage.of(life)
    if left is None:  # the lineage has no checkpoint of that life
        return Turn.BACK if past in lineage.checkpoints else Turn.ANEW
    if past is None or past.life != life or past.done < left.done:
        return Turn.STAY  # the node got no message after the checkpoint `left`
    return Turn.BACK if past == left else Turn.ANEW


def told(group: str, lineage: RunLineage) -> str:
    """Return a message's group id with the lineage at its end."""
    key = "" if lineage.key == lineage.life else lineage.key
    words = [
        f"/{'' if life == lineage.life else life}:{done}" for life, done in lineage.checkpoints
    ]
    return f"{group} kept/{key}{''.join(words)}"


def heard(group: str, life: int) -> RunLineage | None:
    """Return the lineage in a message's group id; None if the group id has none.

    `life`: the run id of the message.
    """
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
    """Return whether a reply's group id says that its node stores its states by the lineage."""
    return group.endswith(_KEEPS)
