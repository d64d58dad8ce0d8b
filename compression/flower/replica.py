"""A replica of the server's model, which takes the same steps as the server's own model."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from ..base import Indices, PayloadError, Vector
from ..batchnorm import trained_entries
from ..coders.shared_context import Activity, SharedContext, record
from ..decoder import decode_update
from ..layout import Layout
from ..scatter import find
from .records import layout_of, to_vector

INITIAL_VERSION = 0  # the version of the model before training
MODEL, VERSION, ACTIVITY = "model", "version", "activity"


class Optimizer(Protocol):
    """The server's optimiser; nodes that repeat the server's steps have the same one."""

    names: tuple[str, ...]  # names of the arrays in the optimiser's state, each float32 (n,)
    sends_momentum: bool  # True: nodes send something else than their gradients (`uplink`)

    def state(self, size: int) -> dict[str, Vector]:
        """Return the optimiser's arrays before the first step, for a model of `size` parameters."""

    def uplink(self, gradient: Vector, state: dict[str, Vector], number: int) -> Vector:
        """Return what a node sends for its gradient, (n,); `number`: the server's next step."""

    def step(
        self,
        x: Vector,
        state: dict[str, Vector],
        at: Indices | slice,
        gradient: Vector,
        lr: float,
        number: int,
    ) -> None:
        """Take one step: change (n,) `x` and `state` in place.

        `gradient`: (k,), the gradient's entries at the positions `at`. `number`: the step's number.
        """


class Replica:
    """A flat model, the optimiser's state, and the number of steps taken (the version).

    All data is in `arrays`: "model" float32 (n,), "version" int64 (1,), and the arrays of the
    optimiser's state. If index sets are coded by context, "activity" uint8 (n,) is among them
    (`shared_context.py`). Two replicas with the same arrays share all data. The first `trained`
    entries of the model are parameters. The other entries are BatchNorm's running statistics; an
    update holds their new values, not gradients.
    """

    def __init__(self, optimizer: Optimizer, trained: int, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self.model: Vector = arrays[MODEL]
        self._optimizer, self.trained = optimizer, trained
        self._version = arrays[VERSION]
        self._parameters = self.model[:trained]
        self._context: SharedContext | None = None

    @classmethod
    def start(
        cls, optimizer: Optimizer, trained: int, model: Vector, *, contextual: bool = False
    ) -> Replica:
        """Return a replica at version 0; it uses the array `model` without a copy."""
        arrays: dict[str, NDArray[Any]] = {MODEL: model, VERSION: np.zeros(1, np.int64)}
        if contextual:
            arrays[ACTIVITY] = np.zeros(len(model), np.uint8)
        return cls(optimizer, trained, {**arrays, **optimizer.state(trained)})

    @classmethod
    def of(
        cls,
        optimizer: Optimizer,
        arrays: ArrayRecord,
        kept: dict[str, NDArray[Any]],
        *,
        contextual: bool = False,
    ) -> tuple[Replica, Layout]:
        """Return a replica that uses the arrays `kept`, and the layout of the model in `arrays`.

        If `kept` is empty, the replica is a copy of `arrays` with version 0, and its arrays are put
        into `kept`. Raises `ValueError` if `kept` belongs to another model or optimiser, or if a
        parameter comes after the model's running statistics.
        """
        layout = layout_of(arrays)
        trained = trained_entries(layout)
        names = {MODEL, VERSION, *optimizer.names, *([ACTIVITY] if contextual else [])}
        if kept and (set(kept) != names or kept[MODEL].size != layout.size):
            sizes = f"{kept[MODEL].size} entries, not {layout.size}"
            raise ValueError(f"the state is of another model or optimizer: {sizes}")
        if not kept:
            model = to_vector(arrays).copy()
            kept |= cls.start(optimizer, trained, model, contextual=contextual).arrays
        return cls(optimizer, trained, kept), layout

    @property
    def version(self) -> int:
        """The number of the server's steps that this replica includes."""
        return int(self._version[0])

    @property
    def context(self) -> SharedContext | None:
        """The context of index sets at this version; `apply` ends it. None without an activity."""
        if self._context is None and ACTIVITY in self.arrays:
            self._context = SharedContext(self.arrays[ACTIVITY])
        return self._context

    def uplink(self, gradient: Vector) -> Vector:
        """Return what a node sends for its gradient, (n,), whose statistics do not change."""
        part = gradient[: self.trained]
        sent = self._optimizer.uplink(part, self.arrays, self.version + 1)
        return gradient if sent is part else np.concatenate([sent, gradient[self.trained :]])

    def apply(self, indices: Indices | None, values: Vector, lr: float) -> None:
        """Take one step with an averaged update, at the learning rate `lr`.

        `values`: (k,), the entries at the strictly increasing `indices`; (n,) without indices.
        """
        at: Indices | slice = slice(None)
        rest: Indices | slice = slice(self.trained, None)
        cut = self.trained
        if indices is not None:
            cut = find(indices, [self.trained])[0]
            at, rest = indices[:cut], indices[cut:]
        self._version += 1
        number = self.version
        self._optimizer.step(self._parameters, self.arrays, at, values[:cut], lr, number)
        if cut < len(values):
            self.model[rest] = values[cut:]
        if ACTIVITY in self.arrays:
            self._context = None
            record(self.arrays[ACTIVITY], indices)


def vector_layout(name: str, size: int) -> Layout:
    """Return the layout of the payload in which a snapshot holds the array `name`, (size,)."""
    return Layout((name,), ((size,),), ("float32",))


def activity_of(payload: bytes, size: int) -> Activity:
    """Return the activity in a snapshot's payload; raises `PayloadError` for other values."""
    values = decode_update(payload, vector_layout(ACTIVITY, size)).dense()
    activity: Activity = values.clip(0, 255).astype(np.uint8)
    if not np.array_equal(activity, values):
        raise PayloadError("the snapshot's activity holds other values than 0 to 255")
    return activity
