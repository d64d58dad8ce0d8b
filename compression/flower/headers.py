"""Headers of messages and replies, and the keys of their metrics and of their `config`.

A header is a ConfigRecord that the server and the nodes add to Flower's messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict

from ..base import PayloadError
from .records import filled, metadata_of, records, values_of

HEADER = "edgewire"  # the name of the ConfigRecord that holds a header
HEALS = "will be sent whole next time"  # ends an error; the server then sends the whole model
ROUND = "server-round"  # the key under which Flower's strategies send the number of a round
# Metrics of a reply. `edgewire.task.steps.Evaluation` declares the metrics of an evaluation.
LOSS = "loss"  # mean over the samples; read by servers, and by codecs that depend on it
ACCURACY = "accuracy"  # of an evaluation, from 0 to 1
EXAMPLES = "num-examples"  # number of samples that the update was trained on; read by servers
STEPS = "num-steps"  # number of local steps; read by servers, and by the virtual clock
SECONDS = "seconds"  # real seconds that the node has worked; read by servers
KEYS = "/keys"  # ends the name of a sum that is a list of keys (`edgewire.task.objectives.base`)
DRIFT = "drift"  # L2 distance between the node's model and the server's (`NodeReplica.masked`)

# The names that take one byte in compact records (`compact_records.py`). Their order is part of the
# format, so a new name must be appended.
NAMES = (
    *("edgewire", "config", "metrics"),
    *("number", "applied", "undecided", "workers", "exact", "version", "base", "rates"),
    *("checksum", "initial", "copies", "tied", "sequence", "whole", "named", "untied"),
    *("lr", "proximal-mu", "server-round"),
    *("loss", "accuracy", "num-examples", "num-steps", "seconds", "drift"),
    *("density_factor", "most-steps", "more_bits", "common"),
)

MOST = 1 << 62  # larger than any count
N = TypeVar("N", "DownlinkHeader", "UplinkHeader")


class DownlinkHeader(NamedTuple):
    """Header of a server's message, for the node's `CompressionMod`; fields of None are not sent.

    - `number`: the number of the requested update, from 1. It is the number of the round, or the
      count of messages to this node. It seeds the codec's random numbers.
    - `applied`: the sequence number of the node's last applied reply (0: none was applied).
    - `undecided`: 1 if `applied` is unknown, because the node has not replied to an earlier message
      yet.
    - `workers`: how many updates the server averages in its next step.
    - `exact`: patterns of names. Tensors with such a name are sent exactly, in their own dtype.
    - `version`: the version of the model that the node has, and stores, after this message.
    - `base`: the version that the payloads are differences from. None: the message holds the whole
      model.
    - `rates`: the learning rates of the server's steps from `base` to `version`. The message holds
      one payload per step. None: the message holds one payload, the difference of the versions.
    - `checksum`: the checksum of the node's model after this message (xxh3, 8 bytes).
    - `initial`: the checksum of the native tensors at the start of the run. Native tensors are sent
      beside a flat vector in their own dtype (`native_tensors.py`).
    - `copies`: names of the tensors that the payload leaves out, because each equals another tensor
      of the model.
    - `tied`: for each of these copies two positions in the model: its own, then that of the equal
      tensor (`tied_weights.py`).
    - `density_factor`: by which the sparsifier's density is multiplied in the reply. None: 1.
    - `more_bits`: how many bits per value the quantizer of the reply takes more. None: 0.
    - `common`: what all nodes have in common, for a quantizer whose levels are summed over the
      nodes (`quantizers/grid.py`). None: nothing.
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
    density_factor: float | None = None
    more_bits: int | None = None
    common: list[int] | None = None


class UplinkHeader(NamedTuple):
    """Header of a node's reply, for the server's `CompressedGrid`; fields of None are not sent.

    - `number`: the `number` of the message that the node replies to. The server uses it to
      recognise a reply that arrives twice.
    - `sequence`: the sequence number of the update, from 1. It is sent only if the node has a
      residual or a pending record (`CompressionMod`), because then the node must know whether the
      update is applied.
    - `version`: the version of the model that the node has now.
    - `whole`: 1 if the payload is the model, None if it is the change of the model.
    - `named`: 1 if the payload holds the names of its tensors. It is 1 if the app returned other
      tensors than those in the message.
    - `untied`: the positions of some tensors. In the message, each was left out as a copy of
      another tensor (`DownlinkHeader.tied`). The payload holds these tensors, usually because they
      differ now. It leaves out all other copies, unless `named` is 1.
    """

    number: int | None = None
    sequence: int | None = None
    version: int | None = None
    whole: int | None = None
    named: int | None = None
    untied: list[int] | None = None


