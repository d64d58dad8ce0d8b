"""FedProx: a proximal term holds a node's model near the model that it received."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from edgewire.task.local.base import LocalAlgorithm, LocalRun

START = "start"


class FedProx(LocalAlgorithm):
    """Adds mu / 2 |x - start|^2 to the loss (Li et al. 2020, equation 2).

    `start` is the received model. `mu`: the weight; null: the strategy's `proximal_mu`. Raises
    `ValueError` for a `mu` below 0.
    """

    uses_proximal_mu: ClassVar[bool] = True

    def __init__(self, mu: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        if mu is not None and not 0 <= mu < math.inf:
            raise ValueError(f"mu must be a number of at least 0, not {mu:g}")
        self.mu = mu

    def check_strategy(self, options: Mapping[str, Any]) -> None:
        """Raise `ValueError` if both or neither of this and the strategy give a weight."""
        super().check_strategy(options)
        if self.mu is None and "proximal_mu" not in options:
            raise ValueError("local=fedprox needs local.mu=0.01, or a strategy with proximal_mu")
        if self.mu is not None and options.get("proximal_mu"):
            raise ValueError("give local.mu= or strategy.proximal_mu=, not both")

    def begin(self, run: LocalRun) -> None:
        """Copy the received model, without personal parameters: nobody else has a part in them."""
        if self._mu(run):
            shared = run.flat.parameters[run.flat.num_personal :]
            run.temporary[START] = shared.detach().clone()

    def correct(self, run: LocalRun) -> None:
        """Add the gradient of the proximal term, mu (x - start)."""
        if mu := self._mu(run):
            shared = slice(run.flat.num_personal, None)
            moved = run.flat.parameters[shared] - run.temporary[START]
            run.gradient[shared].add_(moved, alpha=mu)

    def _mu(self, run: LocalRun) -> float:
        return run.proximal_mu if self.mu is None else self.mu
