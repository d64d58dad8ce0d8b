"""A small U-Net for segmentation."""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from edgewire.task.models.small import channels_last


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) of three scales, with one convolution where it has two,
    and group normalisation (Wu & He 2018) after each.

    (B, channels, H, W) -> logits (B, classes, H, W), for H and W that 4 divides. 9,396 parameters
    with the defaults.
    """

    def __init__(self, channels: int = 1, classes: int = 4, width: int = 8) -> None:
        super().__init__()
        wide = 2 * width
        self.down1 = _convolution(channels, width)
        self.down2 = _convolution(width, wide)
        self.bottom = _convolution(wide, wide)
        self.deep = _convolution(wide, wide)
        self.up2 = _convolution(2 * wide, width)
        self.up1 = _convolution(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each pixel."""
        fine = self.down1(channels_last(images))
        middle = self.down2(max_pool2d(fine, 2))
        coarse = self.deep(self.bottom(max_pool2d(middle, 2)))
        middle = self.up2(torch.cat([middle, interpolate(coarse, scale_factor=2.0)], 1))
        fine = self.up1(torch.cat([fine, interpolate(middle, scale_factor=2.0)], 1))
        logits: Tensor = self.head(fine)
        return logits


def _convolution(channels: int, width: int) -> nn.Module:
    """Return a 3 x 3 convolution with group normalisation in groups of four channels."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.GroupNorm(max(width // 4, 1), width),
        nn.ReLU(),
    )
