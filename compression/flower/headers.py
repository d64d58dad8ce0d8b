"""Headers of messages and replies: all fields besides arrays and metrics are declared here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

from flwr.app import ConfigRecord, Message, RecordDict

from ..base import PayloadError
from .records import filled, records

NOTE = "edgewire"  # the name of the ConfigRecord that holds a header
HEALS = "will be sent whole next time"  # ends an error after which the server sends a whole model
ROUND = "server-round"  # the key for the number of a round in Flower's strategies
# Metrics of a reply. `task.steps.Evaluation` declares those of an evaluation.
LOSS = "loss"  # mean over the samples; read by servers, and by codecs that depend on it
ACCURACY = "accuracy"  # of an evaluation, from 0 to 1
EXAMPLES = "num-examples"  # number of samples that the update was trained on; read by servers
STEPS = "num-steps"  # number of local steps; read by servers, and by the virtual clock
SECONDS = "seconds"  # real seconds that the node has worked; read by servers
DRIFT = "drift"  # distance of the node's own model from the server's (CE-SGD's line 7)
ERROR = "prediction-error"  # of a synthetic gradient; read by the server of a partitioned model
REFUSED = "gradients-refused"  # gradients that a segment could not use; read by the same server

MOST = 1 << 62  # larger than any count
N = TypeVar("N", "DownlinkHeader", "UplinkHeader")


class DownlinkHeader(NamedTuple):
    """Header of a server's message, read by the node's `CompressionMod`; None is not sent.

    `number`: the number of the requested update, from 1: a round, or how many messages this node
    was sent; it seeds the codec's draws. `applied`: the number of the node's last reply that is in
    the model (0: none). `undecided`: 1 if that is unknown, because another message to the node is
    under way. `workers`: how many updates the server averages in its next step. `exact`: patterns
    of names of tensors that travel in their own type. `version`: the version that the node has
    after it has read the message; the node stores it. `base`: the version on which the payloads
    build; without it the message holds the whole model. `rates`: the learning rates of the server's
    steps from `base` to `version`, one payload each; without them the payload is the difference.
    `checksum`: of the node's model after the message (xxh3, 8 bytes). `initial`: the checksum of
    the native tensors, those beside a flat vector, at the start of the run (`native_tensors.py`).
    `copies`: names of tensors that the payload leaves out, because they equal other tensors of the
    model; `tied`: for each copy its place among all tensors, and its source's (`tied_weights.py`).
    """

    number: int | None = None
    applied: int | None = None
    undecided: int | None = None
    workers: int | None = None
    exact: list[str] | None = None
    version: int | None = None
    base: int | None = None
    rates: list[float] | None = None
    checksum: bytes | None = None
    initial: bytes | None = None
    copies: list[str] | None = None
    tied: list[int] | None = None


class UplinkHeader(NamedTuple):
    """Header of a node's reply, read by the server's `CompressedGrid`.

    `number`: the number of the message that this replies to, so that no reply counts twice.
    `sequence`: the update's number, from 1, if the node must know whether the update is applied.
    `version`: the version that the node has now. `whole`: 1 if the payload is the model, not its
    change. `named`: 1 if the payload names its tensors, because they differ from those sent.
    `untied`: places of the message's copies that the payload holds, because they no longer equal
    their sources. The payload leaves out all other copies, unless it names its tensors.
    """

    number: int | None = None
    sequence: int | None = None
    version: int | None = None
    whole: int | None = None
    named: int | None = None
    untied: list[int] | None = None


class TrainConfig(NamedTuple):
    """A message's `config` for local training, read by the node's ClientApp.

    `lr`: the learning rate. `number`: the update's number, from 1: the round, or how many messages
    this node was sent; it seeds the node's draws. `proximal_mu`: weight of FedProx's proximal term.
    """

    lr: float
    number: int
    proximal_mu: float = 0.0

    def config(self) -> dict[str, float | int]:
        """Return the message's keys and values."""
        proximal = {"proximal-mu": self.proximal_mu} if self.proximal_mu else {}
        return {"lr": self.lr, "number": self.number, **proximal}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> TrainConfig:
        """Read the `config` of this project's servers, or of Flower's strategies."""
        number = config["number"] if "number" in config else config[ROUND]
        mu = cast(float, config.get("proximal-mu", 0.0))
        return cls(cast(float, config["lr"]), cast(int, number), mu)


