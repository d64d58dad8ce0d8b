"""A node of a cut model: activations in; its segment trained; activations and gradients out.

What a message holds (its ArrayRecord): `input`, the output of the segment before; `labels`;
`gradients-T`, of what this node sent for the mini-batches from T on; `copy`, a segment to begin
with. What a reply holds: `output`; `labels`, from the first node; `gradients`, of the input;
`copy`, if the server asks for one. Each is one payload.
"""

from __future__ import annotations

import time
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from client.batches import Samples
from client.segment.stage import Place, Stage
from client.segment.state import SegmentState
from client.segment.step import SegmentStep
from compression import PayloadError
from compression.flower import filled
from compression.flower.batch_tensors import NO_SEGMENT, unpack_copy
from compression.flower.headers import NOTE, SECONDS, STEPS, SegmentTask, UplinkHeader, written
from compression.flower.records import payload_records
from conf import Config
from conf.build import data_of
from conf.codecs import codec_of, gradients_of
from task.process import configure_process


class Segments:
    """Answers for all nodes of a process that hold segments of a configuration's model."""

    def __init__(self, config: Config, folder: str | None) -> None:
        configure_process()
        self.config = config
        self.data = data_of(config, folder)
        self.samples = Samples(config, self.data, folder, whole=True)
        self.activations = codec_of(config)
        self.gradients = gradients_of(config)
        self.feedback = bool(config.strategy["feedback"])
        self._stages: dict[int, Stage] = {}  # by node

    def answer(self, message: Message, context: Context) -> Message:
        """Do what a message asks for.

        Raises `PayloadError`, the segment as it was, for what cannot be used: another shape, values
        that are not finite, a message for a segment that this node does not hold.
        """
        start = time.perf_counter()
        config = cast(ConfigRecord, message.content["config"])
        arrays = cast(ArrayRecord, message.content.get("arrays", ArrayRecord()))
        kept = SegmentState(context.state)
        node = message.metadata.dst_node_id
        work = SegmentTask.of(config)
        stage = self._stage(work, arrays, kept, node)
        turn = SegmentStep(self, stage, work, arrays, kept)
        try:
            turn.take()
        finally:  # what went well stays, whatever came after it
            kept.save(stage)
        sent = payload_records(turn.sent)
        metrics = {**turn.metrics, STEPS: float(work.num_steps)}
        metrics[SECONDS] = time.perf_counter() - start
        note = written(UplinkHeader(work.number))
        content = {"arrays": sent, "metrics": MetricRecord(metrics), NOTE: note}
        return Message(filled(RecordDict, content), reply_to=message)

    def _stage(
        self, work: SegmentTask, arrays: ArrayRecord, kept: SegmentState, node: int
    ) -> Stage:
        """Return the segment that a node holds, or is to hold from now on."""
        place, life = Place(work.segment, tuple(work.cuts)), work.life
        stage = self._stages.get(node)
        if "copy" in arrays:
            if stage is None or stage.place != place:
                stage = self._stages[node] = Stage(self.config, self.data, place)
            stage.begin(*unpack_copy(arrays["copy"].data, stage.copy_form, whole=True))
            kept.begin(place.segment, life)
            return stage
        if not kept.holds(place.segment, life):
            raise PayloadError(f"{NO_SEGMENT} {place.segment}, or not the one that is meant")
        if stage is None or stage.place != place or not kept.has(stage):
            stage = self._stages[node] = Stage(self.config, self.data, place)
            stage.load(*kept.segment())  # another process had it
        return stage


hosts: dict[tuple[int, str | None], Segments] = {}


def segments_for(config: Config, folder: str | None) -> Segments:
    """Return what this process holds of a configuration's model (kept: it is expensive)."""
    key = (id(config), folder)  # `load_config` returns the same object for the same text
    if key not in hosts:
        hosts.clear()
        hosts[key] = Segments(config, folder)
    return hosts[key]
