"""Networks for vectors: columns of a table, or a spectrum."""

from torch import nn

from edgewire.task.models.parts import dense


def table_mlp(columns: int = 8, hidden: int = 64, outputs: int = 1) -> nn.Module:
    """An MLP with two hidden layers: 4,801 parameters; (B, columns) -> (B, outputs)."""
    return nn.Sequential(*dense(columns, hidden, hidden, outputs))


def autoencoder(size: int = 64, hidden: int = 48, code: int = 8) -> nn.Module:
    """An MLP through a code of few values: 7,080 parameters; (B, size) -> (B, size)."""
    return nn.Sequential(*dense(size, hidden, code), *dense(code, hidden, size))
