"""A transform of a table's raw rows into a model's input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgewire.task.tables.columns import Column, plain_of
from edgewire.task.tensors import Tensors, leaves

PERIODS = {"date": (365.2425, 7.0), "time": (365.2425, 7.0, 1.0)}  # days of a year, a week, a day


class TableTransform(nn.Module):
    """Turns raw rows into numbers around 0: float64 (B, columns) -> float32 (B, width).

    A row has a value for each feature but windows: a number, the place of a category's text, or
    days since 1970; NaN for a missing value. The result has these parts, each in the columns'
    order: numbers and days as (x - mean) / std, 0 if missing; for dates the sines, then the
    cosines, of the place in the year, in the week and, with a time, in the day; a 0/1 for each text
    of each category, and for all its other texts; a 0/1 for a missing value in each column where
    training rows miss some. A text that the training rows lack has a 0 for each text.

    Windows are float32 (B, channels, length), of which each channel is standardised, with 0 for a
    missing value. With windows and other features, inputs and results are a tuple of both. It is
    plain arithmetic, so that it can be exported with the model.

    `features`: the fields of `Column` for each feature.
    """

    def __init__(self, features: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.features = tuple(Column(**each) for each in features)
        rows = [each for each in self.features if each.kind != "window"]
        windows = [each for each in self.features if each.kind == "window"]
        self.rows, self.windows = len(rows), len(windows)
        numbers = [place for place, each in enumerate(rows) if each.kind != "category"]
        waves, texts = list[tuple[int, float]](), list[tuple[int, int]]()
        for place, each in enumerate(rows):
            waves += [(place, 1 / period) for period in PERIODS.get(each.kind, ())]
            if each.kind == "category":
                texts += [(place, code) for code in range(len(each.values) + each.other)]
        gaps = [place for place, each in enumerate(rows) if each.missing]

        def kept(values: Sequence[float], kind: torch.dtype = torch.float64) -> Tensor:
            return nn.Buffer(torch.tensor(values, dtype=kind), persistent=False)

        self.numbers = kept(numbers, torch.int64)
        self.mean = kept([rows[place].mean for place in numbers])
        self.std = kept([rows[place].std or 1.0 for place in numbers])
        self.waves = kept([place for place, _ in waves], torch.int64)
        self.rates = kept([rate for _, rate in waves])
        self.texts = kept([place for place, _ in texts], torch.int64)
        self.codes = kept([code for _, code in texts])
        self.gaps = kept(gaps, torch.int64)
        self.window_mean = kept([each.mean for each in windows], torch.float32)
        self.window_std = kept([each.std or 1.0 for each in windows], torch.float32)
        self.width = len(numbers) + 2 * len(waves) + len(texts) + len(gaps)

    def forward(self, inputs: Tensors) -> Tensors:
        """Return a model's input."""
        several = tuple(leaves(inputs))
        if self.mean.device != several[0].device:
            self.to(several[0].device)
        found = [self._rows(several[0])] if self.rows else []
        if self.windows:
            mean, std = self.window_mean[:, None], self.window_std[:, None]
            found.append(_without_gaps((several[-1].float() - mean) / std))
        return found[0] if len(found) == 1 else tuple(found)

    def _rows(self, rows: Tensor) -> Tensor:
        parts = [_without_gaps((rows.index_select(1, self.numbers) - self.mean) / self.std).float()]
        if len(self.waves):
            turns = rows.index_select(1, self.waves) * self.rates
            angles = 2 * math.pi * (turns - turns.floor()).float()
            parts.append(_without_gaps(torch.cat([angles.sin(), angles.cos()], 1)))
        if len(self.texts):
            parts.append(rows.index_select(1, self.texts).eq(self.codes).float())
        if len(self.gaps):
            parts.append(rows.index_select(1, self.gaps).isnan().float())
        return torch.cat(parts, 1)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments, as JSON has them, that make an equal transform."""
        return {"features": [dict(plain_of(each)) for each in self.features]}


def _without_gaps(values: Tensor) -> Tensor:
    return torch.where(values.isnan(), torch.zeros_like(values), values)
