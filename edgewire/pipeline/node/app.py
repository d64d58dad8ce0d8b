"""The part of a node that trains one segment of a model on the activations in a message.

A segment is a part of the model, with consecutive layers. Each segment is on another node.

A message's ArrayRecord may hold these payloads:

- `input`: the output of the previous segment;
- `labels`: the targets of the mini-batches, and their inputs for a loss that needs them;
- `gradients-T`: gradients of the outputs that this node sent for the mini-batches from T on;
- `copy`: a snapshot of the segment, with which this node begins.

A reply's ArrayRecord may hold these payloads:

- `output`: the segment's output;
- `labels`: as above, only from the first segment's node;
- `gradients`: the gradients of the segment's input;
- `copy`: a snapshot of the segment, if the server has asked for it.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from edgewire.client.batches import Samples
from edgewire.client.node import Node
from edgewire.compression.base import PayloadError
from edgewire.compression.flower import filled
from edgewire.compression.flower.headers import (
    EXAMPLES,
    HEADER,
    LOSS,
    SECONDS,
    STEPS,
    UplinkHeader,
    written,
)
from edgewire.compression.flower.node.mod import codec_seed
from edgewire.compression.flower.records import payload_records
from edgewire.conf.build import data_of
from edgewire.conf.check import codec_of
from edgewire.conf.schema import Config
from edgewire.pipeline.messages import (
    ACTIVATIONS,
    ERROR,
    GRADIENTS,
    GRADIENTS_OF,
    NO_SEGMENT,
    REFUSED,
    SegmentTask,
    TargetTensor,
    pack,
    pack_copy,
    pack_targets,
    unpack,
    unpack_copy,
    unpack_targets,
)
from edgewire.pipeline.node.stage import Place, Stage, StepResult
from edgewire.pipeline.node.state import SegmentState
from edgewire.task.process import configure_process
from edgewire.task.tensors import Tensors, count, mapped, only


class MiniBatch(NamedTuple):
    """A mini-batch, or a micro-batch, for one segment.

    `x`: the segment's input in wire layout. `targets`, `inputs`: for the loss, or the labels for a
    synthetic-gradient module; `targets` is None if the message holds none. `sent`: the integers to
    send to the nodes that need targets, only in the first segment.
    """

    x: Tensors
    targets: Tensors | None
    inputs: Tensors = ()
    sent: Sequence[Tensor] = ()


class Segments:
    """Trains the segments of the nodes that run in this process, and makes their replies."""

    def __init__(self, config: Config, folder: str | None) -> None:
        configure_process()
        self.config = config
        self.data = data_of(config, folder)
        self.samples = Samples(config, self.data, folder, whole=True)
        self.activations = codec_of(config)
        self.gradients = codec_of(config, "gradients")
        self.feedback = bool(config.strategy["feedback"])
        self._stages: dict[int, Stage] = {}  # by node

    def answer(self, message: Message, context: Context) -> Message:
        """Train a node's segment as a message asks; return the reply.

        Raises `PayloadError` for a wrong shape, for values that are not finite, and if the node
        does not hold the message's segment. A training step that fails does not change the segment.
        """
        start = time.perf_counter()
        config = cast(ConfigRecord, message.content["config"])
        arrays = cast(ArrayRecord, message.content.get("arrays", ArrayRecord()))
        kept = SegmentState(context.state)
        node = message.metadata.dst_node_id
        work = SegmentTask.of(config)
        stage = self._stage(work, arrays, kept, node)
        payloads = {name: array.data for name, array in arrays.items()}
        segment_step = SegmentStep(self, stage, work, payloads, kept)
        try:
            segment_step.take()
        finally:  # after an error, save the steps before it
            kept.save(stage)
        sent = payload_records(segment_step.sent)
        metrics = {**segment_step.metrics, STEPS: float(work.num_steps)}
        metrics[SECONDS] = time.perf_counter() - start
        header = written(UplinkHeader(work.number))
        content = {"arrays": sent, "metrics": MetricRecord(metrics), HEADER: header}
        return Message(filled(RecordDict, content), reply_to=message)

    def _stage(
        self, work: SegmentTask, arrays: ArrayRecord, kept: SegmentState, node: int
    ) -> Stage:
        """Return the `Stage` that trains a node's segment; load the message's snapshot, if any.

        Raises `PayloadError` if the node does not hold the segment and the message has no snapshot.
        """
        place, life = Place(work.segment, tuple(work.cuts)), work.life
        stage = self._stages.get(node)
        begins = "copy" in arrays
        if not begins and not kept.holds(place.segment, life):
            raise PayloadError(f"{NO_SEGMENT} {place.segment}, or not the one that is meant")
        if stage is None or stage.place != place or not (begins or kept.has(stage)):
            stage = self._stages[node] = Stage(self.config, self.data, place)
            if not begins:
                stage.load(*kept.segment())  # another process trained this segment last
        if begins:
            stage.load(*unpack_copy(arrays["copy"].data, stage.copy_form, whole=True))
            kept.begin(place.segment, life)
        return stage


hosts: dict[tuple[int, str | None], Segments] = {}


def segments_for(config: Config, folder: str | None) -> Segments:
    """Return this process's `Segments` for a configuration, cached because building takes long."""
    key = (id(config), folder)  # `load_config` returns the same object for the same text
    if key not in hosts:
        hosts.clear()
        hosts[key] = Segments(config, folder)
    return hosts[key]


