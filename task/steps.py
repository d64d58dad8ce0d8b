"""The steps every training and evaluation is made of."""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn

from task.errors import TaskError


def prepare(
    images: Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: str | torch.device = "cpu",
) -> Tensor:
    """Normalised images: uint8 (N, C, H, W) -> float32 (N, C, H, W), (x / 255 - mean) / std.

    `mean` and `std` are per channel, of images in 0..1. One pass: a channel is converted, scaled
    and shifted at once. Bytes, not floats, travel to another device.
    """
    images = images.to(device)
    scales, shifts = _affine(mean, std, images.device)
    out = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    for channel, (scale, shift) in enumerate(zip(scales, shifts, strict=True)):
        torch.add(shift, images[:, channel], alpha=scale, out=out[:, channel])
    return out


@lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[tuple[float, ...], tuple[Tensor, ...]]:
    shifts = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return tuple(1 / (255 * s) for s in std), tuple(shifts.unbind())


def batches(
    images: Tensor, labels: Tensor, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch in an order drawn from `generator` (a CPU one); the last batch may be smaller."""
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    for batch in order.split(batch_size):
        # index_select is several times as fast as images[batch].
        yield images.index_select(0, batch), labels.index_select(0, batch)


def evaluate(
    model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 1000
) -> tuple[float, float]:
    """(mean cross-entropy, accuracy in 0..1) in eval mode; the model's mode is put back.

    `images` float32 (N, C, H, W) and `labels` int64 (N,) lie where the model does.
    """
    if len(labels) == 0:
        raise TaskError("there are no samples to evaluate on: give dataset.holdout a larger share")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=labels.device)
    correct = torch.zeros((), dtype=torch.int64, device=labels.device)
    try:
        with torch.inference_mode():
            for batch, truth in zip(images.split(batch_size), labels.split(batch_size), strict=True):
                logits = model(batch)
                loss += nn.functional.cross_entropy(logits, truth, reduction="sum")
                correct += (logits.argmax(1) == truth).sum()
    finally:
        for module, training in modes:
            module.training = training
    return float(loss) / len(labels), float(correct) / len(labels)
