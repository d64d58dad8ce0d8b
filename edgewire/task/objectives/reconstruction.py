"""Reconstruction: a model gives its own input back, as an autoencoder does."""

from torch import Tensor, nn
from torch.nn.functional import mse_loss

from edgewire.task.errors import TaskError
from edgewire.task.objectives.base import Objective
from edgewire.task.objectives.regression import alike
from edgewire.task.tensors import Tensors


class Reconstruction(Objective):
    """Squared error between the model's output and its input; targets are not used."""

    least = 0.0
    needs_inputs = True

    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean squared error."""
        return mse_loss(*alike(model(inputs), _input(inputs)))

    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return the sum over samples of each sample's mean squared error."""
        values, truth = alike(model(inputs), _input(inputs))
        return {"loss": (values - truth).double().flatten(1).square().mean(1).sum()}


def _input(inputs: Tensors) -> Tensor:
    if not isinstance(inputs, Tensor):
        raise TaskError("objective=reconstruction takes data with one tensor of inputs")
    return inputs
