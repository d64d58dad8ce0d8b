"""One copy of the model that is being trained: at the server, and at each node that follows it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from task.optimizers import Indices, ServerOptimizer, Vector

MODEL, VERSION = "model", "version"


class Replica:
    """A flat model, the optimiser's memory, and how many steps made it what it is (its version).

    All of it lies in `arrays`: "model" float32 (n,), "version" int64 (1,), and the optimiser's own.
    Whoever shares the arrays shares the replica. The first `trained` entries are parameters, the
    rest BatchNorm's running statistics, for which an update holds values and no gradient.
    """

    def __init__(
        self, optimizer: ServerOptimizer, trained: int, arrays: dict[str, NDArray[Any]]
    ) -> None:
        self.arrays = arrays
        self.model: Vector = arrays[MODEL]
        self._optimizer, self._trained = optimizer, trained
        self._version = arrays[VERSION]
        self._parameters = self.model[:trained]

    @classmethod
    def start(cls, optimizer: ServerOptimizer, trained: int, model: Vector) -> Replica:
        """Return a replica of version 0 whose model is `model` itself."""
        arrays: dict[str, NDArray[Any]] = {MODEL: model, VERSION: np.zeros(1, np.int64)}
        return cls(optimizer, trained, {**arrays, **optimizer.state(trained)})

    @property
    def version(self) -> int:
        """How many updates were applied."""
        return int(self._version[0])

    def apply(self, indices: Indices | None, values: Vector, lr: float) -> None:
        """Take the server's step with an averaged update: `values` (k,) at strictly increasing
        `indices`, or (n,) for None.
        """
        at: Indices | slice = slice(None)
        rest: Indices | slice = slice(self._trained, None)
        cut = self._trained
        if indices is not None:
            cut = int(np.searchsorted(indices, self._trained))
            at, rest = indices[:cut], indices[cut:]
        self._version += 1
        number = self.version
        self._optimizer.step(self._parameters, self.arrays, at, values[:cut], lr, number)
        if cut < len(values):
            self.model[rest] = values[cut:]
