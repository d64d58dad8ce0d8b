"""Options for a model cut into segments on several nodes: the cuts, modules and the schedule."""

from dataclasses import dataclass
from typing import Any

from edgewire.conf.option_group import OptionGroup
from edgewire.pipeline.gradient_predictor import ModuleForm
from edgewire.strategy.base import expect_positive

AUTO = "auto"
SCHEDULES = ("sequential", "pipeline", "async")


@dataclass(frozen=True)
class Cutting(OptionGroup):
    """Says where a model is cut into segments. A segment is consecutive layers on one node.

    `cuts`: the numbers of the layers with which a new segment begins, or "auto". "auto" chooses the
    cuts with which the largest segment has as few operations as possible. `segments`: the number of
    segments for "auto"; None: one for each node. Raises `ValueError` for `segments` below 1.
    """

    cuts: Any = AUTO
    segments: int | None = None

    def __post_init__(self) -> None:
        if self.segments is not None:
            expect_positive(segments=self.segments)


@dataclass(frozen=True)
class GradientModules(OptionGroup):
    """The modules that predict gradients, one for each segment except the last.

    `module`, `hidden`, `trained_by`: as in `edgewire.pipeline.gradient_predictor.ModuleForm`.
    `conditioned`: True if a module also gets the labels. Raises `ValueError` for other values.
    """

    module: str = "predicted_gradient"
    conditioned: bool = True
    hidden: Any = 64
    trained_by: str = "gradients"

    def __post_init__(self) -> None:
        self.form(0)

    def form(self, classes: int) -> ModuleForm:
        """Return the form of the modules. `classes`: the number of classes of a data set."""
        return ModuleForm(
            self.module, self.hidden, self.trained_by, classes if self.conditioned else 0
        )


@dataclass(frozen=True)
class Flow(OptionGroup):
    """Says when a segment works on which mini-batch (`edgewire.pipeline.server.schedule`).

    `schedule`: "sequential", "pipeline" or "async". `queue`: with "async", the number of messages
    that may wait at a node. `batches_per_message`: the number of mini-batches in a message; a node
    takes one step for each. `micro_batches`: the number of parts of a mini-batch, for
    backpropagation in a pipeline. Raises `ValueError` for another schedule, or a number below 1.
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
