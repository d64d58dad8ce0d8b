"""Stores payloads from segments at the server until other segments need them."""

from dataclasses import dataclass, field

from edgewire.pipeline.messages import GRADIENTS
from edgewire.pipeline.server.schedule import Task

Place = tuple[int, int, int]  # receiving segment, mini-batch, micro-batch


@dataclass
class ActivationStore:
    """Stores payloads by the segment that receives them; the server forwards them unchanged.

    `inputs`: activations. `gradients`: of activations. `labels`, `samples`: the labels, and the
    number of samples, by mini-batch and micro-batch. `usual`: the newest of these numbers. `lost`:
    mini-batches of backpropagation that all segments must skip.
    """

    inputs: dict[Place, bytes] = field(default_factory=dict)
    gradients: dict[Place, bytes] = field(default_factory=dict)
    labels: dict[tuple[int, int], bytes] = field(default_factory=dict)
    samples: dict[tuple[int, int], int] = field(default_factory=dict)
    usual: int = 0
    lost: set[int] = field(default_factory=set)

    def put(self, task: Task, name: str, payload: bytes) -> None:
        """Store a payload from a segment; `name`: "output", "gradients" or "labels"."""
        key = task.batch, task.micro
        if task.batch in self.lost:
            return
        if name == "output":
            self.inputs[task.segment + 1, *key] = payload
        elif name == "labels":
            self.labels[key] = payload
        else:
            self.gradients[task.segment - 1, *key] = payload

    def put_samples(self, task: Task, samples: int) -> None:
        """Store the number of samples in each mini-batch, or micro-batch, of a task."""
        self.samples[task.batch, task.micro] = self.usual = samples

    def samples_of(self, task: Task) -> int:
        """Return the number of samples in a task's mini-batches; if unknown, the newest number."""
        return self.samples.get((task.batch, task.micro), self.usual)

    def take(self, task: Task, *, labelled: bool, synthetic: bool) -> dict[str, bytes] | None:
        """Return, by name, the payloads for the message of a task; None if one of them is lost.

        `labelled`: whether a segment after the first gets labels. `synthetic`: whether gradients
        train a segment's module, so that it gets them with its next message. Otherwise each
        gradient has a message of its own.
        """
        place, backward = (task.segment, task.batch, task.micro), task.phase == "backward"
        kept = self.gradients if backward else self.inputs
        if task.batch in self.lost or (place not in kept and (backward or task.segment)):
            return None
        if backward:
            return {f"{GRADIENTS}{task.batch}": kept.pop(place)}
        found = {}
        if task.segment:
            found["input"] = self.inputs.pop(place)
            if labelled:
                found["labels"] = self.labels.get(place[1:], b"")
        for given in [each for each in self.gradients if synthetic and each[0] == task.segment]:
            found[f"{GRADIENTS}{given[1]}"] = self.gradients.pop(given)
        return found

    def done(self, task: Task) -> None:
        """Delete the data of finished mini-batches: those of `task`, and all before them."""
        for kept in (self.labels, self.samples):
            for key in [key for key in kept if key[0] <= task.batch]:
                del kept[key]
        self.lost = {batch for batch in self.lost if batch > task.batch}

    def skip_batch(self, batch: int, *, synthetic: bool) -> None:
        """Delete a mini-batch that a segment could not use, so that other segments skip it too."""
        for kept in (self.inputs,) if synthetic else (self.inputs, self.gradients):
            for place in [place for place in kept if place[1] == batch]:
                del kept[place]
        if not synthetic:
            self.lost.add(batch)
