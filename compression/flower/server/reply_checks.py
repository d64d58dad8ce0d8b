"""Checks whether a reply to a `CompressedGrid` can be used: its tensors, values and metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from ...base import PayloadError, Vector, is_finite, quiet
from ...batchnorm import below_zero, expect_counts
from ...codec import Codec
from ...decoder import Update, declared
from ...layout import Layout
from ...wire_natives import NativeTensor
from ..headers import ACCURACY, EXAMPLES, KEYS, LOSS, MOST, brief, number
from ..records import filled, layout_of, records
from ..tensor_split import (
    Model,
    TensorSplit,
    form_as_declared,
    form_of_models,
    form_of_updates,
    is_float,
    moved,
)
from ..tied_weights import Ties

# Least and largest values of metrics, if a strategy gives no others.
BOUNDS = {LOSS: (0.0, math.inf), ACCURACY: (0.0, 1.0)}
ROUNDING = 1e-9  # by which a metric of means may be beyond its bounds
Measure = Callable[[Mapping[str, Any]], Mapping[str, float]]


@dataclass(frozen=True)
class ReplyRules:
    """What a node's reply must hold; a strategy gets an error in place of any other reply.

    `uplink`: the nodes' codec, if all have the same; None accepts any method. `weighted_by_key`:
    the metric with a node's weight; if a reply has this metric, the weight must be above 0 and
    below 2^63. `metrics`: by message type, the names of the metrics that a reply must hold, as
    finite numbers. All other records except the model are deleted from the reply. `uneven`: True if
    the replies of one round may hold different records. Otherwise a reply whose records differ from
    those of most replies is left out. `bounds`: the least and the largest value of a metric.
    `sums`: by message type, if a reply holds sums over the node's samples in place of `metrics`: a
    function of their means over the samples, which returns the metrics. A strategy gets the means.
    """

    uplink: Codec | None = None
    weighted_by_key: str = EXAMPLES
    metrics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    uneven: bool = False
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=lambda: BOUNDS)
    sums: Mapping[str, Measure] = field(default_factory=dict)


class SentMessage(NamedTuple):
    """What the server stores about a message until the node replies to it."""

    node: int
    number: int  # `number` in the message's header
    kind: str  # the message's type
    name: str  # name of the record with the model
    train: bool
    form: TensorSplit
    start: Model  # the model that the node's update starts from
    plain_bytes: int  # the model's bytes without compression
    natives: Mapping[str, NDArray[Any]] = {}  # native tensors, which are not in a flat vector
    ties: Ties = ()  # copies that the message left out (`tied_weights.py`)


# Limits for a reply with other tensors than the message: MOST_SIZE times the bytes and the tensors
# of the message's model. For a small model LEAST_BYTES and LEAST_TENSORS are allowed.
MOST_SIZE = 4
LEAST_BYTES, LEAST_TENSORS = 1 << 18, 256


def expected(
    payload: bytes, sent: TensorSplit, *, whole: bool, named: bool, counts: Collection[str] = ()
) -> TensorSplit:
    """Return how a reply's payload must split the model (`TensorSplit`).

    `sent`: the `TensorSplit` for changes of the message's model. `whole`, `named`: fields of the
    reply's header (`UplinkHeader`). `counts`: names of tensors that were not floats in an earlier
    model. If `named`, the payload's header lists its tensors, and these may differ from the
    message's tensors.

    Raises `PayloadError`, before any value is decoded, for more bytes or tensors than a reply may
    have, for another dtype than in the message (unless both are floats or `counts` holds the
    tensor's name), and for a tensor in the float32 vector that must be beside it, or the reverse.
    """
    if not named:
        return form_of_models(sent) if whole else sent
    size = sum(map(_bytes_of, sent.whole.shapes, sent.whole.dtypes))
    most = max(MOST_SIZE * size, LEAST_BYTES)
    tensors = max(MOST_SIZE * len(sent.whole), LEAST_TENSORS)
    layout, own = declared(payload, max_size=most, max_tensors=tensors)
    if sum(map(_bytes_of, layout.shapes, layout.dtypes)) > most:
        raise PayloadError(f"its tensors have more than the {most} bytes that are allowed here")
    before = dict(zip(sent.whole.names, sent.whole.dtypes, strict=True))
    for name, dtype in zip(layout.names, layout.dtypes, strict=True):
        was = before.get(name, dtype)
        if dtype != was and not (is_float(was) and (is_float(dtype) or name in counts)):
            raise PayloadError(f"{brief(name)} comes as {dtype}, {was} was sent")
    there, form = form_as_declared(layout, own), form_of_updates(layout, sent.patterns)
    form = form_of_models(form) if whole else form
    if own != form.beside:
        odd = layout.names[min({*own} ^ {*form.beside})]
        raise PayloadError(f"{brief(odd)} travels in another part of the payload than is asked")
    return there


def _bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    """Return a tensor's bytes, with 8 bytes per entry for 64-bit types and 4 for all others."""
    return math.prod(shape) * (8 if dtype.endswith("64") else 4)


@quiet
def answered(
    update: Update, form: TensorSplit, sent: TensorSplit, start: Model, *, whole: bool
) -> Model:
    """Return the node's model, from its decoded update and the model that it got.

    `form`: the payload's, from `expected`. `sent`, `start`: of the message's model. `whole`: True
    if the payload holds the model, not its change. Raises `PayloadError` for values beyond float32
    or a tensor's own dtype, for a negative running variance or counter of BatchNorm, and for
    infinity in a native tensor that was finite before.
    """
    if not whole and form is not sent:
        start = moved(start, sent, form)
    vector = update.dense() if whole else update.model_from(start.vector)
    if not is_finite(vector):
        raise PayloadError("the update leads to values beyond float32")
    _expect_in_range(form.layout, vector)
    _expect_as_finite(update.own, start.own)
    if below_zero(form.layout, vector):
        raise PayloadError("its update holds a running variance below 0")
    expect_counts(update.own)
    return Model(vector, update.own)


def _expect_in_range(layout: Layout, vector: Vector) -> None:
    """Raise `PayloadError` for a value that a float16 tensor of the model cannot hold."""
    for name, dtype, start, stop in zip(
        layout.names, layout.dtypes, layout.offsets, layout.offsets[1:], strict=False
    ):
        if dtype == "float16" and not np.isfinite(vector[start:stop].astype(np.float16)).all():
            raise PayloadError(f"the update leads to values beyond float16 in {name}")


def _expect_as_finite(own: Sequence[NativeTensor], start: Sequence[NativeTensor]) -> None:
    """Raise `PayloadError` for infinity or NaN in an entry that was finite in the message."""
    before = {each.name: each.array for each in start}
    for each in own:
        wrong = ~np.isfinite(each.array)
        was = before.get(each.name, np.zeros(()))
        if wrong.any() and (was.shape != wrong.shape or np.isfinite(was[wrong]).any()):
            raise PayloadError(f"its update holds infinity in {each.name}")


def rebuilt(content: RecordDict, sent: SentMessage, rules: ReplyRules) -> RecordDict:
    """Return a reply's content with only the metrics that `rules` name and the trained model.

    If the reply holds sums, their means over the samples replace them, whatever their names.

    Raises `PayloadError` for a metric that is missing, not a finite number, or outside its bounds.
    Also raises it for a reply to training that does not hold exactly one model.
    """
    metrics = dict[str, Any]()
    for _, each in records(content, MetricRecord):
        metrics |= each
    if measure := rules.sums.get(sent.kind):
        metrics = _means(metrics, rules.weighted_by_key)
        try:
            measured = measure(metrics)
        except Exception as error:  # the names and the lengths are not checked yet
            raise PayloadError(f"its sums give no metrics ({type(error).__name__})") from error
    else:
        measured = {name: number(metrics, name) for name in rules.metrics[sent.kind]}
        metrics = {name: metrics[name] for name in measured}
    for name, value in measured.items():
        low, high = rules.bounds.get(name, (-math.inf, math.inf))
        slack = ROUNDING if measure else 0.0
        if not low - slack <= value <= high + slack:
            raise PayloadError(f"its {name} must be from {low:g} to {high:g}, not {value!r}")
    made: dict[str, Any] = {}
    if sent.train:
        models = [each for _, each in records(content, ArrayRecord)]
        if len(models) != 1:
            raise PayloadError(f"a reply to train must hold one ArrayRecord, not {len(models)}")
        made[sent.name] = models[0]
    made["metrics"] = filled(MetricRecord, metrics)
    return filled(RecordDict, made)


def _means(sums: Mapping[str, Any], weight: str) -> dict[str, Any]:
    """Return sums over samples divided by the number of samples, which is the metric `weight`.

    Lists of keys stay as they are. Raises `PayloadError` unless they are integers from 0 on, and at
    most one for each sample and group.
    """
    samples = usable_weight(sums.get(weight), weight)
    found = dict[str, Any]()
    for name, total in sums.items():
        if name.endswith(KEYS):
            keys = np.array(total)
            counted = keys.dtype == np.int64 and keys.ndim == 1 and keys.min() >= 0
            if not counted or most_in_group(keys) > samples:
                raise PayloadError(f"its {brief(name)} are not the keys of {samples:g} samples")
            found[name] = total
            continue
        several = isinstance(total, list)
        means = [number({name: x / samples}, name) for x in (total if several else [total])]
        found[name] = means if several else means[0]
    return {**found, weight: sums[weight]}


def most_in_group(keys: NDArray[np.int64]) -> int:
    """Return the number of keys in the largest group, of which each has its own bits from 33 on."""
    return int(np.unique(keys >> 33, return_counts=True)[1].max())


def weight_of(content: RecordDict, key: str) -> float:
    """Return a node's weight in the average, the metric `key` in its reply's only MetricRecord.

    Raises `PayloadError` for any other reply: Flower's strategy would discard the whole round.
    """
    metrics = records(content, MetricRecord)
    if len(metrics) != 1:
        raise PayloadError("a reply must hold one MetricRecord")
    return usable_weight(metrics[0][1].get(key), key)


def usable_weight(weight: object, key: str) -> float:
    """Return a weight, the metric `key`, as a float; raises `PayloadError` for other values."""
    if not isinstance(weight, int | float) or not 0 < weight < 2 * MOST:
        raise PayloadError(f"{key} must be a number above 0, below 2^63, not {brief(weight)}")
    return float(weight)


def expect_weight(content: RecordDict, key: str) -> None:
    """Raise `PayloadError` unless a node's weight, the metric `key`, is above 0 and below 2^63."""
    for _, metrics in records(content, MetricRecord):
        if key in metrics:
            usable_weight(metrics[key], key)


UNLIKE = (
    "its records or metrics have other names or lengths than the other nodes', or its tensors are "
    "not those that it was sent"
)


def inconsistent(replies: Sequence[tuple[RecordDict, SentMessage]], weight: str) -> list[int]:
    """Return the places of the replies that differ from most others, for the reason `UNLIKE`.

    `replies`: their contents, and the data about their messages. Only replies to messages of the
    same type with the same tensors are compared. They are grouped by the names and lengths of their
    records and metrics. Only one group is used: the largest of those with the tensors of the
    message, or else of those with arrays, or else of all. Of equally large ones, it is one with the
    metric `weight`, the node's weight.
    """
    asked = [(sent.kind, sent.name, sent.form.whole) for _, sent in replies]
    said = [(_fits(*each), _kinds(each[0])) for each in replies]
    counted = Counter(zip(asked, said, strict=True))

    def rank(pair: tuple[Any, tuple[int, frozenset[tuple[object, ...]]]]) -> tuple[int, ...]:
        (_, model, _), (fits, parts) = pair
        named = any(name == model for name, *_ in parts)
        weighs = any((type_, key) == (MetricRecord, weight) for _, type_, key, _ in parts)
        return fits, counted[pair], named + weighs, -len({name for name, *_ in parts})

    ranked = sorted(counted, key=rank, reverse=True)
    usual = dict(ranked[::-1])  # by question the best answer, which is the last one
    return [place for place, each in enumerate(said) if each != usual[asked[place]]]


def _fits(content: RecordDict, sent: SentMessage) -> int:
    """Return 0 for a reply without a model, 2 for one with the tensors of the message, else 1."""
    models = records(content, ArrayRecord)
    if not sent.train or not models:
        return 0
    layout, asked = layout_of(models[0][1]), sent.form.whole
    return 1 + ((layout.names, layout.shapes) == (asked.names, asked.shapes))


def _kinds(content: RecordDict) -> frozenset[tuple[object, ...]]:
    """Return what must be equal in all replies: names, types, shapes and lengths in a content."""
    found = set[tuple[object, ...]]()
    for name, record in content.items():
        type_ = type(record)
        for key, value in record.items():
            several = isinstance(value, list) and not key.endswith(KEYS)
            length: object = len(cast(list[Any], value)) if several else -1
            if isinstance(record, ArrayRecord):
                length = tuple(cast(Array, value).shape)
            found.add((name, type_, key, length if type_ is not ConfigRecord else -1))
        if not record:
            found.add((name, type_, None, -1))  # no key of a record is None
    return frozenset(found)
