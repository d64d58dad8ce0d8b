"""Models, ready to train.

A model is one function `(channels, size, classes) -> Module` registered by name in a module of this
package. Parameter counts in its docstrings are those for 10 classes.
"""

import torch
from torch import nn

from edgewire.task.models.parts import MODELS

__all__ = ["build_model"]


def build_model(name: str, *, channels: int, size: int, classes: int, seed: int = 0) -> nn.Module:
    """Return a new model for images (channels, size, size), on the CPU.

    Its weights depend on `seed` alone. torch's global random state does not change.

    Raises:
        TaskError: unknown name, or images too small for the model.
    """
    make = MODELS.get(name)
    with torch.random.fork_rng(devices=[]):
        # Not `torch.manual_seed`, which also reseeds the GPUs, and `fork_rng` does not undo that.
        torch.default_generator.manual_seed(seed)
        return make(channels, size, classes)
