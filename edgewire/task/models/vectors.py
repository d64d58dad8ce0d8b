"""Networks for vectors: columns of a table, or a spectrum."""

from torch import Tensor, nn

from edgewire.task.models.parts import dense
from edgewire.task.models.signals import window_cnn


def table_mlp(columns: int = 8, hidden: int = 64, outputs: int = 1) -> nn.Module:
    """An MLP with two hidden layers: 4,801 parameters; (B, columns) -> (B, outputs)."""
    return nn.Sequential(*dense(columns, hidden, hidden, outputs))


class RowsAndWindows(nn.Module):
    """The sum of `table_mlp` and `window_cnn`; ((B, columns), (B, channels, T)) -> (B, outputs)."""

    def __init__(
        self, columns: int = 8, channels: int = 6, hidden: int = 64, outputs: int = 6
    ) -> None:
        super().__init__()
        self.rows = table_mlp(columns, hidden, outputs)
        self.windows = window_cnn(channels, outputs)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Return the outputs."""
        rows, windows = inputs
        found: Tensor = self.rows(rows) + self.windows(windows)
        return found


def autoencoder(size: int = 64, hidden: int = 48, code: int = 8) -> nn.Module:
    """An MLP through a code of few values: 7,080 parameters; (B, size) -> (B, size)."""
    return nn.Sequential(*dense(size, hidden, code), *dense(code, hidden, size))
