"""What an objective is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from task.tensors import Tensors


class Metric(NamedTuple):
    """A metric of an evaluation.

    `name`: its name in results. `higher`: whether a higher value is better. `share`: whether it is
    a share from 0 to 1, which tables show in percent.
    """

    name: str
    higher: bool = False
    share: bool = False


LOSS = Metric("loss")


class Objective(ABC):
    """The loss that training minimises, and the metrics of an evaluation.

    `metrics`: the metrics beside the loss. The first one is the run's main metric; without metrics
    it is the loss. `least`: the least value that the loss can have; a server refuses smaller ones.
    `needs_inputs`: whether `loss` reads the inputs itself, and not only by a call of the model. A
    model that is cut over several nodes then sends them to the last node.
    """

    metrics: ClassVar[tuple[Metric, ...]] = ()
    least: ClassVar[float] = -math.inf
    needs_inputs: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values of an evaluation: the loss, then the metrics."""
        return (LOSS.name, *(metric.name for metric in self.metrics))

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The least and the largest value of the loss, and of each metric that is a share."""
        shares = {metric.name: (0.0, 1.0) for metric in self.metrics if metric.share}
        return {LOSS.name: (self.least, math.inf), **shares}

    @property
    def main(self) -> Metric:
        """The metric by which results are compared."""
        return self.metrics[0] if self.metrics else LOSS

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean loss of a mini-batch, a scalar of any sign with a gradient."""

    @abstractmethod
    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return sums over a batch, scalars by name; gradients are off. One of them is `loss`."""

    def measured(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Return the loss and the metrics from the sums over all batches, of `samples` samples.

        Here each is its sum divided by the number of samples.
        """
        return {name: total / samples for name, total in sums.items()}
