"""Updates as training makes them: what the payloads are measured on."""

from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from compression import Layout
from task.datasets import load_data
from task.flat_model import FlatModel
from task.models import build_model
from task.steps import batches, prepare

Vector = NDArray[np.float32]
# Images' side in pixels, learning rate, batch, steps before the delta, steps of the delta.
MODELS = {
    "lenet5": (28, 0.05, 64, 100, 100),
    "cnn": (28, 0.02, 64, 100, 100),
    "resnet18": (32, 0.05, 32, 40, 40),
}


class Updates(NamedTuple):
    """What one node would send: one mini-batch's gradient, or what some local steps changed."""

    layout: Layout  # parameters only
    gradient: Vector
    delta: Vector


def train(model: str, dataset: str = "digits", root: str | None = None) -> Updates:
    """Train a model (SGD, momentum 0.9) and take an update from the midst of it.

    The first steps are a start that no node makes by itself: their delta is nearly Gaussian, and
    less compressible than later ones. `dataset` and `root` as in `task.datasets.load_data`; images
    are resized to suit the model.
    """
    side, lr, batch, before, steps = MODELS[model]
    data = load_data(dataset, root=root, size=side)
    most = (before + steps) * batch
    labels = data.train.labels[:most]
    images = prepare(data.train.images[:most], data.mean, data.std)
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
        gradient(x, y)
        optimizer.step()
    delta = (flat.parameters.detach() - start).numpy()
    return Updates(_layout(flat), gradient(*next(endless)).copy(), delta)


def _layout(flat: FlatModel) -> Layout:
    """Return the layout of the parameters alone: statistics are no gradients."""
    shapes, names, left = [], [], flat.num_parameters
    for name, shape in zip(flat.names, flat.shapes, strict=True):
        if left > 0:
            names.append(name)
            shapes.append(shape)
            left -= int(np.prod(shape, dtype=np.int64))
    return Layout(tuple(names), tuple(shapes), ("float32",) * len(names))
