"""Keeps a node's segment of the model in `Context.state` from one message to the next."""

from typing import Any, cast

from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from edgewire.compression.base import Memory
from edgewire.compression.flower.node.state import Arrays, store_arrays, stored_arrays
from edgewire.compression.flower.records import values_of
from edgewire.pipeline.node.stage import Stage, Vector

PLACE, SEGMENT, BESIDE, SENT = "place", "segment", "beside", "sent"  # records in the state
MEMORY = "memory-"  # prefix of the records with a codec's residual


class SegmentState:
    """A node's segment, sent tensors whose gradients are awaited, and its codecs' residuals.

    The arrays are those in Flower's `Context`, not copies. In the process that made the arrays, a
    `Stage` trains the segment in the same memory, or on a GPU with these arrays as its copies.
    """

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        self._sent = stored_arrays(state, SENT)
        self._memories: dict[str, Memory] = {}

    def begin(self, segment: int, life: int) -> None:
        """Remove all state, and record the number of the segment that the node gets.

        `life`: how many times the server has assigned this segment to a node.
        """
        for name in tuple(self._state):
            del self._state[name]
        self._sent.clear()
        self._memories.clear()
        self._state[PLACE] = ConfigRecord({"segment": segment, "life": life})

    def holds(self, segment: int, life: int) -> bool:
        """Return whether the node holds this segment, and got it in the assignment `life`."""
        held = cast(ConfigRecord, self._state.get(PLACE, ConfigRecord()))
        return dict(held) == {"segment": segment, "life": life}

    def has(self, stage: Stage) -> bool:
        """Return whether `stage`, and no other process since, has stored this state's arrays."""
        return stage.stored is not None and values_of(self._state).get(SEGMENT) is stage.stored

    def segment(self) -> tuple[dict[str, Vector], Arrays]:
        """Return the segment's state: the arguments of `Stage.load`."""
        return stored_arrays(self._state, SEGMENT), stored_arrays(self._state, BESIDE)

    def put(self, batch: int, tensors: NDArray[Any], labels: Any, micro: int = 0) -> None:
        """Store tensors and their labels until the gradients of the tensors arrive.

        `tensors`: (mini-batches, samples, ...). `batch`: the number of the first mini-batch;
        `micro`: the number of the micro-batch.
        """
        self._sent[f"{batch}.{micro}"] = tensors
        if labels is not None:
            self._sent[f"{batch}.{micro} labels"] = labels

    def pop(self, batch: int, micro: int = 0) -> tuple[Any, Any] | None:
        """Remove and return the tensors and labels that `put` has stored, or None."""
        tensors = self._sent.pop(f"{batch}.{micro}", None)
        labels = self._sent.pop(f"{batch}.{micro} labels", None)
        return None if tensors is None else (tensors, labels)

    def forget(self, before: int) -> None:
        """Remove what `put` has stored for mini-batches with numbers below `before`."""
        for key in [key for key in self._sent if int(key.partition(".")[0]) < before]:
            del self._sent[key]

    def memory(self, name: str) -> Memory:
        """Return a codec's residual, which the codec changes in place; `name`: what it encodes."""
        if name not in self._memories:
            self._memories[name] = stored_arrays(self._state, MEMORY + name)
        return self._memories[name]

    def save(self, stage: Stage) -> None:
        """Write the state of `stage`, and all that is stored here, into the node's `Context`."""
        store_arrays(self._state, SEGMENT, stage.arrays(whole=True))
        stage.stored = values_of(self._state)[SEGMENT]
        store_arrays(self._state, BESIDE, stage.beside())
        store_arrays(self._state, SENT, self._sent)
        for name, memory in self._memories.items():
            store_arrays(self._state, MEMORY + name, memory)
