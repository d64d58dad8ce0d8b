"""Copies of the segments at the server, for evaluation, the final model, and new nodes."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from edgewire.compression.base import Vector
from edgewire.compression.flower.records import layout_of, to_vector
from edgewire.pipeline.cuts import Plan
from edgewire.pipeline.messages import STATE, pack_copy, unpack_copy
from edgewire.pipeline.server.options import Flow
from edgewire.pipeline.server.schedule import Task


@dataclass
class SnapshotsState:
    """The state of `Snapshots`; a point is a number of mini-batches after which it needs copies.

    By segment: `asked`: the last point for which the server has requested a copy. `delivered`: the
    number of points for which it has a copy. `full`: the number of full copies requested. `last`:
    the last full copy. By point: `weights`: each segment's vector. `natives`: native tensors by
    their names in the model.
    """

    asked: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    last: list[bytes] = field(default_factory=list)
    weights: dict[int, list[NDArray[np.float32] | None]] = field(default_factory=dict)
    natives: dict[int, dict[str, NDArray[Any]]] = field(default_factory=dict)

    def begin(self, copies: list[bytes]) -> None:
        """Begin a run with `copies`, a full copy of each segment in its initial state."""
        self.asked, self.delivered, self.full = ([0] * len(copies) for _ in range(3))
        self.last = copies


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
        self._state.asked[segment] = self._state.delivered[segment] * self._record_every
        self._state.full[segment] = 0

    def owed(self, segment: int, end: int) -> bool:
        """Return whether the server lacks a segment's copy that was due up to mini-batch `end`."""
        point = self._point(segment)
        return point is not None and point <= end

    def _point(self, segment: int) -> int | None:
        """Return after how many mini-batches a segment's next copy is due; None: no more copies."""
        before = self._state.delivered[segment] * self._record_every
        return None if before >= self._batches else min(before + self._record_every, self._batches)

    def take(self, task: Task, kind: str, payload: bytes) -> None:
        """Store the copy in a segment's reply; raises `PayloadError` for any other payload.

        `kind`: "weights" or "all", as `wanted` has returned it for the task.
        """
        part, form = self._parts[task.segment], self._plan.copies[task.segment]
        vectors, beside = unpack_copy(payload, form, whole=kind == "all")
        state = vectors[STATE]
        if kind == "all":
            self._state.last[task.segment] = payload
        while (point := self._point(task.segment)) is not None and point <= task.end:
            self._state.weights.setdefault(point, [None] * len(self._parts))[task.segment] = state
            natives = self._state.natives.setdefault(point, {})
            natives |= {name: beside[its] for its, name in part.natives.items()}
            self._state.delivered[task.segment] += 1

    def complete(self) -> tuple[int, Vector, dict[str, NDArray[Any]]] | None:
        """Join the oldest copies of all segments to a model; return it, and delete the copies.

        The result is (number of mini-batches, model, native tensors by name); the model is float32
        (n,). None if one of the segments' copies after this number of mini-batches is missing.
        """
        point = min(self._state.weights, default=0)
        states = [state for state in self._state.weights.get(point, ()) if state is not None]
        if len(states) < len(self._parts):
            return None
        model = np.empty(self._size, dtype=np.float32)
        for places, state in zip(self._places, states, strict=True):
            at = 0
            for place in places:
                size = place.stop - place.start
                model[place], at = state[at : at + size], at + size
        del self._state.weights[point]
        return point, model, self._state.natives.pop(point, {})
