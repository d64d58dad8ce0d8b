"""The options of a cut model's run, in groups: where it is cut, its modules, its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conf import OptionGroup
from strategy.base import expect_positive

AUTO = "auto"
SCHEDULES = ("sequential", "pipeline", "async")


@dataclass(frozen=True)
class Cutting(OptionGroup):
    """Where a model is cut into segments.

    `cuts`: numbers of the layers with which a new segment begins, or "auto". "auto" makes
    `segments` of them (None: one for each node), within `memory_mb` megabytes a node (one number,
    or one for each segment). It chooses cuts with which the slowest segment is as fast as possible,
    by times measured on the server. Raises `ValueError` for `segments` below 1.
    """

    cuts: Any = AUTO
    segments: int | None = None
    memory_mb: Any = None

    def __post_init__(self) -> None:
        if self.segments is not None:
            expect_positive(segments=self.segments)


@dataclass(frozen=True)
class GradientModules(OptionGroup):
    """The modules that predict gradients, one for each segment but the last.

    `conditioned`: a module gets the labels too. `hidden`: units of a module's hidden layer. Raises
    `ValueError` for `hidden` below 1.
    """

    conditioned: bool = True
    hidden: int = 64

    def __post_init__(self) -> None:
        expect_positive(hidden=self.hidden)


@dataclass(frozen=True)
class Flow(OptionGroup):
    """When segments work on which mini-batches (`strategy.pipeline.schedule`).

    `schedule`: "sequential", "pipeline" or "async". `queue`: messages that may wait at a node, with
    "async". `batches_per_message`: mini-batches in a message, with one step for each.
    `micro_batches`: parts of a mini-batch, for backpropagation in a pipeline. Raises `ValueError`
    for another schedule, a number below 1, and options that do not go together.
    """

    schedule: str = "pipeline"
    queue: int = 2
    batches_per_message: int = 1
    micro_batches: int = 1

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}"
            )
        expect_positive(
            queue=self.queue,
            batches_per_message=self.batches_per_message,
            micro_batches=self.micro_batches,
        )
        if self.batches_per_message > 1 and self.micro_batches > 1:
            raise ValueError("batches_per_message does not go with micro_batches")
