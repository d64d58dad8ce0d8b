"""Stores payloads from segments at the server until other segments need them."""

from dataclasses import dataclass, field

from edgewire.pipeline.messages import GRADIENTS
from edgewire.pipeline.server.schedule import Task

Place = tuple[int, int, int]  # segment, mini-batch, micro-batch


@dataclass
class StoreState:
    """The state of an `ActivationStore`: the payloads that segments still need.

    `inputs`: activations by receiving segment, mini-batch and micro-batch. `labels`: labels by
    mini-batch and micro-batch. `gradients`: for each receiving segment, gradients by mini-batch and
    micro-batch. `samples`: the number of samples by mini-batch and micro-batch. `usual`: the newest
    of these numbers. `lost`: mini-batches of backpropagation that all segments must skip.
    """

    inputs: dict[Place, bytes] = field(default_factory=dict)
    labels: dict[tuple[int, int], bytes] = field(default_factory=dict)
    samples: dict[tuple[int, int], int] = field(default_factory=dict)
    usual: int = 0
    lost: set[int] = field(default_factory=set)
    gradients: dict[int, dict[tuple[int, int], bytes]] = field(default_factory=dict)


class ActivationStore:
    """Stores payloads by the segment that receives them; the server forwards them unchanged.

    `labels_for`: the segments that get labels. `synthetic`: True if gradients train a segment's
    module for synthetic gradients. Then a segment gets gradients with its next message. Otherwise
    the server sends each gradient in a separate message.
    """

    def __init__(self, labels_for: range, synthetic: bool, state: StoreState) -> None:
        self._labels_for, self._synthetic, self._state = labels_for, synthetic, state

    def put(self, task: Task, name: str, payload: bytes) -> None:
        """Store a payload from a segment; `name`: "output", "gradients" or "labels"."""
        key = task.batch, task.micro
        if task.batch in self._state.lost:
            return
        if name == "output":
            self._state.inputs[task.segment + 1, *key] = payload
        elif name == "labels":
            self._state.labels[key] = payload
        else:
            self._state.gradients.setdefault(task.segment - 1, {})[key] = payload

    def put_samples(self, task: Task, samples: int) -> None:
        """Store the number of samples in each mini-batch, or micro-batch, of a task."""
        self._state.samples[task.batch, task.micro] = self._state.usual = samples

    def samples(self, task: Task) -> int:
        """Return the number of samples in a task's mini-batches; if unknown, the newest number."""
        return self._state.samples.get((task.batch, task.micro), self._state.usual)

    def take(self, task: Task) -> dict[str, bytes] | None:
        """Return, by name, the payloads for the message of a task; None if one of them is lost."""
        segment, key = task.segment, (task.batch, task.micro)
        found = {}
        if task.batch in self._state.lost:
            return None
        if task.phase == "backward":
            gradient = self._state.gradients.get(segment, {}).pop(key, None)
            return None if gradient is None else {f"{GRADIENTS}{task.batch}": gradient}
        if segment:
            given = self._state.inputs.pop((segment, *key), None)
            if given is None:
                return None
            found["input"] = given
        if segment in self._labels_for and segment:
            found["labels"] = self._state.labels.get(key, b"")
        if self._synthetic:
            for (batch, _), payload in self._state.gradients.pop(segment, {}).items():
                found[f"{GRADIENTS}{batch}"] = payload
        return found

    def done(self, task: Task) -> None:
        """Delete the data of finished mini-batches: those of `task`, and all before them."""
        for kept in (self._state.labels, self._state.samples):
            for key in [key for key in kept if key[0] <= task.batch]:
                del kept[key]
        self._state.lost = {batch for batch in self._state.lost if batch > task.batch}

    def skip_batch(self, batch: int) -> None:
        """Delete a mini-batch that a segment could not use, so that other segments skip it too."""
        for key in [key for key in self._state.inputs if key[1] == batch]:
            del self._state.inputs[key]
        if not self._synthetic:
            self._state.lost.add(batch)
            for kept in self._state.gradients.values():
                for pair in [pair for pair in kept if pair[0] == batch]:
                    del kept[pair]
