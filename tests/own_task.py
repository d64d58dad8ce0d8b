"""Modules of a user's own, with data, models and objectives, in a folder of Python's path."""

import sys
import textwrap
from contextlib import contextmanager

import pytest

START = """
    import torch
    from torch import nn
    from edgewire.task.datasets import Data, Split
    from edgewire.task.objectives import Metric, Objective
    from edgewire.task.transforms import ImageTransform


    def data(inputs, targets=(), tests=40, **options):
        whole = Split(inputs, targets)
        cut = len(whole) - tests
        train, test = torch.arange(cut), torch.arange(cut, len(whole))
        return Data(whole.taken(train), whole.taken(test), **options)


    def noise(*shape):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


    def windows(length: int = 32):
        labels = (noise(240) > 0).long()
        return data(noise(240, 3, length) + labels[:, None, None], labels, classes=2)


    def scenes(side: int = 8):
        x = (noise(240, 1, side, side) * 40 + 128).clamp(0, 255).to(torch.uint8)
        return data(x, (x[:, 0] > 128).long(), transform=ImageTransform((0.5,), (0.25,)))


    def conv():
        return nn.Sequential(
            nn.Conv1d(3, 8, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
"""


@contextmanager
def own_module(folder, name, text):
    """Put a module of `START` and a text into a folder from which Python imports here."""
    (folder / f"{name}.py").write_text(textwrap.dedent(START + text))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop(name, None)
