"""Convolutional networks for signals: windows of sensors, and spectrograms of sounds."""

from torch import Tensor, nn

from edgewire.task.models.parts import dense
from edgewire.task.models.small import channels_last


def window_cnn(channels: int = 6, classes: int = 6, width: int = 32) -> nn.Module:
    """A 1-D CNN with three convolutions: 12,742 parameters; (B, channels, T) -> (B, classes)."""
    return nn.Sequential(
        nn.Conv1d(channels, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv1d(width, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv1d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


class SpectrogramCNN(nn.Sequential):
    """A CNN for spectrograms; (B, mels, frames) -> (B, classes).

    Three convolutions of stride 2 and a mean over time: 26,874 parameters with 32 mels.
    """

    def __init__(self, mels: int = 32, classes: int = 10, width: int = 16) -> None:
        high = -(-mels // 8)  # each of three convolutions halves the height, rounding up
        super().__init__(
            nn.Conv2d(1, width, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((high, 2)),
            nn.Flatten(),
            *dense(2 * width * high * 2, 48, classes),
        )

    def forward(self, spectrograms: Tensor) -> Tensor:
        """Return the logits."""
        output: Tensor = super().forward(channels_last(spectrograms[:, None]))  # type: ignore[no-untyped-call]
        return output
