"""Splits a model's tensors into one float32 vector and tensors that are sent in their own dtype.

In its own dtype means: exactly, without a conversion to float32. Below, such a tensor is called
"beside the vector".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from ..base import PayloadError
from ..batchnorm import COUNT, is_statistic, matches, own_name, separate
from ..layout import Layout
from ..wire_natives import NativeTensor
from .records import Vector

# The dtypes of tensors that may be part of the float32 vector; numpy has no bfloat16.
FLOATS = ("float16", "float32", "float64")


class Model(NamedTuple):
    """A model's values: a float32 vector (n,), and the tensors that are sent in their own dtype."""

    vector: Vector
    own: tuple[NativeTensor, ...] = ()


class TensorSplit:
    """Says which tensors of a model are in one float32 vector and which are beside the vector.

    `whole`: the layout of all tensors. `beside`: the positions in `whole` of the tensors beside the
    vector. `layout`: the layout of the tensors in the vector, in the order of `whole`. `patterns`:
    patterns of names; tensors with such a name are beside the vector, even if they are float32.
    """

    def __init__(
        self, whole: Layout, beside: Iterable[int] = (), patterns: tuple[str, ...] = ()
    ) -> None:
        self.whole, self.beside, self.patterns = whole, tuple(sorted(beside)), patterns
        self.layout = whole.without(self.beside)

    def model(self, arrays: ArrayRecord) -> Model:
        """Split named arrays into a float32 vector and the tensors beside the vector.

        Raises `PayloadError` for names or shapes that differ from `whole`, and for values that the
        tensor's dtype cannot hold.
        """
        whole, beside = self.whole, set(self.beside)
        if set(whole.names) != set(arrays):
            raise PayloadError(f"arrays do not match the model: got {sorted(arrays)}")
        parts: list[Vector] = []
        own: list[NativeTensor] = []
        for place, (name, shape, dtype) in enumerate(
            zip(whole.names, whole.shapes, whole.dtypes, strict=True)
        ):
            values = arrays[name].numpy()
            if values.shape != tuple(shape):
                raise PayloadError(f"{name} has shape {values.shape}, the model's is {shape}")
            if place in beside:
                own.append(NativeTensor(place, name, _of_type(values, dtype, name)))
            else:
                parts.append(np.asarray(values, dtype=np.float32).reshape(-1))
        vector = np.concatenate(parts) if parts else np.empty(0, np.float32)
        return Model(vector, tuple(own))

    def arrays(self, model: Model) -> ArrayRecord:
        """Return one named Array per tensor in the model's order, each in its dtype and shape."""
        record = ArrayRecord()
        for name, dtype, values in zip(
            self.whole.names, self.whole.dtypes, self.tensors(model), strict=True
        ):
            record[name] = Array(np.asarray(values, dtype=dtype))
        return record

    def tensors(self, model: Model) -> Iterator[NDArray[Any]]:
        """Yield the values of a model's tensors in order; those in the vector as float32."""
        own = {each.position: each.array for each in model.own}
        bounds, done = self.layout.offsets, 0
        for place, shape in enumerate(self.whole.shapes):
            if place in own:
                yield own[place]
            else:
                yield model.vector[bounds[done] : bounds[done + 1]].reshape(shape)
                done += 1


