"""Options for a model cut into segments on several nodes: the cuts and the schedule."""

from dataclasses import dataclass
from typing import Any

from edgewire.conf.option_group import OptionGroup, bounded

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
    segments: int | None = bounded(None, at_least=1)


@dataclass(frozen=True)
class Flow(OptionGroup):
    """Says when a segment works on which mini-batch, and when the server gets copies of it.

    `schedule`: "sequential", "pipeline" or "async". `queue`: with "async", the number of messages
    that may wait at a node. `batches_per_message`: the number of mini-batches in a message; a node
    takes one step for each. `micro_batches`: the number of parts of a mini-batch, for
    backpropagation in a pipeline. `edgewire.pipeline.server.schedule` explains these options.
    `segment_every`: the number of mini-batches after which the server gets full copies of the
    segments. With such a copy another node can take over a segment. 0: the server has only the
    initial copies. `record_every`: the number of mini-batches between two evaluations. Raises
    `ValueError` for another schedule, and for a number below 1, or 0 of `segment_every`.
    """

    schedule: str = bounded("pipeline", one_of=SCHEDULES)
    queue: int = bounded(2, at_least=1)
    batches_per_message: int = bounded(1, at_least=1)
    micro_batches: int = bounded(1, at_least=1)
    segment_every: int = bounded(0, at_least=0)
    record_every: int = bounded(1, at_least=1)
