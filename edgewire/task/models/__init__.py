"""Models, ready to train.

A model is one function `(channels, size, classes) -> Module` registered by name in a module of this
package. The stated numbers of parameters are those for 10 classes.
"""

from importlib import import_module
from pkgutil import iter_modules

from torch import nn

from edgewire.task.errors import TaskError
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


for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)  # it registers its models
