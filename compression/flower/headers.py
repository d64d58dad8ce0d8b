"""What a message and its reply say beside arrays and metrics: declared here, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

from flwr.app import ConfigRecord, Message, RecordDict

from ..base import PayloadError
from .records import filled, records

NOTE = "edgewire"  # the name of the ConfigRecord that holds a note
HEALS = "will be sent whole next time"  # ends an error that the server answers by doing so
ROUND = "server-round"  # what Flower's strategies call the number of a round
# Metrics of a reply. Beside these, `task.steps.Evaluation` has those of an evaluation.
LOSS = "loss"  # mean over the samples; read by servers, and by codecs that steer by it
ACCURACY = "accuracy"  # of an evaluation, from 0 to 1
EXAMPLES = "num-examples"  # samples that the update was made from; read by servers
STEPS = "num-steps"  # local steps it took; read by servers, and by the virtual clock
SECONDS = "seconds"  # real ones that the node has worked; read by servers
DRIFT = "drift"  # distance of the node's own model from the server's (CE-SGD's line 7)
ERROR = "prediction-error"  # of a synthetic gradient; read by the server of a cut model
REFUSED = "gradients-refused"  # how many a segment could not learn from; read by that server

MOST = 1 << 62  # beyond all numbers that are counted
N = TypeVar("N", "DownlinkHeader", "UplinkHeader")


class DownlinkHeader(NamedTuple):
    """From the server, read by the node's `CompressionMod`; what is None or empty does not travel.

    `number`: of the update that is asked for, from 1: a round, or how many messages this node was
    sent; a codec's draws come from it. `applied`: the number of the node's last reply that is in
    the model (0: none). `undecided`: 1 if nobody can say that, as another message to the node is
    under way. `workers`: how many updates make the server's next step. `exact`: patterns of names
    of tensors that travel in their own type. `version`: of the model that the node has once it has
    read the message; it is to be kept. `base`: the version on which the payloads build; without,
    the model comes whole. `rates`: of the steps that lead from `base` to `version`, a payload each;
    without, the payload is the difference. `checksum`: of the model that the node then has (xxh3, 8
    bytes). `initial`: that of the native tensors, those beside a flat vector, as the run began with
    them (`native_tensors.py`); of a model that has such. `copies`: names of tensors that the
    payload leaves out, as they are equal to others of the model; `tied`: for each its place among
    all tensors, and that of the other (`tied_weights.py`).
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
    """From a node, read by the server's `CompressedGrid`.

    `number`: of the message that this is the reply to, so that none counts twice. `sequence`: of
    the update, from 1, of a node that must know whether it is applied. `version`: of the model that
    the node has now. `whole`: 1 if the payload is the model and not what has changed in it.
    `named`: 1 if the payload names its tensors: they are not those that the node was sent.
    `untied`: places of copies, of those that the message told of, that the payload holds: they are
    not equal to the other tensor any more. All others it leaves out, unless it names its tensors.
    """

    number: int | None = None
    sequence: int | None = None
    version: int | None = None
    whole: int | None = None
    named: int | None = None
    untied: list[int] | None = None


class TrainConfig(NamedTuple):
    """Read by the node's ClientApp from a message's `config`.

    `lr`: the learning rate; `number`: of the update, from 1: the round, or how many messages this
    node was sent: a node's draws come from it; `proximal_mu`: the pull towards the model received.
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
        """Read what our servers have written, or Flower's strategies (`server-round`)."""
        number = config["number"] if "number" in config else config[ROUND]
        mu = cast(float, config.get("proximal-mu", 0.0))
        return cls(cast(float, config["lr"]), cast(int, number), mu)


class SegmentTask(NamedTuple):
    """What a message asks of a segment of a cut model; read by the node's ClientApp from `config`.

    `segment`, of the model cut at the layers `cuts`, handed out for the `life`-th time. `phase`:
    train, forward, backward, or "" for nothing but a copy. `batch`: the first of `batches`
    mini-batches, or `micro` of its `micros` micro-batches, each of `samples` samples (the first
    node knows itself), each with its `lr`. `copy`: what to send of the segment: "", weights, all.
    `num-steps`: what it costs, in steps of the whole model; for the virtual clock.
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
        """What the reply says that it is the reply to: the number of the (micro-)batch, from 1."""
        return self.batch * self.micros + self.micro + 1

    def config(self) -> dict[str, Any]:
        """Return the message's keys and values."""
        return {key.replace("_", "-"): value for key, value in self._asdict().items()}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> SegmentTask:
        """Read what the server has written."""
        return cls(*(config[key.replace("_", "-")] for key in cls._fields))


def server_round(content: RecordDict) -> int | None:
    """Return the round, as Flower's strategies write it into messages; None: it says none."""
    config = next(iter(records(content, ConfigRecord)), ("", ConfigRecord()))[1]
    said = config.get(ROUND)
    return said if type(said) is int and said > 0 else None


def number(metrics: Mapping[str, Any], name: str) -> float:
    """Return a metric. Raises `PayloadError` if it is no finite number, or an integer of over 62
    bits: Python's may be too large for a float.
    """
    value = metrics.get(name)
    most = 2 * MOST if type(value) is int else math.inf
    if isinstance(value, int | float) and abs(value) < most:
        return float(value)
    raise PayloadError(f"its metric {name!r} must be a finite number, not {brief(value)}")


def brief(value: object) -> str:
    """Return a value as a log may hold it: in one line, and no longer than 80 characters."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= MOST:
        return f"an integer of {value.bit_length()} bits"
    cut = value[:81] if isinstance(value, str | bytes) else value
    text = repr(cut)
    return text if len(text) <= 80 else f"{text[:80]}..."


def trains(message: Message) -> bool:
    """Return whether a message asks for training: what is answered is the model, or a change."""
    return message.metadata.message_type.partition(".")[0] == "train"


def written(note: DownlinkHeader | UplinkHeader) -> ConfigRecord:
    """Return a note as a record."""
    said = zip(note._fields, note, strict=True)
    return filled(ConfigRecord, {key: value for key, value in said if value is not None})


def read(content: RecordDict, kind: type[N]) -> N:
    """Return a message's note; an empty one if there is none.

    Raises `PayloadError` for what no note says: it comes from another program.
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
