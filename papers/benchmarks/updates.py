"""Trains models to get real updates for the benchmarks of payloads."""

from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from edgewire.compression.layout import Layout
from edgewire.conf.build import data_of
from edgewire.conf.load import compose_config, to_config
from edgewire.task.datasets import Data
from edgewire.task.flat_model import FlatModel
from edgewire.task.models import build_model
from edgewire.task.steps import batches
from edgewire.task.tensors import only

Vector = NDArray[np.float32]
# Side of the images in pixels, learning rate, batch size, steps before the delta, steps in it.
MODELS = {
    "lenet5": (28, 0.05, 64, 100, 100),
    "cnn": (28, 0.02, 64, 100, 100),
    "resnet18": (32, 0.05, 32, 40, 40),
}


class Updates(NamedTuple):
    """Two updates of a node: the gradient of one mini-batch, and the delta of some local steps."""

    layout: Layout  # parameters only
    gradient: Vector
    delta: Vector


def data_named(name: str, root: str | None, side: int) -> Data:
    """Return the data set `dataset=NAME` of a folder, with images of `side` x `side` pixels."""
    words = [f"dataset={name}", f"dataset.size={side}", *[f"dataset.root='{root}'"] * bool(root)]
    return data_of(to_config(compose_config(words)))


def train(model: str, dataset: str = "digits", root: str | None = None) -> Updates:
    """Train a model (SGD, momentum 0.9) and return two updates from the middle of the training.

    The updates are not from the first steps, whose change of the model is nearly Gaussian and less
    compressible than later changes. `dataset` and `root` are as in
    `data_named`. Images are resized to the size that the model needs.
    """
    side, lr, batch, before, steps = MODELS[model]
    data = data_named(dataset, root, side)
    most = (before + steps) * batch
    labels = only(data.train.targets)[:most]
    images = only(data.prepared(only(data.train.inputs)[:most]))
    flat = FlatModel(
        build_model(model, channels=images.shape[1], size=side, classes=data.classes, seed=0)
    )
    optimizer = torch.optim.SGD([flat.parameters], lr=lr, momentum=0.9)
    flat.module.train()
    generator = torch.Generator().manual_seed(0)

    def gradient(x: torch.Tensor, y: torch.Tensor) -> Vector:
        flat.zero_grad()
        torch.nn.functional.cross_entropy(flat.module(x), y).backward()  # type: ignore[no-untyped-call]
        assert flat.parameters.grad is not None
        return flat.parameters.grad.numpy()

    endless = chain.from_iterable(
        batches(images, labels, batch, generator, single=False) for _ in repeat(None)
    )
    start = flat.parameters.detach().clone()
    for step, (x, y) in enumerate(islice(endless, before + steps)):
        if step == before:
            start = flat.parameters.detach().clone()
        gradient(only(x), only(y))
        optimizer.step()
    delta = (flat.parameters.detach() - start).numpy()
    return Updates(_layout(flat), gradient(*map(only, next(endless))).copy(), delta)


def _layout(flat: FlatModel) -> Layout:
    """Return the names and shapes of the parameters, without BatchNorm's statistics."""
    shapes, names, left = [], [], flat.num_parameters
    for name, shape in zip(flat.names, flat.shapes, strict=True):
        if left > 0:
            names.append(name)
            shapes.append(shape)
            left -= int(np.prod(shape, dtype=np.int64))
    return Layout(tuple(names), tuple(shapes), ("float32",) * len(names))
