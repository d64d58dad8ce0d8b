"""Small networks for small images."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgewire.task.models.parts import MODELS, conv, dense, need


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


@MODELS.register("mlp")
def mlp(channels: int, size: int, classes: int) -> nn.Module:
    """An MLP with one hidden layer of 128 units: 9,610 parameters on 1x8x8, 101,770 on 1x28x28."""
    return nn.Sequential(nn.Flatten(), *dense(channels * size * size, 128, classes))


def wide_mlp(
    channels: int = 1, size: int = 28, classes: int = 10, hidden: Sequence[int] = (1024, 512)
) -> nn.Module:
    """An MLP for images (channels, size, size), with the given numbers of hidden units.

    1,333,770 parameters with the default options.
    """
    return nn.Sequential(nn.Flatten(), *dense(channels * size * size, *hidden, classes))


@MODELS.register("lenet5")
def lenet5(channels: int, size: int, classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: 61,706 parameters on 1x28x28.

    Images below 32 x 32 get a padding of 2 on each side, like the paper's 28 x 28 digits.
    """
    need("lenet5", size, 12)
    padding = 2 if size < 32 else 0
    side = ((size + 2 * padding - 4) // 2 - 4) // 2
    return ChannelsLast(
        *conv(channels, 6, 5, padding),
        *conv(6, 16, 5),
        nn.Flatten(),
        *dense(16 * side * side, 120, 84, classes),
    )


@MODELS.register("adacomp_cnn")
def adacomp_cnn(channels: int, size: int, classes: int) -> nn.Module:
    """The CNN of AdaComp (Hardy et al. 2017): 211,690 parameters on 1x28x28."""
    need("adacomp_cnn", size, 4)
    side = size // 4
    return ChannelsLast(
        *conv(channels, 32, 3, 1),
        *conv(32, 32, 3, 1),
        nn.Flatten(),
        *dense(32 * side * side, 128, classes),
    )


@MODELS.register("cnn")
def cnn(channels: int, size: int, classes: int) -> nn.Module:
    """Two convolutions and a wide hidden layer: 1,199,882 parameters on 1x28x28.

    The network of PyTorch's own MNIST example, without its dropout.
    """
    need("cnn", size, 6)
    side = (size - 4) // 2
    return ChannelsLast(
        *conv(channels, 32, 3, pool=1),
        *conv(32, 64, 3),
        nn.Flatten(),
        *dense(64 * side * side, 128, classes),
    )
