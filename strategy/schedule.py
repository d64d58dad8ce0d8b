"""The learning rate from round to round, by torch's own schedulers."""

from __future__ import annotations

from typing import Any

import torch
from hydra.utils import instantiate
from torch.optim.lr_scheduler import ReduceLROnPlateau


class Schedule:
    """The rate all nodes use in a round; kept at the server, since plateau needs the mean loss."""

    def __init__(self, node: Any, lr: float) -> None:
        self._optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
        self._optimizer.step()  # a scheduler wants an optimiser that has stepped
        self._scheduler = instantiate(node)(self._optimizer)

    @property
    def lr(self) -> float:
        """The learning rate of the coming round."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, loss: float | None) -> None:
        """Go on to the next round; `loss`: the last round's mean training loss, None if unknown."""
        if not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()
        elif loss is not None:
            self._scheduler.step(loss)
