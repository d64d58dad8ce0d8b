"""A small U-Net for segmentation."""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d, relu

from task.models.small import channels_last


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) of three scales, with one convolution where it has two.

    (B, channels, H, W) -> logits (B, classes, H, W), for H and W that 4 divides. 9,396 parameters
    with the defaults.
    """

    def __init__(self, channels: int = 1, classes: int = 4, width: int = 8) -> None:
        super().__init__()
        wide = 2 * width
        self.down1 = nn.Conv2d(channels, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, wide, 3, padding=1)
        self.bottom = nn.Conv2d(wide, wide, 3, padding=1)
        self.deep = nn.Conv2d(wide, wide, 3, padding=1)
        self.up2 = nn.Conv2d(2 * wide, width, 3, padding=1)
        self.up1 = nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each pixel."""
        fine = relu(self.down1(channels_last(images)))
        middle = relu(self.down2(max_pool2d(fine, 2)))
        coarse = relu(self.deep(relu(self.bottom(max_pool2d(middle, 2)))))
        middle = relu(self.up2(torch.cat([middle, interpolate(coarse, scale_factor=2.0)], 1)))
        fine = relu(self.up1(torch.cat([fine, interpolate(middle, scale_factor=2.0)], 1)))
        logits: Tensor = self.head(fine)
        return logits
