"""Small networks for small images."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from edgewire.task.models.parts import MODELS, dense, need


class ChannelsLast(nn.Sequential):
    """An `nn.Sequential` that gives images the channels-last memory layout on a CPU.

    Convolutions of few channels are then faster (the backward pass of LeNet-5's first convolution:
    0.7 ms instead of 5 ms). The models in this module also put max pooling before
    ReLU. Values and gradients stay the same, because max(relu(x)) = relu(max(x)). ReLU then has a
    quarter of the work.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return the last layer's output for float32 (N, C, H, W)."""
        output: Tensor = super().forward(channels_last(images))  # type: ignore[no-untyped-call]
        return output


def channels_last(images: Tensor) -> Tensor:
    """Return images (N, C, H, W) on a CPU with channels last in memory; other tensors unchanged."""
    if images.dim() != 4 or images.device.type != "cpu":
        return images
    # With one channel torch calls both layouts contiguous. Only a copy gets the other strides.
    rows = images.permute(0, 2, 3, 1)
    if not rows.is_contiguous() or images.shape[1] == 1:
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.permute(0, 3, 1, 2)


def wide_mlp(
    channels: int = 1, size: int = 28, classes: int = 10, hidden: Sequence[int] = (1024, 512)
) -> nn.Module:
    """An MLP for images (channels, size, size), with the given numbers of hidden units.

    1,333,770 parameters with the default options.
    """
    return nn.Sequential(nn.Flatten(), *dense(channels * size * size, *hidden, classes))


class Network(NamedTuple):
    """Convolutions, each with its outputs, kernel, padding and max pooling; then dense layers.

    `hidden`: the outputs of the dense layers before the last one. `smallest`: the least pixels of
    an image's side. `norm`: whether BatchNorm follows each layer except the last.
    """

    convolutions: Sequence[tuple[int, int, int, int]]
    hidden: tuple[int, ...]
    smallest: int
    norm: bool = False


# The synthetic-gradients paper (Chen et al. 2019) gives the kinds of layers, but not their widths.
FOUR = Network([(32, 5, 2, 4)], (256, 256), 4)
EIGHT = Network([(32, 3, 1, 2 - layer % 2) for layer in range(5)], (256, 256), 8)
NETWORKS = {
    # LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: 61,706 parameters on 1x28x28
    "lenet5": Network([(6, 5, 2, 2), (16, 5, 0, 2)], (120, 84), 12),
    # The CNN of AdaComp (Hardy et al. 2017): 211,690
    "adacomp_cnn": Network([(32, 3, 1, 2), (32, 3, 1, 2)], (128,), 4),
    # The network of PyTorch's own MNIST example, without its dropout: 1,199,882
    "cnn": Network([(32, 3, 0, 1), (64, 3, 0, 2)], (128,), 6),
    "four_layers": FOUR._replace(norm=True),  # 471,946
    "four_layers_plain": FOUR,  # 470,858
    "eight_layers": EIGHT._replace(norm=True),  # 181,002
    "eight_layers_plain": EIGHT,  # 179,658
}


def _made(name: str, channels: int, size: int, classes: int) -> nn.Module:
    net, layers, side = NETWORKS[name], list[nn.Module](), size
    need(name, size, net.smallest)
    padded = name != "lenet5" or size < 32  # the paper pads its digits of 28 x 28 to 32 x 32
    for outputs, kernel, padding, pool in net.convolutions:
        padding = padding if padded else 0
        layers += [nn.Conv2d(channels, outputs, kernel, padding=padding)]
        layers += [nn.MaxPool2d(pool)] if pool > 1 else []
        layers += [nn.BatchNorm2d(outputs)] if net.norm else []
        layers += [nn.ReLU()]
        channels, side = outputs, (side + 2 * padding - kernel + 1) // pool
    sizes = (channels * side * side, *net.hidden, classes)
    return ChannelsLast(*layers, nn.Flatten(), *dense(*sizes, norm=net.norm))


MODELS.update({name: partial(_made, name) for name in NETWORKS})
MODELS["mlp"] = partial(wide_mlp, hidden=(128,))  # 9,610 parameters on 1x8x8, 101,770 on 1x28x28