class TrainConfig(NamedTuple):
    """A message's `config` for local training, read by the node's ClientApp.

    `lr`: the learning rate. `number`: the number of the update, from 1. It is the number of the
    round, or the count of messages to this node. It seeds the node's random numbers.
    `proximal_mu`: the weight of FedProx's proximal term. `most_steps`: the most local steps, also
    if the node's configuration says more; 0: no bound.
    """

    lr: float
    number: int
    proximal_mu: float = 0.0
    most_steps: int = 0

    def config(self) -> dict[str, float | int]:
        """Return these fields as a message's `config`."""
        proximal = {"proximal-mu": self.proximal_mu} if self.proximal_mu else {}
        bound = {"most-steps": self.most_steps} if self.most_steps else {}
        return {"lr": self.lr, "number": self.number, **proximal, **bound}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> TrainConfig:
        """Read a `config` that one of this project's servers or Flower's strategies wrote."""
        number = config["number"] if "number" in config else config[ROUND]
        most = config.get("most-steps", 0)
        if not _number(most):
            raise PayloadError(f"the server's most-steps must be a whole number, not {brief(most)}")
        return cls(config["lr"], number, config.get("proximal-mu", 0.0), most)


def server_round(content: RecordDict) -> int | None:
    """Return the round number that Flower's strategies write into messages; None if absent."""
    config = next(iter(records(content, ConfigRecord)), ("", ConfigRecord()))[1]
    said = config.get(ROUND)
    return said if type(said) is int and said > 0 else None


def number(metrics: Mapping[str, Any], name: str) -> float:
    """Return a metric as a float.

    Raises `PayloadError` if the metric is absent, not a finite number, or an integer of 2**63 or
    more.
    """
    value = metrics.get(name)
    most = 2 * MOST if type(value) is int else math.inf
    if isinstance(value, int | float) and abs(value) < most:
        return float(value)
    raise PayloadError(f"its metric {name!r} must be a finite number, not {brief(value)}")


def is_count(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number of at least 0."""
    return isinstance(value, int | float) and 0 <= value < math.inf


def brief(value: object) -> str:
    """Return a value as text for a log: one line of about 80 characters at most."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= MOST:
        return f"an integer of {value.bit_length()} bits"
    cut = value[:81] if isinstance(value, str | bytes) else value
    text = repr(cut)
    return text if len(text) <= 80 else f"{text[:80]}..."


def trains(message: Message) -> bool:
    """Return whether a message is for training; then its reply holds a model or an update."""
    kind: str = metadata_of(message)["_message_type"]
    return kind == "train" or kind[:6] == "train."


def written(header: DownlinkHeader | UplinkHeader) -> ConfigRecord:
    """Return a ConfigRecord with a header's fields, except those that are None."""
    pairs = zip(header._fields, header, strict=True)
    return filled(ConfigRecord, {key: value for key, value in pairs if value is not None})


def read(content: RecordDict, kind: type[N]) -> N:
    """Return a message's header; without a header, return one with None in all fields.

    `kind`: `DownlinkHeader` or `UplinkHeader`. Raises `PayloadError` for an unknown field, or a
    value of another type than the field's.
    """
    record: object = values_of(content).get(HEADER)
    if record is None:
        return kind()
    if not isinstance(record, ConfigRecord):
        raise PayloadError(f"the record {HEADER!r} must be a ConfigRecord")
    types = TYPES[kind]
    said = values_of(record)
    for key, value in said.items():
        if key not in types or not types[key](value):
            raise PayloadError(f"the record {HEADER!r} holds {brief(value)} as {key[:40]}")
    return kind(**said)


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


# For each type of a header's fields: whether a value fits.
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _number,
    "float": lambda value: type(value) is float and 0 < value < math.inf,
    "bytes": lambda value: type(value) is bytes and len(value) == 8,
    "list[float]": lambda value: type(value) is list and {*map(type, value)} <= {float},
    "list[int]": lambda value: type(value) is list and all(map(_number, value)),
    "list[str]": lambda value: type(value) is list and {*map(type, value)} <= {str},
}
TYPES: dict[type[DownlinkHeader] | type[UplinkHeader], dict[str, Callable[[Any], bool]]] = {
    kind: {
        key: _FITS[str(getattr(said, "__forward_arg__", said)).removesuffix(" | None")]
        for key, said in kind.__annotations__.items()
    }
    for kind in (DownlinkHeader, UplinkHeader)
}
