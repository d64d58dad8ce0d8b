"""Models, ready to train.

A model is one function `(channels, size, classes) -> Module` registered by name in a module that is
imported here. The stated numbers of parameters are those for 10 classes.
"""

from torch import nn

from edgewire.task.errors import TaskError
from edgewire.task.models import published, small  # noqa: F401  # they register models
from edgewire.task.models.parts import MODELS
from edgewire.task.rng import CPU, IsolatedRng

__all__ = ["build_model"]


def build_model(name: str, *, channels: int, size: int, classes: int, seed: int = 0) -> nn.Module:
    """Return a new model for images (channels, size, size), on the CPU.

    Its weights depend on `seed` alone. torch's global random state does not change.

    Raises:
        TaskError: unknown name, or images too small for the model.
    """
    if name not in MODELS:
        raise TaskError(f"no model named {name}: choose one of {', '.join(sorted(MODELS))}")
    with IsolatedRng(CPU, seed):
        return MODELS[name](channels, size, classes)
