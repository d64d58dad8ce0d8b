"""What a message says to nodes of ours of a run that is resumed: how they go back with its server.

A run that is resumed is another one to Flower, and its server begins with a checkpoint, behind its
nodes. Each of these runs is a life of one course. A node keeps its state of the course, and beside
it the state in which the newest checkpoint found it; in another life it goes back to that.

A message says it at the end of its group, which Flower hands on: "17 kept/KEY/LIFE:DONE/LIFE:DONE".
KEY is the first life, by whose number the state is kept, then for each life its last checkpoint, by
what was done then. The message's own life is left out where it would stand: "kept//:16". A node
that keeps its state so says "keeps" at the end of its reply's group.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_SAID = re.compile(r"(.*) kept/(\d{0,20})((?:/\d{0,20}:\d{1,20})*)", re.DOTALL)
_KEEPS = " keeps"
MOST = 100  # lives of which a message speaks: the newest


class Checkpoint(NamedTuple):
    """One that was written in the life (its number), when so much was done."""

    life: int
    done: int


class RunLineage(NamedTuple):
    """A course's first life, the one at hand, and each life's last checkpoint, the newest last."""

    key: int
    life: int
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def newest(self) -> Checkpoint | None:
        """The checkpoint from which the course would go on; None: there is none yet."""
        return self.checkpoints[-1] if self.checkpoints else None

    def of(self, life: int) -> Checkpoint | None:
        """Return the checkpoint at which the course left a life; None: it is not known of it."""
        return next((each for each in self.checkpoints if each.life == life), None)

    def kept(self, done: int) -> RunLineage:
        """Return what it is once a checkpoint of the life at hand is written."""
        before = [each for each in self.checkpoints if each.life != self.life]
        return self._replace(checkpoints=(*before[1 - MOST :], Checkpoint(self.life, done)))


class Turn(Enum):
    """What a node's state is to be for a message: as it is, as of the checkpoint, an empty one."""

    STAY, BACK, ANEW = range(3)


def turn_of(lives: RunLineage, life: int, past: Checkpoint | None) -> Turn:
    """Return what becomes of a node's state, which it came to in a life (0: it has none).

    `past`: the newest checkpoint of which it had heard; it has the state of that moment, too.
    """
    if life in (0, lives.life):
        return Turn.STAY
    left = lives.of(life)
    if left is None:  # all that came in that life is gone
        return Turn.BACK if past in lives.checkpoints else Turn.ANEW
    if past is None or past.life != life or past.done < left.done:
        return Turn.STAY  # it has heard nothing more after that checkpoint
    return Turn.BACK if past == left else Turn.ANEW


def told(group: str, lives: RunLineage) -> str:
    """Return a message's group that says these lives."""
    key = "" if lives.key == lives.life else lives.key
    words = [f"/{'' if life == lives.life else life}:{done}" for life, done in lives.checkpoints]
    return f"{group} kept/{key}{''.join(words)}"


def heard(group: str, life: int) -> RunLineage | None:
    """Return what a message's group says in a life; None: nothing."""
    found = _SAID.fullmatch(group)
    if found is None:
        return None
    pairs = [each.split(":") for each in found[3].split("/")[1:]]
    checkpoints = [Checkpoint(int(other or life), int(done)) for other, done in pairs]
    return RunLineage(int(found[2] or life), life, tuple(checkpoints))


def keeping(group: str) -> str:
    """Return the group of a node's reply, by that of the message: that it keeps what was said."""
    found = _SAID.fullmatch(group)
    return group if found is None else f"{found[1]}{_KEEPS}"


def keeps(group: str) -> bool:
    """Return whether a reply's group says that its node keeps its state by what it was told."""
    return group.endswith(_KEEPS)
