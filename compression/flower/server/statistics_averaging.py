"""Hides BatchNorm's statistics and integer tensors from a strategy, and averages them itself.

A strategy's optimiser could make a running variance negative; then the model computes NaN. In the
wrapper's average each entry is between the smallest and the largest value that nodes reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from ...base import PayloadError
from ...batchnorm import exact_tensors, expect_matches, separate
from ...layout import Layout
from ..headers import EXAMPLES
from ..native_tensors import differing, natives_of, with_natives
from ..records import FlatArray, flat_record, layout_of, records, to_vector, with_content
from ..tensor_split import form_of_updates
from .reply_checks import weight_of


def mean(values: Sequence[NDArray[Any]], weights: Sequence[float]) -> NDArray[Any]:
    """Return the weighted mean of arrays, in their dtype; it never leaves the range of the values.

    Means of integers are rounded. If an entry is equal in all arrays, the mean has exactly this
    value.
    """
    low, high = np.minimum.reduce(values), np.maximum.reduce(values)
    kind = values[0].dtype
    wide: Any = np.float64 if kind.kind in "fb" else np.longdouble
    total = np.zeros(values[0].shape, dtype=wide)
    shares = np.asarray(weights) / np.max(weights)  # the sum of weights may overflow float64
    for value, share in zip(values, shares / np.sum(shares), strict=True):
        if share:  # skip a weight of 0: infinity times 0 is NaN
            total += value.astype(wide) * wide(share)
    if kind.kind == "b":
        return np.asarray(total >= 0.5)
    if kind.kind in "iu":
        total = np.rint(total)
    low_wide, high_wide = low.astype(wide), high.astype(wide)
    total = np.where(total == total, total, low_wide)  # infinities of both signs sum to NaN
    inside = np.clip(total, low_wide, high_wide).astype(kind)
    mixed: NDArray[Any] = np.where(low == high, low, np.clip(inside, low, high))
    return mixed


def median(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the median of each entry; of two middle values the lower one, not their mean."""
    stacked = np.stack(values)
    middle = (len(stacked) - 1) // 2
    # np.array: a 0-d result is a scalar, and any other is a view of the whole stack.
    return np.array(np.partition(stacked, middle, axis=0)[middle])


ROBUST = (flower.Bulyan, flower.FedMedian, flower.FedTrimmedAvg, flower.Krum, flower.MultiKrum)
PRIVATE = (
    flower.DifferentialPrivacyClientSideAdaptiveClipping,
    flower.DifferentialPrivacyClientSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
    flower.DifferentialPrivacyServerSideFixedClipping,
)
UNCOVERED = (
    "differential privacy covers what the strategy sees, and not BatchNorm's running statistics, "
    "integers or exact tensors: take a model without (GroupNorm, LayerNorm)"
)
STATISTICS = ""  # the key of BatchNorm's statistics in `SplitRecord.rest`; no tensor has this name


class SplitRecord(NamedTuple):
    """A model's tensors in two parts: those that a strategy sees, and those hidden from it."""

    seen: ArrayRecord
    rest: dict[str, Array]


