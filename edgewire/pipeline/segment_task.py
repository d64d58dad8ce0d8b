"""The task that a server gives to a node with a segment, and two metrics of the reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

ERROR = "prediction-error"  # of a synthetic gradient
REFUSED = "gradients-refused"  # gradients that a segment could not use


class SegmentTask(NamedTuple):
    """Task for a segment of a partitioned model; the node's ClientApp reads it from `config`.

    A segment is a sequence of consecutive layers that one node trains.

    - `segment`: the number of the segment.
    - `cuts`: the layers at which the model is cut.
    - `life`: how many times the server has given this segment to a node.
    - `phase`: what to do: train, forward or backward. "" asks only for a snapshot.
    - `batch`, `batches`: the number of the first mini-batch, and the count of mini-batches.
    - `lr`: a learning rate for each mini-batch.
    - `micro`, `micros`: the number of the micro-batch, and the count of micro-batches.
    - `samples`: the number of samples in each micro-batch. The node of the first segment does not
      need it, because this node holds the data.
    - `copy`: which snapshot of the segment to send: "" for none, weights, or all.
    - `num_steps`: the cost of the task, in training steps of the whole model. The virtual clock
      reads it.
    """

    segment: int
    cuts: list[int]
    life: int
    phase: str
    batch: int
    batches: int
    micro: int
    micros: int
    samples: int
    lr: list[float]
    copy: str
    num_steps: float

    @property
    def number(self) -> int:
        """The number of this task's first micro-batch in the run, from 1.

        It is also the `number` in the message's header.
        """
        return self.batch * self.micros + self.micro + 1

    def config(self) -> dict[str, Any]:
        """Return these fields as a message's `config`."""
        return {key.replace("_", "-"): value for key, value in self._asdict().items()}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> SegmentTask:
        """Read a `config` that the server wrote with `SegmentTask.config`."""
        return cls(*(config[key.replace("_", "-")] for key in cls._fields))