def _of_type(values: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    """Convert values to a tensor's dtype; raise `PayloadError` if that changes them.

    Floats may be rounded, because an app may train a float16 model in float32 and return float32.
    """
    if values.dtype == dtype:
        return values
    cast = values.astype(dtype)
    floats = values.dtype.kind == cast.dtype.kind == "f"
    if not floats and not (cast == values).all():
        raise PayloadError(f"{name} comes as {values.dtype}, its {dtype} cannot hold the values")
    return cast


@lru_cache(maxsize=16)
def form_of_updates(whole: Layout, exact: tuple[str, ...] = ()) -> TensorSplit:
    """Return the `TensorSplit` for changes of a model.

    Tensors beside the vector: those that are not floats, BatchNorm statistics that are not float32,
    and those with a name that matches a pattern in `exact`.
    """
    beside = [
        t
        for t, (name, dtype) in enumerate(zip(whole.names, whole.dtypes, strict=True))
        if not is_float(dtype)
        or (is_statistic(name) and dtype != "float32")
        or matches(name, exact)
    ]
    return TensorSplit(whole, beside, exact)


def is_float(dtype: str) -> bool:
    """Return whether `dtype` is the name of a float type, such as "bfloat16"."""
    return dtype.startswith(("float", "bfloat"))


@lru_cache(maxsize=16)
def form_of_models(form: TensorSplit) -> TensorSplit:
    """Return the `TensorSplit` for a whole model, with all that is not float32 beside the vector.

    `form`: the one for the model's changes.
    """
    others = [t for t, dtype in enumerate(form.whole.dtypes) if dtype != "float32"]
    return _form(form.whole, tuple(sorted({*others, *form.beside})))


def converted(model: Model, form: TensorSplit, to: TensorSplit) -> Model:
    """Split a model by `to` instead of `form`; return the model itself if the two are equal."""
    return model if form.beside == to.beside else to.model(form.arrays(model))


def form_as_declared(whole: Layout, own: tuple[int, ...]) -> TensorSplit:
    """Return the `TensorSplit` of a payload that describes its tensors.

    `whole`, `own`: the result of `declared`. Raises `PayloadError` for a tensor in the vector that
    has another dtype than float16, float32 or float64.
    """
    form = _form(whole, own)
    for name, dtype in zip(form.layout.names, form.layout.dtypes, strict=True):
        if dtype not in FLOATS:
            raise PayloadError(f"{name!r:.80} comes as {dtype} in a vector of floats")
    return form


def expect_room(form: TensorSplit, most: int) -> None:
    """Raise `PayloadError` if the float32 vector of `form` has more than `most` entries."""
    if form.layout.size > most:
        raise PayloadError(f"the model has more than the {most} entries allowed here")


@lru_cache(maxsize=16)
def _form(whole: Layout, beside: tuple[int, ...]) -> TensorSplit:
    return TensorSplit(whole, beside)


def moved(model: Model, form: TensorSplit, to: TensorSplit) -> Model:
    """Return a model's vector for a model with other tensors, which `to` describes.

    Each tensor of `to` gets the values of the tensor with its name and shape, or else zeros.
    """
    tensors, bounds = zip(form.layout.names, form.layout.shapes, strict=True), form.layout.offsets
    ours = dict(zip(tensors, pairwise(bounds), strict=True))
    vector = np.zeros(to.layout.size, dtype=np.float32)
    wanted = zip(to.layout.names, to.layout.shapes, strict=True)
    for tensor, (start, stop) in zip(wanted, pairwise(to.layout.offsets), strict=True):
        if tensor in ours:
            vector[start:stop] = model.vector[slice(*ours[tensor])]
    return Model(vector)


@lru_cache(maxsize=16)
def statistics_of(form: TensorSplit) -> tuple[Layout, tuple[int, ...]]:
    """Return the layout of a model's BatchNorm statistics, and their positions in its vector.

    In the layout, those beside the vector come last.
    """
    inside = tuple(t for t, name in enumerate(form.layout.names) if is_statistic(name))
    layout, whole = form.layout, form.whole
    beside = [t for t in form.beside if _is_moving(whole.names[t], whole.dtypes[t])]
    names = [layout.names[t] for t in inside] + [whole.names[t] for t in beside]
    shapes = [layout.shapes[t] for t in inside] + [whole.shapes[t] for t in beside]
    found = Layout(tuple(names), tuple(shapes), ("float32",) * len(names))
    return found, inside


def _is_moving(name: str, dtype: str) -> bool:
    return is_statistic(name) and own_name(name) != COUNT and is_float(dtype)


def is_moving(own: NativeTensor) -> bool:
    """Return whether a tensor in its own dtype is a running mean or variance of BatchNorm."""
    return _is_moving(own.name, own.array.dtype.name)


def gathered_statistics(form: TensorSplit, model: Model) -> Vector:
    """Return a model's BatchNorm statistics as one vector, float32 (s,)."""
    _, inside = statistics_of(form)
    within = separate(form.layout, inside).gather_exact(model.vector)
    others = [each.array.astype(np.float32).reshape(-1) for each in model.own if is_moving(each)]
    return np.concatenate([within, *others]) if others else within


def with_statistics(form: TensorSplit, model: Model, statistics: Vector) -> Model:
    """Return a model with its BatchNorm statistics replaced by `statistics`, (s,)."""
    _, inside = statistics_of(form)
    cut = separate(form.layout, inside)
    vector = cut.merge(cut.gather(model.vector), statistics[: cut.exact_size])
    done, own = cut.exact_size, list[NativeTensor]()
    for each in model.own:
        if is_moving(each):
            new = statistics[done : done + each.array.size].reshape(each.array.shape)
            done += each.array.size
            each = each._replace(array=np.asarray(new, dtype=each.array.dtype))
        own.append(each)
    return Model(vector, tuple(own))