class StatisticsAveraging(Strategy):
    """Wraps a strategy, so that the strategy sees only trained tensors.

    The wrapper averages all other tensors itself. These are BatchNorm's running statistics, tensors
    that are not floats, and tensors with a name that matches a pattern in `exact`. The metric
    `weighted_by_key` is a node's weight in the average. `layout`: the layout of a model that is one
    flat vector; None for named arrays.

    A robust strategy (Krum, median, trimmed mean, ...) protects against bad values from some nodes.
    So a robust strategy also sees the float32 statistics. For the remaining tensors the wrapper
    then computes the median instead of the mean.

    If the wrapped strategy overrides `start`, its `start` is not called. Raises `TypeError` unless
    `strategy` is a strategy of Flower's message API. With a differential privacy wrapper,
    `configure_train` raises `ValueError` if the model has tensors that the strategy, and so the
    noise, would not see.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        exact: Sequence[str] = (),
        weighted_by_key: str = EXAMPLES,
        layout: Layout | None = None,
    ) -> None:
        if not isinstance(strategy, Strategy):
            old = type(strategy).__module__.startswith(("flwr.server.", "flwr.compat."))
            why = "; it is of Flower's old API" if old else ""
            raise TypeError(
                "StatisticsAveraging wraps a strategy of Flower's message API "
                f"(flwr.serverapp.strategy), not {strategy!r}{why}"
            )
        self.exact, self.weighted_by_key = tuple(exact), weighted_by_key
        self._layout = layout
        self._robust = isinstance(wrapped(strategy)[-1], ROBUST)
        self._private = any(isinstance(each, PRIVATE) for each in wrapped(strategy))
        # The native tensors sent to nodes; stored only for a strategy with differential privacy.
        self._sent: dict[str, NDArray[Any]] = {}
        self.strategy = strategy  # last, because later attributes may be set on the strategy

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that only the wrapped strategy has."""
        return getattr(self.__dict__.get("strategy"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute: on the wrapped strategy if only that has it."""
        wrapped = self.__dict__.get("strategy")
        mine = name in self.__dict__ or hasattr(type(self), name) or not hasattr(wrapped, name)
        object.__setattr__(self, name, value) if mine else setattr(wrapped, name, value)

    def summary(self) -> None:
        """Log the wrapped strategy's summary."""
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy make its messages, and add the tensors hidden from it."""
        cut = self._cut(arrays)
        if self._private and self._values(layout_of(arrays) if self._layout is None else None):
            raise ValueError(UNCOVERED)
        self._sent = _natives(cut.rest) if self._private else {}
        return self._whole(
            self.strategy.configure_train(server_round, cut.seen, config, grid), arrays, cut.rest
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy make messages for evaluation, and add the hidden tensors."""
        cut = self._cut(arrays)
        return self._whole(
            self.strategy.configure_evaluate(server_round, cut.seen, config, grid), arrays, cut.rest
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy average the tensors it sees, and average the hidden tensors."""
        shown, reports, weights, order = list[Message](), list[dict[str, Array]](), [], None
        nodes = list[int]()
        for reply in replies:
            if not reply.has_error() and len(found := records(reply.content, ArrayRecord)) == 1:
                name, arrays = found[0]
                try:
                    weights.append(weight_of(reply.content, self.weighted_by_key))
                except PayloadError as error:  # a mean cannot use this weight
                    shown.append(with_content(reply, None, Error(ErrorCode.UNKNOWN, str(error))))
                    continue
                cut, order = self._cut(arrays), arrays
                reports.append(cut.rest)
                nodes.append(reply.metadata.src_node_id)
                content = {k: cut.seen if k == name else v for k, v in reply.content.items()}
                reply = with_content(reply, RecordDict(content))
            shown.append(reply)
        aggregated, metrics = self.strategy.aggregate_train(server_round, shown)
        if aggregated is None or order is None:
            return aggregated, metrics
        if self._private and any(differing(_natives(r), self._sent) for r in reports):
            raise ValueError(UNCOVERED)
        return self._joined(order, aggregated, self._mix(reports, weights, nodes)), metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the wrapped strategy average the metrics of an evaluation."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _values(self, layout: Layout | None) -> list[str]:
        """Return the names of the tensors that the strategy does not see."""
        layout = layout or self._layout
        assert layout is not None
        expect_matches(layout, self.exact)
        form = form_of_updates(layout, self.exact)
        found = {form.whole.names[place] for place in form.beside}
        if not self._robust or self._private:
            found |= {form.layout.names[t] for t in exact_tensors(form.layout)}
        return [name for name in layout.names if name in found]

    def _cut(self, arrays: ArrayRecord) -> SplitRecord:
        if self._layout is None:
            rest = set(self._values(layout_of(arrays)))
            seen = ArrayRecord({n: a for n, a in arrays.items() if n not in rest})
            return SplitRecord(seen, {n: a for n, a in arrays.items() if n in rest})
        vector, exact = to_vector(arrays), exact_tensors(self._layout)
        beside: dict[str, Array] = {n: FlatArray(a) for n, a in natives_of(arrays).items()}
        if self._robust or not exact:
            return SplitRecord(flat_record(vector), beside)
        parts = separate(self._layout, exact)
        beside[STATISTICS] = FlatArray(parts.gather_exact(vector))
        return SplitRecord(flat_record(parts.gather(vector)), beside)

    def _joined(self, order: ArrayRecord, seen: ArrayRecord, rest: dict[str, Array]) -> ArrayRecord:
        """Join the tensors of the strategy and the hidden tensors in `order`'s order and dtypes."""
        if self._layout is None:
            return ArrayRecord(
                {n: rest[n] if n in rest else _typed(seen[n], order[n]) for n in order}
            )
        natives = _natives(rest)
        if STATISTICS not in rest:
            return with_natives(flat_record(to_vector(seen)), natives) if natives else seen
        parts = separate(self._layout, exact_tensors(self._layout))
        statistics = rest[STATISTICS].numpy()
        return with_natives(flat_record(parts.merge(to_vector(seen), statistics)), natives)

    def _whole(
        self, messages: Iterable[Message], order: ArrayRecord, rest: dict[str, Array]
    ) -> list[Message]:
        """Add the hidden tensors `rest` to each message; shared contents stay shared."""
        messages, whole = list(messages), dict[int, RecordDict]()
        contents = [message.content for message in messages]  # kept, so that ids stay unique
        for message, content in zip(messages, contents, strict=True):
            if rest and id(content) not in whole:
                name, seen = records(content, ArrayRecord)[0]
                joined = self._joined(order, seen, rest)
                whole[id(content)] = RecordDict(
                    {k: joined if k == name else v for k, v in content.items()}
                )
            message.content = whole.get(id(content), content)
        return messages

    def _mix(
        self, reports: list[dict[str, Array]], weights: list[float], nodes: list[int]
    ) -> dict[str, Array]:
        """Average the hidden tensors by name; `nodes`: the nodes of the reports."""
        return {name: self._mixed([r[name] for r in reports], weights) for name in reports[0]}

    def _mixed(self, arrays: list[Array], weights: list[float]) -> Array:
        values = [values_of_array(array) for array in arrays]
        if all(value is values[0] for value in values):  # the nodes share one constant array
            return arrays[0]
        mixed = median(values) if self._robust else mean(values, weights)
        return FlatArray(mixed) if isinstance(arrays[0], FlatArray) else Array(mixed)


def _natives(rest: dict[str, Array]) -> dict[str, NDArray[Any]]:
    """Return the native tensors among the hidden tensors of a model that is one flat vector."""
    return {name: values_of_array(a) for name, a in rest.items() if name != STATISTICS}


def _typed(array: Array, like: Array) -> Array:
    """Convert an array to the dtype of `like`; FedAdam, for example, turns float32 into float64."""
    return array if array.dtype == like.dtype else Array(array.numpy().astype(like.dtype))


def values_of_array(array: Array) -> NDArray[Any]:
    """Return the values of an array, without a copy for a `FlatArray`."""
    return cast(NDArray[Any], array.vector if isinstance(array, FlatArray) else array.numpy())


def wrapped(strategy: Strategy) -> list[Strategy]:
    """Return a strategy and all that it wraps, as differential privacy does; the innermost last."""
    found = [strategy]
    while isinstance(inner := getattr(found[-1], "strategy", None), Strategy):
        found.append(inner)
    return found
