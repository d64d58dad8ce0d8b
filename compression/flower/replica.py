"""One copy of the model that is being trained: at the server, and at each node that follows it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from ..layout import Layout
from ..stages import Indices, Vector
from ..statistics import trained_entries
from .arrays import layout_of, to_vector

MODEL, VERSION = "model", "version"


class Optimizer(Protocol):
    """A rule for the server's step, which nodes that follow take as well."""

    names: tuple[str, ...]  # of the arrays it remembers, each float32 (n,)

    def state(self, size: int) -> dict[str, Vector]:
        """Return the arrays as they are before the first step."""

    def step(
        self,
        x: Vector,
        state: dict[str, Vector],
        at: Indices | slice,
        gradient: Vector,
        lr: float,
        number: int,
    ) -> None:
        """Change (n,) `x` and `state` in place; `gradient` (k,) holds the entries `at`."""


class Replica:
    """A flat model, the optimiser's memory, and how many steps made it what it is (its version).

    All of it lies in `arrays`: "model" float32 (n,), "version" int64 (1,), and the optimiser's own.
    Whoever shares the arrays shares the replica. The first `trained` entries are parameters, the
    rest BatchNorm's running statistics, for which an update holds values and no gradient.
    """

    def __init__(self, optimizer: Optimizer, trained: int, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self.model: Vector = arrays[MODEL]
        self._optimizer, self.trained = optimizer, trained
        self._version = arrays[VERSION]
        self._parameters = self.model[:trained]

    @classmethod
    def start(cls, optimizer: Optimizer, trained: int, model: Vector) -> Replica:
        """Return a replica of version 0 whose model is `model` itself."""
        arrays: dict[str, NDArray[Any]] = {MODEL: model, VERSION: np.zeros(1, np.int64)}
        return cls(optimizer, trained, {**arrays, **optimizer.state(trained)})

    @classmethod
    def of(
        cls, optimizer: Optimizer, arrays: ArrayRecord, kept: dict[str, NDArray[Any]]
    ) -> tuple[Replica, Layout]:
        """Return the replica that shares the arrays `kept`, and the layout of the named arrays.

        Where nothing is kept yet it is version 0, a copy of these, and is then kept. Raises
        `ValueError` if running statistics do not come after all parameters.
        """
        layout = layout_of(arrays)
        trained = trained_entries(layout)
        if not kept:
            kept |= cls.start(optimizer, trained, to_vector(arrays).copy()).arrays
        return cls(optimizer, trained, kept), layout

    @property
    def version(self) -> int:
        """How many updates were applied."""
        return int(self._version[0])

    def apply(self, indices: Indices | None, values: Vector, lr: float) -> None:
        """Take the server's step with an averaged update: `values` (k,) at strictly increasing
        `indices`, or (n,) for None.
        """
        at: Indices | slice = slice(None)
        rest: Indices | slice = slice(self.trained, None)
        cut = self.trained
        if indices is not None:
            cut = int(np.searchsorted(indices, self.trained))
            at, rest = indices[:cut], indices[cut:]
        self._version += 1
        number = self.version
        self._optimizer.step(self._parameters, self.arrays, at, values[:cut], lr, number)
        if cut < len(values):
            self.model[rest] = values[cut:]
