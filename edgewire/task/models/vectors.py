"""Networks for vectors: columns of a table, or a spectrum."""

import torch
from torch import Tensor, nn

from edgewire.task.models.parts import dense
from edgewire.task.models.signals import window_cnn


def table_mlp(columns: int = 8, hidden: int = 64, outputs: int = 1) -> nn.Module:
    """An MLP with two hidden layers: 4,801 parameters; (B, columns) -> (B, outputs)."""
    return nn.Sequential(*dense(columns, hidden, hidden, outputs))


class RowsAndWindows(nn.Module):
    """An MLP beside a 1-D CNN; (B, columns) and (B, channels, T) in a tuple -> (B, outputs)."""

    def __init__(
        self, columns: int = 8, channels: int = 6, hidden: int = 64, outputs: int = 6
    ) -> None:
        super().__init__()
        self.rows = nn.Sequential(*dense(columns, hidden, hidden), nn.ReLU())
        self.windows = window_cnn(channels, hidden)
        self.head = nn.Linear(2 * hidden, outputs)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Return the outputs."""
        rows, windows = inputs
        output: Tensor = self.head(torch.cat([self.rows(rows), self.windows(windows).relu()], 1))
        return output


def autoencoder(size: int = 64, hidden: int = 48, code: int = 8) -> nn.Module:
    """An MLP through a code of few values: 7,080 parameters; (B, size) -> (B, size)."""
    return nn.Sequential(*dense(size, hidden, code), *dense(code, hidden, size))
