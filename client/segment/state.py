"""What a node of a cut model keeps between messages, in its `Context.state`, on every engine."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from client.segment.stage import Stage, Vector
from compression.base import Memory
from compression.flower.batch_tensors import SAMPLES
from compression.flower.node.state import Arrays, keep, kept

PLACE, SEGMENT, BESIDE, SENT = "place", "segment", "beside", "sent"  # records in the state
MEMORY = "memory-"  # records of what a codec keeps


class SegmentState:
    """A node's segment, what it has sent and got no gradients for, and its codecs' memories.

    Arrays are shared with the `Context`, not copied; in the process that made them they are the
    memory that a `Stage` trains in.
    """

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        self._sent = kept(state, SENT)
        self._memories: dict[str, Memory] = {}

    def begin(self, segment: int, life: int) -> None:
        """Begin with a segment that the server has handed out for the `life`-th time."""
        for name in tuple(self._state):
            del self._state[name]
        self._sent.clear()
        self._memories.clear()
        self._state[PLACE] = ConfigRecord({"segment": segment, "life": life})

    def holds(self, segment: int, life: int) -> bool:
        """Whether this is the segment at hand."""
        held = cast(ConfigRecord, self._state.get(PLACE, ConfigRecord()))
        return dict(held) == {"segment": segment, "life": life}

    def has(self, stage: Stage) -> bool:
        """Whether a stage trains in the very memory that is kept here."""
        mine, its = kept(self._state, SEGMENT), stage.arrays(whole=True)
        return set(mine) == set(its) and all(
            np.shares_memory(mine[name], its[name]) for name in its if name != SAMPLES
        )

    def segment(self) -> tuple[dict[str, Vector], Arrays]:
        """Return the segment's state, for `Stage.load`."""
        return kept(self._state, SEGMENT), kept(self._state, BESIDE)

    def put(self, batch: int, tensors: NDArray[Any], labels: Any, micro: int = 0) -> None:
        """Keep a message's tensors, (mini-batches, samples, ...), and their labels."""
        self._sent[f"{batch}.{micro}"] = tensors
        if labels is not None:
            self._sent[f"{batch}.{micro} labels"] = labels

    def taken(self, batch: int, micro: int = 0) -> tuple[Any, Any] | None:
        """Return what was put, which is kept no longer; None if there is nothing."""
        tensors = self._sent.pop(f"{batch}.{micro}", None)
        labels = self._sent.pop(f"{batch}.{micro} labels", None)
        return None if tensors is None else (tensors, labels)

    def forget(self, before: int) -> None:
        """Drop what was put for mini-batches before this one."""
        for key in [key for key in self._sent if int(key.partition(".")[0]) < before]:
            del self._sent[key]

    def memory(self, name: str) -> Memory:
        """Return what a codec keeps, to be changed in place."""
        if name not in self._memories:
            self._memories[name] = kept(self._state, MEMORY + name)
        return self._memories[name]

    def save(self, stage: Stage) -> None:
        """Put everything into the node's state."""
        keep(self._state, SEGMENT, stage.arrays(whole=True))
        keep(self._state, BESIDE, stage.beside())
        keep(self._state, SENT, self._sent)
        for name, memory in self._memories.items():
            keep(self._state, MEMORY + name, memory)