@dataclass
class SegmentStep:
    """The training that one message asks of a segment; `sent`, `metrics`: for the reply."""

    host: Segments
    stage: Stage
    work: SegmentTask
    arrays: dict[str, bytes]
    kept: SegmentState
    sent: dict[str, bytes] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def take(self) -> None:
        """Do the message's task: training with synthetic gradients, or a forward or backward pass.

        With synthetic gradients, the module that predicts them is trained on the received gradients
        first. The input is decoded before that, so an error in it leaves the segment unchanged.
        """
        if self.work.phase == "backward":
            self._backward()
        elif self.work.phase:
            given = self._given()
            if self.work.phase == "train":
                self._learn()
            self._forward(given)
        if self.work.copy:
            vectors = self.stage.arrays(whole=self.work.copy == "all")
            self.sent["copy"] = pack_copy(vectors, self.stage.beside())

    def _learn(self) -> None:
        """Train the synthetic-gradient module on received gradients; count refused payloads."""
        errors: list[float] = []
        refused = 0
        for name, payload in self.arrays.items():
            if not name.startswith(GRADIENTS):
                continue
            first = int(name.removeprefix(GRADIENTS))
            sent = self.kept.pop(first)
            self.kept.forget(first)
            if sent is None:  # another node, which had this segment before, sent the outputs
                continue
            try:
                errors += self._train_module(first, payload, *sent)
            except PayloadError:
                refused += 1
        if errors:
            self.metrics[ERROR] = sum(errors) / len(errors)
        if refused:
            self.metrics[REFUSED] = refused

    def _train_module(self, first: int, payload: bytes, outputs: Any, labels: Any) -> list[float]:
        """Train the synthetic-gradient module on one payload; return its relative errors.

        `payload`: the gradients of `outputs`. `first`: the number of the first mini-batch.
        `outputs`, `labels`: the outputs and labels that this node has sent, one row per mini-batch.
        """
        shape = (outputs.shape[1], *self.stage.part.output)
        targets = unpack(payload, len(outputs), shape, f"{GRADIENTS_OF} {first}")
        errors: list[float] = []
        for k, target in enumerate(targets):
            of = None if labels is None else self._tensor(labels[k])
            h, t = self._tensor(outputs[k]), self._tensor(target)
            error = self.stage.learn(h, of, t, self.work.lr[0])
            errors += [] if error is None else [error]
        return errors

    def _forward(self, given: list[MiniBatch]) -> None:
        """Pass mini-batches on, or a micro-batch.

        With synthetic gradients, take a training step with each. In backpropagation, the last
        segment also does the backward pass.
        """
        work, place, stage = self.work, self.stage.place, self.stage
        trains, key = work.phase == "train", f"{work.batch}.{work.micro}"
        sees = place.ends or bool(stage.classes)
        if not trains and work.micro == 0:
            stage.forget(work.batch)
            self.kept.forget(work.batch)
        passed = list[StepResult]()
        for k, (x, targets, inputs, _) in enumerate(given):
            if trains:
                seen = targets if sees else None
                passed.append(stage.train(x, seen, work.batch + k, work.lr[k], inputs))
            elif place.ends:
                assert targets is not None
                passed.append(stage.loss(x, targets, key, work.micro == 0, inputs))
                self._step_if_last()
            else:
                passed.append(StepResult(stage.forward(x, key), None, None))
        outputs = _arrays(each.output for each in passed)
        back = _arrays(each.back for each in passed)
        losses = [each.loss for each in passed if each.loss is not None]
        if losses:
            self.metrics[LOSS] = sum(losses) / len(losses)
        self.metrics[EXAMPLES] = sum(count(each.x) for each in given)
        if outputs and trains:
            labels = [only(each.targets) for each in given if each.targets is not None and sees]
            every = np.stack(_arrays(labels)) if labels else None
            # A single array is not copied.
            stacked = outputs[0][None] if len(outputs) == 1 else np.stack(outputs)
            self.kept.put(work.batch, stacked, every)
        elif outputs and not place.begins:
            self.kept.put(work.batch, only(given[0].x).cpu().numpy()[None], None, work.micro)
        if outputs:
            self._send("output", outputs)
        if back:
            self._send("gradients", back)
        self._send_targets(given)

    def _send_targets(self, given: list[MiniBatch]) -> None:
        """From the first segment, send what the nodes of other segments need for the loss."""
        columns = [
            np.stack(_arrays(row)) for row in zip(*(each.sent for each in given), strict=True)
        ]
        if columns and not self.stage.place.ends:
            self.sent["labels"] = pack_targets(columns, targets_of(self.stage))

    def _backward(self) -> None:
        """Do a micro-batch's backward pass."""
        work, stage = self.work, self.stage
        payload = self.arrays.get(f"{GRADIENTS}{work.batch}")
        if payload is None:
            raise PayloadError(f"mini-batch {work.batch}: the message holds no gradients")
        shape = (work.samples, *stage.part.output)
        what = f"{GRADIENTS_OF} {work.batch}"
        (given,) = unpack(payload, 1, shape, what)
        key = f"{work.batch}.{work.micro}"
        back = stage.backward(key, self._tensor(given), self._again, first=work.micro == 0)
        self.metrics[EXAMPLES] = work.samples
        self._step_if_last()
        if back is not None:
            self._send("gradients", _arrays([back]))

    def _step_if_last(self) -> None:
        """Take the optimiser's step if this is the last micro-batch of its mini-batch."""
        work = self.work
        if work.micro == work.micros - 1:
            self.stage.finish(work.lr[0])

    def _again(self) -> Tensors:
        """Return the segment's input of a micro-batch, to repeat another process's forward pass."""
        if self.stage.place.begins:
            return self._samples()[0].x
        kept = self.kept.pop(self.work.batch, self.work.micro)
        if kept is None:
            raise PayloadError(f"mini-batch {self.work.batch} was not passed on by this node")
        return self._tensor(kept[0][0])

    def _given(self) -> list[MiniBatch]:
        """Return the message's mini-batches, or its micro-batch."""
        work, stage = self.work, self.stage
        if stage.place.begins:
            return self._samples()
        what = f"{ACTIVATIONS} {work.batch}"
        if "input" not in self.arrays:
            raise PayloadError(f"{what}: the message holds none")
        shape = (work.samples, *stage.part.input)
        inputs = [self._tensor(x) for x in unpack(self.arrays["input"], work.batches, shape, what)]
        if not stage.end_loss.tensors:
            return [MiniBatch(x, ()) for x in inputs]
        if "labels" not in self.arrays:
            if stage.place.ends:
                raise PayloadError(f"labels of mini-batch {work.batch}: the message holds none")
            return [MiniBatch(x, None) for x in inputs]
        rows = work.batches, work.samples
        columns = unpack_targets(self.arrays["labels"], rows, targets_of(stage))
        found = []
        for x, *row in zip(inputs, *columns, strict=True):
            whole, targets = stage.end_loss.received([self._tensor(each) for each in row])
            found.append(MiniBatch(x, targets, whole))
        return found

    def _samples(self) -> list[MiniBatch]:
        """Return the samples of the message's mini-batches, or of its micro-batch.

        They are the input of the first segment, with the axes of tensors that are sent.
        """
        work, found, samples = self.work, [], self.host.samples
        for number in range(work.batch, work.batch + work.batches):
            inputs, targets = samples.batch(Node(0, 1), number)
            raw = samples.raw(Node(0, 1), number) if self.stage.end_loss.needs_inputs else ()
            sent = self.stage.end_loss.sent(targets, raw)
            if work.micros > 1:
                inputs, targets = (mapped(self._micro, each) for each in (inputs, targets))
                sent = [self._micro(each) for each in sent]
            if not count(inputs):
                raise PayloadError(f"a mini-batch of fewer than {work.micros} samples")
            x = mapped(self.stage.segment.to_wire, inputs)
            found.append(MiniBatch(x, targets, inputs, sent))
        return found

    def _micro(self, tensor: Tensor) -> Tensor:
        return tensor.tensor_split(self.work.micros)[self.work.micro]

    def _send(self, name: str, tensors: list[Any]) -> None:
        host, segment = self.host, self.stage.place.segment
        codec = host.activations if name == "output" else host.gradients
        seed = codec_seed(host.config.seed, 2 * segment + (name == "output"), self.work.batch)
        memory = self.kept.memory(name) if host.feedback else None
        number = self.work.batch + 1
        self.sent[name] = pack(tensors, codec, memory=memory, seed=seed, number=number)

    def _tensor(self, array: Any) -> Tensor:
        """Return an array as a writable tensor. A read-only array, as from a payload, is copied."""
        if array.flags.writeable:
            return torch.from_numpy(array).to(self.host.samples.device)
        return torch.tensor(array, device=self.host.samples.device)


def targets_of(stage: Stage) -> list[TargetTensor]:
    """Return the tensors that the first segment's node sends to the last one for the loss."""
    return [TargetTensor(*each) for each in stage.end_loss.tensors]


def _arrays(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Return tensors as numpy arrays, without those that are None."""
    return [tensor.cpu().numpy() for tensor in tensors if tensor is not None]
