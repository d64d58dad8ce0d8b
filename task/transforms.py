"""Transforms of samples into a model's input, on the device that trains."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from task.errors import TaskError
from task.tensors import Tensors


def unchanged(inputs: Tensors) -> Tensors:
    """Return the inputs themselves: the transform of data that are a model's input already."""
    return inputs


@dataclass(frozen=True)
class ImageTransform:
    """Normalises images: uint8 (N, C, H, W) -> float32 (N, C, H, W), (x / 255 - mean) / std.

    `mean` and `std` have one value per channel, for images scaled to 0..1. If both are empty, each
    image is normalised by the mean and standard deviation of its own n = C H W entries. The
    standard deviation then counts as at least 1 / sqrt(n), so that a uniform image becomes zero
    (tf.image.per_image_standardization, AdaComp's input). One pass converts, scales and shifts a
    channel. A call raises `TaskError` for images that are not uint8, or if there are not as many
    means as channels.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __call__(self, images: Tensors) -> Tensor:
        """Return the normalised images, on the device of `images`."""
        if not isinstance(images, Tensor) or images.dtype != torch.uint8:
            found = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise TaskError(f"images are {found}, and uint8 from 0 to 255 is taken")
        if self.mean and images.shape[1] != len(self.mean):
            raise TaskError(
                f"there are {len(self.mean)} means for images of {images.shape[1]} channels"
            )
        if not self.mean:
            return _by_themselves(images)
        scales, shifts = _affine(self.mean, self.std, images.device)
        out = torch.empty(images.shape, dtype=torch.float32, device=images.device)
        for channel, (scale, shift) in enumerate(zip(scales, shifts, strict=True)):
            torch.add(shift, images[:, channel], alpha=scale, out=out[:, channel])
        return out


def _by_themselves(images: Tensor) -> Tensor:
    flat = images.flatten(1).float() / 255
    flat -= flat.mean(dim=1, keepdim=True)
    deviations = flat.square().mean(dim=1, keepdim=True).sqrt()
    flat /= deviations.clamp_min(1 / math.sqrt(flat.shape[1]))
    return flat.view(images.shape)


@lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[tuple[float, ...], tuple[Tensor, ...]]:
    shifts = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return tuple(1 / (255 * s) for s in std), tuple(shifts.unbind())
