"""Reconstruction: a model gives its own input back, as an autoencoder does."""

from torch import Tensor, nn
from torch.nn.functional import mse_loss

from edgewire.task.objectives.base import Objective
from edgewire.task.objectives.regression import alike
from edgewire.task.tensors import Tensors, only


class Reconstruction(Objective):
    """Squared error between the model's output and its input; targets are not used."""

    least = 0.0
    needs_inputs = True

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean squared error."""
        return mse_loss(*self.pair(model, inputs))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the sum over samples of each sample's mean squared error."""
        return {"loss": self.errors(model, inputs).sum()}

    def errors(self, model: nn.Module, inputs: Tensors) -> Tensor:
        """Return each sample's mean squared error, float64 (B,)."""
        values, truth = self.pair(model, inputs)
        return (values - truth).double().flatten(1).square().mean(1)

    def pair(self, model: nn.Module, inputs: Tensors) -> tuple[Tensor, Tensor]:
        """Return the model's output and its input. Raises `TaskError` for several inputs."""
        return alike(model(inputs), only(inputs))
