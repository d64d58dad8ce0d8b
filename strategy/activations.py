"""The activation store: what segments have sent, until those it is for are done with it."""

from __future__ import annotations

from collections import defaultdict

from compression.flower.tensors import GRADIENTS
from strategy.flow import Task

Place = tuple[int, int, int]  # segment, mini-batch, micro-batch


class ActivationStore:
    """Payloads by the segment that they are for; the server forwards them as they came.

    `labels_for`: the segments that see labels. `synthetic`: gradients train a segment's module, and
    go with its next message; else each is a message of its own.
    """

    def __init__(self, labels_for: range, synthetic: bool) -> None:
        self._labels_for, self._synthetic = labels_for, synthetic
        self._inputs: dict[Place, bytes] = {}
        self._labels: dict[tuple[int, int], bytes] = {}
        self._samples: dict[tuple[int, int], int] = {}
        self._usual = 0
        self._lost: set[int] = set()  # mini-batches of backpropagation that all are to skip
        self._gradients: defaultdict[int, dict[tuple[int, int], bytes]] = defaultdict(dict)

    def put(self, task: Task, name: str, payload: bytes) -> None:
        """Take what a segment has sent: `output`, `gradients` or `labels`."""
        key = task.batch, task.micro
        if task.batch in self._lost:
            return
        if name == "output":
            self._inputs[task.segment + 1, *key] = payload
        elif name == "labels":
            self._labels[key] = payload
        else:
            self._gradients[task.segment - 1][key] = payload

    def put_samples(self, task: Task, samples: int) -> None:
        """Take how many samples the first segment's mini-batches, or micro-batch, have."""
        self._samples[task.batch, task.micro] = self._usual = samples

    def samples(self, task: Task) -> int:
        """Return that number; where nobody has said it yet, the last one's."""
        return self._samples.get((task.batch, task.micro), self._usual)

    def take(self, task: Task) -> dict[str, bytes] | None:
        """Return what a task's message is to hold, by name; None if something was lost."""
        segment, key = task.segment, (task.batch, task.micro)
        found = {}
        if task.batch in self._lost:
            return None
        if task.phase == "backward":
            gradient = self._gradients[segment].pop(key, None)
            return None if gradient is None else {f"{GRADIENTS}{task.batch}": gradient}
        if segment:
            given = self._inputs.pop((segment, *key), None)
            if given is None:
                return None
            found["input"] = given
        if segment in self._labels_for and segment:
            found["labels"] = self._labels.get(key, b"")
        if self._synthetic:
            for (batch, _), payload in self._gradients.pop(segment, {}).items():
                found[f"{GRADIENTS}{batch}"] = payload
        return found

    def done(self, task: Task) -> None:
        """Forget labels that nobody will ask for any more: all are through with the mini-batch."""
        for kept in (self._labels, self._samples):
            for key in [key for key in kept if key[0] <= task.batch]:
                del kept[key]
        self._lost = {batch for batch in self._lost if batch > task.batch}

    def lose(self, batch: int) -> None:
        """Forget a mini-batch that a segment could not use: the others' work on it is of no use."""
        for key in [key for key in self._inputs if key[1] == batch]:
            del self._inputs[key]
        if not self._synthetic:
            self._lost.add(batch)
            for kept in self._gradients.values():
                for pair in [pair for pair in kept if pair[0] == batch]:
                    del kept[pair]
