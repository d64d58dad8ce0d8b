"""Copies of the segments at the server, for evaluation, the final model, and new nodes."""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from edgewire.compression.base import Vector
from edgewire.compression.flower.native_tensors import Arrays
from edgewire.compression.flower.records import layout_of, to_vector
from edgewire.pipeline.cuts import Plan
from edgewire.pipeline.messages import STATE, pack_copy, unpack_copy
from edgewire.pipeline.server.schedule import Flow, Task


@dataclass
class SnapshotsState:
    """The state of `Snapshots`; a point is a number of mini-batches after which it needs copies.

    By segment: `asked`: the last point for which the server has requested a copy. `full`: the
    number of full copies requested. `last`: the last full copy. `copies`: the copies after the
    points that are not joined, each the segment's vector, and native tensors by their names in the
    model. `joined`: the number of points whose copies were joined to a model.
    """

    asked: list[int] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    last: list[bytes] = field(default_factory=list)
    copies: list[deque[tuple[NDArray[np.float32], Arrays]]] = field(default_factory=list)
    joined: int = 0

    def begin(self, last: list[bytes]) -> None:
        """Begin a run with `last`, a full copy of each segment in its initial state."""
        self.last, self.copies = last, [deque() for _ in last]
        self.asked, self.full = [0] * len(last), [0] * len(last)


class Snapshots:
    """Decides when a segment must send a copy, and joins the copies to models.

    Copies are needed after each multiple of `record_every` mini-batches, and after the last
    mini-batch. After multiples of `segment_every` (0: never) a copy is full. A full copy also holds
    the state that a node needs to continue the training. All copies of a point were made after the
    same mini-batch. So all segments of the joined model were trained on the same data.
    """

    def __init__(
        self,
        plan: Plan,
        model: ArrayRecord,
        batches: int,
        flow: Flow,
        state: SnapshotsState,
    ) -> None:
        parts, layout, vector = plan.parts, layout_of(model), to_vector(model)
        self._plan, self._parts, self._size = plan, parts, layout.size
        self._batches, self._record_every = batches, flow.record_every
        self._every = flow.segment_every
        ends = zip(layout.names, pairwise(layout.offsets.tolist()), strict=True)
        at = {name: slice(start, stop) for name, (start, stop) in ends}
        self._places = [[at[name] for name in part.names] for part in parts]  # in the model
        self._state = state
        if not state.last:
            own = [np.concatenate([vector[:0], *(vector[s] for s in row)]) for row in self._places]
            copies = zip(own, plan.beside, strict=True)
            state.begin([pack_copy({STATE: each}, more) for each, more in copies])

    def last(self, segment: int) -> bytes:
        """Return the full copy with which a new node of a segment begins."""
        return self._state.last[segment]

    def wanted(self, task: Task) -> str:
        """Return the copy that a task's reply must hold: "" (none), "weights" or "all"."""
        if not task.steps:
            return ""
        newest = task.end if task.end == self._batches else task.end - task.end % self._record_every
        due = newest > self._state.asked[task.segment]  # False if an earlier task asks for the copy
        self._state.asked[task.segment] = max(newest, self._state.asked[task.segment])
        full = task.end // self._every if self._every else 0
        if full > self._state.full[task.segment]:
            self._state.full[task.segment] = full
            return "all"
        return "weights" if due else ""

    def failed(self, segment: int) -> None:
        """Record that a segment's copy did not arrive, so that the next task asks for it again."""
        self._state.asked[segment] = self._delivered(segment)
        self._state.full[segment] = 0

    def owed(self, segment: int, end: int) -> bool:
        """Return whether the server lacks a segment's copy that was due up to mini-batch `end`."""
        before = self._delivered(segment)
        return before < self._batches and min(before + self._record_every, self._batches) <= end

    def _delivered(self, segment: int) -> int:
        """Return the mini-batches up to which the server has a segment's copies."""
        return (self._state.joined + len(self._state.copies[segment])) * self._record_every

    def take(self, task: Task, kind: str, payload: bytes) -> None:
        """Store the copy in a segment's reply; raises `PayloadError` for any other payload.

        `kind`: "weights" or "all", as `wanted` has returned it for the task.
        """
        part, form = self._parts[task.segment], self._plan.copies[task.segment]
        vectors, beside = unpack_copy(payload, form, whole=kind == "all")
        natives = {name: beside[its] for its, name in part.natives.items()}
        if kind == "all":
            self._state.last[task.segment] = payload
        while self.owed(task.segment, task.end):
            self._state.copies[task.segment].append((vectors[STATE], natives))

    def complete(self) -> tuple[int, Vector, Arrays] | None:
        """Join the oldest copies of all segments to a model; return it, and delete the copies.

        The result is (number of mini-batches, model, native tensors by name); the model is float32
        (n,). None if one of the segments' copies after this number of mini-batches is missing.
        """
        state = self._state
        if not all(state.copies):
            return None
        model, natives = np.empty(self._size, dtype=np.float32), Arrays()
        for places, copies in zip(self._places, state.copies, strict=True):
            vector, own = copies.popleft()
            natives |= own
            at = 0
            for place in places:
                size = place.stop - place.start
                model[place], at = vector[at : at + size], at + size
        state.joined += 1
        return min(state.joined * self._record_every, self._batches), model, natives
