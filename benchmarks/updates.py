"""Updates as training makes them: what the payloads are measured on."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from compression import Layout
from task.datasets import load_data
from task.flat import FlatModel
from task.models import build_model
from task.steps import batches, prepare

Vector = NDArray[np.float32]
# Model, images' side in pixels, learning rate, batch, images of the local epoch.
MODELS = {
    "lenet5": (28, 0.05, 32, 6000),
    "cnn": (28, 0.02, 32, 6000),
    "resnet18": (32, 0.05, 32, 1280),
}


class Updates(NamedTuple):
    """What one node would send: one mini-batch's gradient, or what a local epoch changed."""

    layout: Layout  # parameters only
    gradient: Vector
    delta: Vector


def train(model: str, dataset: str = "digits", root: str | None = None) -> Updates:
    """Train a model for a local epoch (SGD, momentum 0.9), then take one more gradient.

    `dataset` and `root` as in `task.datasets.load_data`; images are resized to suit the model.
    """
    torch.manual_seed(0)
    side, lr, batch, most = MODELS[model]
    data = load_data(dataset, root=root, size=side)
    images, labels = data.train.images[:most], data.train.labels[:most]
    images = prepare(images, data.mean, data.std)
    flat = FlatModel(
        build_model(model, channels=images.shape[1], size=side, classes=data.classes, seed=0)
    )
    optimizer = torch.optim.SGD([flat.parameters], lr=lr, momentum=0.9)
    flat.module.train()
    start = flat.parameters.detach().clone()
    generator = torch.Generator().manual_seed(0)

    def gradient(x: torch.Tensor, y: torch.Tensor) -> Vector:
        flat.zero_grad()
        torch.nn.functional.cross_entropy(flat.module(x), y).backward()  # type: ignore[no-untyped-call]
        assert flat.parameters.grad is not None
        return flat.parameters.grad.numpy()

    for x, y in batches(images, labels, batch, generator, single=False):
        gradient(x, y)
        optimizer.step()
    delta = (flat.parameters.detach() - start).numpy()
    last = gradient(*next(iter(batches(images, labels, 64, generator)))).copy()
    return Updates(_layout(flat), last, delta)


def _layout(flat: FlatModel) -> Layout:
    """Return the layout of the parameters alone: statistics are no gradients."""
    shapes, names, left = [], [], flat.num_parameters
    for name, shape in zip(flat.names, flat.shapes, strict=True):
        if left > 0:
            names.append(name)
            shapes.append(shape)
            left -= int(np.prod(shape, dtype=np.int64))
    return Layout(tuple(names), tuple(shapes), ("float32",) * len(names))