class SegmentTask(NamedTuple):
    """Task for a segment of a partitioned model; read by the node's ClientApp from `config`.

    `segment`: the segment's number. `cuts`: the layers at which the model is cut. `life`: how many
    times this segment was handed out. `phase`: train, forward, backward, or "" for only a snapshot.
    `batch`: the first of `batches` mini-batches, each with its `lr`. `micro`: the number of the
    micro-batch. `micros`: how many there are. `samples`: samples in each (the first segment's node
    knows its own). `copy`: what to send of the segment: "", weights, all. `num-steps`: the cost in
    steps of the whole model, for the virtual clock.
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
        """The number that the reply's header repeats: that of the (micro-)batch, from 1."""
        return self.batch * self.micros + self.micro + 1

    def config(self) -> dict[str, Any]:
        """Return the message's keys and values."""
        return {key.replace("_", "-"): value for key, value in self._asdict().items()}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> SegmentTask:
        """Read the `config` that the server has written."""
        return cls(*(config[key.replace("_", "-")] for key in cls._fields))


def server_round(content: RecordDict) -> int | None:
    """Return the round that Flower's strategies write into messages; None if there is none."""
    config = next(iter(records(content, ConfigRecord)), ("", ConfigRecord()))[1]
    said = config.get(ROUND)
    return said if type(said) is int and said > 0 else None


def number(metrics: Mapping[str, Any], name: str) -> float:
    """Return a metric as a float.

    Raises `PayloadError` if it is no finite number, or an integer of 2**63 or more.
    """
    value = metrics.get(name)
    most = 2 * MOST if type(value) is int else math.inf
    if isinstance(value, int | float) and abs(value) < most:
        return float(value)
    raise PayloadError(f"its metric {name!r} must be a finite number, not {brief(value)}")


def brief(value: object) -> str:
    """Return a value as text for a log: in one line, about 80 characters at most."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= MOST:
        return f"an integer of {value.bit_length()} bits"
    cut = value[:81] if isinstance(value, str | bytes) else value
    text = repr(cut)
    return text if len(text) <= 80 else f"{text[:80]}..."


def trains(message: Message) -> bool:
    """Return whether a message asks for training: its reply holds the model, or its change."""
    return message.metadata.message_type.partition(".")[0] == "train"


def written(note: DownlinkHeader | UplinkHeader) -> ConfigRecord:
    """Return a header as a record, without the fields that are None."""
    said = zip(note._fields, note, strict=True)
    return filled(ConfigRecord, {key: value for key, value in said if value is not None})


def read(content: RecordDict, kind: type[N]) -> N:
    """Return a message's header; an empty one if there is none.

    Raises `PayloadError` for unknown fields or types: another program has written them.
    """
    record: object = content.get(NOTE, None)
    if record is None:
        return kind()
    if not isinstance(record, ConfigRecord):
        raise PayloadError(f"the record {NOTE!r} must be a ConfigRecord")
    types = TYPES[kind]
    for key, value in record.items():
        if key not in types or not _fits(types[key], value):
            raise PayloadError(f"the record {NOTE!r} holds {brief(value)} as {key[:40]}")
    return kind(**cast(Mapping[str, Any], record))


TYPES: dict[type[DownlinkHeader] | type[UplinkHeader], dict[str, str]] = {
    kind: {
        key: str(getattr(said, "__forward_arg__", said)).removesuffix(" | None")
        for key, said in kind.__annotations__.items()
    }
    for kind in (DownlinkHeader, UplinkHeader)
}


def _fits(kind: str, value: object) -> bool:
    match kind:
        case "int":
            return type(value) is int and 0 <= value < MOST
        case "bytes":
            return type(value) is bytes and len(value) == 8
        case "list[float]":
            return isinstance(value, list) and all(type(each) is float for each in value)
        case "list[int]":
            return isinstance(value, list) and all(_fits("int", each) for each in value)
        case _:
            return isinstance(value, list) and all(type(each) is str for each in value)
