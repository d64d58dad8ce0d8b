"""Convolutional networks for signals: windows of sensors, and spectrograms of sounds."""

from itertools import pairwise

from torch import Tensor, nn

from edgewire.task.models.parts import dense
from edgewire.task.models.small import channels_last


def window_cnn(channels: int = 6, classes: int = 6, width: int = 32) -> nn.Module:
    """A 1-D CNN with three convolutions: 12,742 parameters; (B, channels, T) -> (B, classes)."""
    sizes, layers = pairwise((channels, width, width, 2 * width)), list[nn.Module]()
    for (inputs, outputs), kernel, stride in zip(sizes, (5, 5, 3), (2, 2, 1), strict=True):
        layers += [nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2), nn.ReLU()]
    head = nn.Linear(2 * width, classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), head)


class SpectrogramCNN(nn.Sequential):
    """A CNN for spectrograms; (B, mels, frames) -> (B, classes).

    Three convolutions of stride 2 and a mean over time: 26,874 parameters with 32 mels.
    """

    def __init__(self, mels: int = 32, classes: int = 10, width: int = 16) -> None:
        high = -(-mels // 8)  # each of three convolutions halves the height, rounding up
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((1, width, 2 * width, 2 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU()]
        super().__init__(
            *layers,
            nn.AdaptiveAvgPool2d((high, 2)),
            nn.Flatten(),
            *dense(2 * width * high * 2, 48, classes),
        )

    def forward(self, spectrograms: Tensor) -> Tensor:
        """Return the logits."""
        output: Tensor = super().forward(channels_last(spectrograms[:, None]))  # type: ignore[no-untyped-call]
        return output
