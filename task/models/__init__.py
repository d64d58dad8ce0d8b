"""Models, ready to train.

A model is one function `(channels, size, classes) -> Module` registered by name in a module of this
package. Parameter counts in its docstrings are those for 10 classes.
"""

import torch
from torch import nn

from task.models.parts import MODELS

__all__ = ["build_model", "model_names"]


def build_model(name: str, *, channels: int, size: int, classes: int, seed: int = 0) -> nn.Module:
    """A new model for images (channels, size, size), on the CPU.

    Its weights follow from `seed` alone; torch's global random state is left as it was.

    Raises:
        TaskError: unknown name, or images too small for the model.
    """
    make = MODELS.get(name)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that one reseeds the GPUs too, for good.
        torch.default_generator.manual_seed(seed)
        return make(channels, size, classes)


def model_names() -> list[str]:
    """Names `build_model` knows, sorted."""
    return MODELS.names()
