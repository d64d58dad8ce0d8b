"""The steps of training and evaluation: prepare images, make mini-batches, evaluate a model."""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from task.errors import TaskError


def prepare(
    images: Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: str | torch.device = "cpu",
) -> Tensor:
    """Normalise images: uint8 (N, C, H, W) -> float32 (N, C, H, W), (x / 255 - mean) / std.

    `mean` and `std` have one value per channel, for images scaled to 0..1. If both are empty, each
    image is normalised by the mean and standard deviation of its own n = C H W entries. The
    standard deviation then counts as at least 1 / sqrt(n), so that a uniform image becomes zero
    (tf.image.per_image_standardization, AdaComp's input). Images move to `device` as bytes, and one
    pass converts, scales and shifts a channel.

    Raises:
        TaskError: images that are not uint8, or not as many means as channels.
    """
    if images.dtype != torch.uint8:
        raise TaskError(f"images are {images.dtype}, and uint8 from 0 to 255 is taken")
    if mean and images.shape[1] != len(mean):
        raise TaskError(f"there are {len(mean)} means for images of {images.shape[1]} channels")
    images = images.to(device)
    if not mean:
        return _by_themselves(images)
    scales, shifts = _affine(mean, std, images.device)
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


def batches(
    images: Tensor,
    labels: Tensor,
    batch_size: int,
    generator: torch.Generator,
    *,
    single: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch's mini-batches, shuffled by a CPU `generator`; the last may be smaller.

    With `single=False` a last mini-batch of one sample joins the previous one, because BatchNorm
    cannot normalise a single value.
    """
    total = len(labels)
    order = torch.randperm(total, generator=generator).to(labels.device)
    # One copy for the epoch, then views. `index_select` is several times faster than indexing.
    images, labels = images.index_select(0, order), labels.index_select(0, order)
    ends = [*range(batch_size, total, batch_size), total]
    if not single and len(ends) > 1 and ends[-1] - ends[-2] == 1:
        del ends[-2]
    for start, end in zip([0, *ends], ends, strict=False):
        yield images[start:end], labels[start:end]


class Evaluation(NamedTuple):
    """The result of an evaluation: mean cross-entropy, and shares of samples in 0..1.

    `top5`: the share of samples whose class is among the five most likely.
    """

    loss: float
    accuracy: float
    top5: float


def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    batch_size: int = 100,
    between: Callable[[], object] | None = None,
) -> Evaluation:
    """Evaluate a model in eval mode, then restore its mode.

    `images` float32 (N, C, H, W) and `labels` int64 (N,) are on the model's device. Small batches
    keep layers' outputs in the CPU's caches: in batches of 500, AdaComp's CNN takes twice the time.
    `between` is called after each batch. Raises `TaskError` for no samples.
    """
    if len(labels) == 0:
        raise TaskError("there are no samples to evaluate on: give dataset.holdout a larger share")
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=labels.device)
    correct = torch.zeros(2, dtype=torch.int64, device=labels.device)
    try:
        for batch, truth in zip(
            torch.split(images, batch_size), torch.split(labels, batch_size), strict=True
        ):
            with torch.inference_mode():
                logits = model(batch)
                loss += nn.functional.cross_entropy(logits, truth, reduction="sum")
                likely = logits.topk(min(5, logits.shape[1])).indices == truth[:, None]
                correct += torch.stack([(logits.argmax(1) == truth).sum(), likely.sum()])
            if between is not None:  # outside of inference mode: it may start a training process
                between()
    finally:
        for module, training in modes:
            module.training = training
    best, five = correct.tolist()
    return Evaluation(float(loss) / len(labels), best / len(labels), five / len(labels))
