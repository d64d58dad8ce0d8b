"""The lineage of a resumed run, by which a node returns to the server's checkpoint.

For Flower a resumed run is a new run, with a new run id. The new run starts from the checkpoint of
an earlier run. At that moment the nodes' states are newer than the checkpoint. So a node stores two
states: the current state, and its state at the newest checkpoint. In a resumed run the node returns
to its state at the checkpoint.

The lineage lists a run and the runs that it resumes. It is written at the end of a message's group
id, which Flower forwards to the node: "17 kept/KEY/RUN:DONE/RUN:DONE". RUN is a run id, and DONE is
the progress of that run's last checkpoint (rounds or updates). KEY is the id of the first run. A
node stores its state under KEY. The message's own run id is left out: "kept//:16". A node that
stores its states this way writes "keeps" at the end of its reply's group id.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

# As in `edgewire.compression.flower.records`, which a node does not import before it has an app.
VOLATILE, UNSTORED = "edgewire-volatile", "unstored"

_SAID = re.compile(r"(.*) kept/(\d{0,20})((?:/\d{0,20}:\d{1,20})*)", re.DOTALL)
_KEEPS = " keeps"
MOST = 100  # the most runs in a message; older runs are left out


class Checkpoint(NamedTuple):
    """A checkpoint: the id of the run that wrote it, and the progress at that moment."""

    run_id: int
    done: int


class RunLineage(NamedTuple):
    """The lineage of a run: the run, and the earlier runs that it resumes.

    `key`: the id of the first run; `run_id`: the id of the current run; `checkpoints`: each run's
    last checkpoint, the newest last.
    """

    key: int
    run_id: int
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def newest(self) -> Checkpoint | None:
        """The checkpoint from which a resumed run would start; None: no checkpoint exists yet."""
        return self.checkpoints[-1] if self.checkpoints else None

    def of(self, run_id: int) -> Checkpoint | None:
        """Return the last checkpoint of a run, from which the next run started; None: unknown."""
        return next((each for each in self.checkpoints if each.run_id == run_id), None)

    def at_checkpoint(self, done: int) -> RunLineage:
        """Return the lineage with a new checkpoint of the current run, whose progress is `done`."""
        before = [each for each in self.checkpoints if each.run_id != self.run_id]
        return self._replace(checkpoints=(*before[1 - MOST :], Checkpoint(self.run_id, done)))


class StateChoice(Enum):
    """Which of its stored states a node uses for a message.

    STAY: the current state. BACK: the node's state at the newest checkpoint. ANEW: an empty state.
    """

    STAY, BACK, ANEW = range(3)


def choice_of(lineage: RunLineage, run_id: int, past: Checkpoint | None) -> StateChoice:
    """Return which state a node uses for a message of the run with this lineage.

    `run_id`: the run of the node's current state; 0: the node has no state. `past`:
    the newest checkpoint at which the node has stored its state; None: no checkpoint.
    """
    if run_id in (0, lineage.run_id):
        return StateChoice.STAY
    left = lineage.of(run_id)
    if left is None:  # the lineage has no checkpoint of that run
        return StateChoice.BACK if past in lineage.checkpoints else StateChoice.ANEW
    if past is None or past.run_id != run_id or past.done < left.done:
        return StateChoice.STAY  # the node got no message after the checkpoint `left`
    return StateChoice.BACK if past == left else StateChoice.ANEW


def with_lineage(group: str, lineage: RunLineage) -> str:
    """Append a run's lineage (the runs that it resumes, and their checkpoints) to a group id."""
    key = "" if lineage.key == lineage.run_id else lineage.key
    text = [
        f"/{'' if run_id == lineage.run_id else run_id}:{done}"
        for run_id, done in lineage.checkpoints
    ]
    return f"{group} kept/{key}{''.join(text)}"


def lineage_of(group: str, run_id: int) -> RunLineage | None:
    """Read the run's lineage (`RunLineage`) from a message's group id; None if it has none.

    `run_id`: the run id of the message.
    """
    found = _SAID.fullmatch(group)
    if found is None:
        return None
    pairs = [each.split(":") for each in found[3].split("/")[1:]]
    checkpoints = [Checkpoint(int(other or run_id), int(done)) for other, done in pairs]
    return RunLineage(int(found[2] or run_id), run_id, tuple(checkpoints))


def reply_group_id(group: str) -> str:
    """Return the group id of a node's reply to a message with the group id `group`."""
    found = _SAID.fullmatch(group)
    return group if found is None else f"{found[1]}{_KEEPS}"


def stores_states(group: str) -> bool:
    """Return whether a reply's group id says that its node stores its states for a resumed run."""
    return group.endswith(_KEEPS)
