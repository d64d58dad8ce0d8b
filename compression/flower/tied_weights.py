"""Sends tensors that are copies of others, such as tied weights, only once, in both directions.

A state dict names a tied weight once for each of its uses. A message says which tensors are copies
and leaves them out. A reply leaves out those that are still copies after training, and says which
are not. The receiver restores them, bit for bit equal to their sources, so even a method that sends
only a part of an update keeps them equal. Tensors that are equal by chance (such as biases of zeros
at first) count as copies while they are equal, and later travel like all others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_digest

from ..base import PayloadError
from ..batchnorm import Separation, is_statistic, matches, separate
from ..decoder import MAX_SIZE
from ..layout import Layout
from ..native_tensors import NativeTensor
from ..wire_header import MAX_TENSORS
from .headers import DownlinkHeader
from .native_tensors import differing
from .records import Vector
from .tensor_split import Model, TensorSplit, expect_room, form_as_declared, form_of_models

Ties = tuple[tuple[int, int], ...]  # (place of copy, place of source), by increasing copy


def ties_in(form: TensorSplit, model: Model, apart: tuple[str, ...] = ()) -> Ties:
    """Return which tensors seem to be copies of an earlier one: same type, shape and checksum.

    `form`: the form for the model's changes. `model`: the model in the form for whole models.
    `apart`: patterns of names of tensors that never count as copies. Call `still_tied` afterwards:
    it compares the values.
    """
    whole, alike = form.whole, defaultdict[object, list[int]](list)
    for place, name in enumerate(whole.names):
        shape, inside = whole.shapes[place], place not in form.beside
        if 0 not in shape and not matches(name, apart):
            alike[shape, whole.dtypes[place], inside, is_statistic(name)].append(place)
    values, ties = list(_tensors(form_of_models(form), model)), []
    for places in alike.values():
        if len(places) > 1:
            first = dict[bytes, int]()
            sources = [first.setdefault(_hash(values[place]), place) for place in places]
            ties += [pair for pair in zip(places, sources, strict=True) if pair[0] != pair[1]]
    return tuple(sorted(ties))


def still_tied(ties: Ties, form: TensorSplit, model: Model) -> Ties:
    """Return the copies that equal their sources, bit for bit."""
    if not ties:
        return ()
    values = list(_tensors(form, model))
    copies = {str(copy): values[copy] for copy, _ in ties}
    apart = differing(copies, {str(copy): values[source] for copy, source in ties})
    return tuple(pair for pair in ties if str(pair[0]) not in apart)


def _tensors(form: TensorSplit, model: Model) -> Iterator[NDArray[Any]]:
    """Yield a model's tensors in the model's order; tensors of the vector are flat."""
    own, bounds, done = {each.position: each.array for each in model.own}, form.layout.offsets, 0
    for place in range(len(form.whole)):
        if place in own:
            yield own[place]
        else:
            yield model.vector[bounds[done] : bounds[done + 1]]
            done += 1


def _hash(values: NDArray[Any]) -> bytes:
    return xxh3_64_digest(values.tobytes())


class _Cut(NamedTuple):
    """A form without copies, and where the copies belong."""

    form: TensorSplit
    vector: Separation  # of the vector into copies and the rest
    sources: tuple[slice, ...]  # each copy's source, in the rest of the vector
    places: tuple[int, ...]  # places of the tensors that are no copies
    beside: tuple[tuple[int, int], ...]  # copies in their own type, and their sources


@lru_cache(maxsize=16)
def _cut(form: TensorSplit, ties: Ties) -> _Cut:
    copies, beside = dict(ties), set(form.beside)
    places = tuple(place for place in range(len(form.whole)) if place not in copies)
    left = [number for number, place in enumerate(places) if place in beside]
    small = TensorSplit(form.whole.without(copies.keys()), left, form.patterns)
    inside = [place for place in range(len(form.whole)) if place not in beside]
    vector = separate(form.layout, tuple(t for t, place in enumerate(inside) if place in copies))
    bounds = small.layout.offsets.tolist()
    starts = {p: t for t, p in enumerate(p for p in places if p not in beside)}
    sources = [starts[source] for copy, source in ties if copy not in beside]
    return _Cut(
        small,
        vector,
        tuple(slice(bounds[t], bounds[t + 1]) for t in sources),
        places,
        tuple(pair for pair in ties if pair[0] in beside),
    )


def without(form: TensorSplit, ties: Ties) -> TensorSplit:
    """Return a form without copies; the form itself if there are none."""
    return _cut(form, ties).form if ties else form


def narrowed(vector: Vector, form: TensorSplit, ties: Ties) -> Vector:
    """Return a form's vector without copies."""
    cut = _cut(form, ties) if ties else None
    return vector if cut is None or not cut.sources else cut.vector.gather(vector)


def narrowed_model(model: Model, form: TensorSplit, ties: Ties) -> Model:
    """Return a model without copies."""
    if not ties:
        return model
    number = {place: each for each, place in enumerate(_cut(form, ties).places)}
    own = [each for each in model.own if each.position in number]
    left = tuple(each._replace(position=number[each.position]) for each in own)
    return Model(narrowed(model.vector, form, ties), left)


def widened(vector: Vector, form: TensorSplit, ties: Ties) -> Vector:
    """Undo `narrowed`."""
    cut = _cut(form, ties) if ties else None
    if cut is None or not cut.sources:
        return vector
    return cut.vector.merge(vector, np.concatenate([vector[source] for source in cut.sources]))


def widened_own(
    own: Sequence[NativeTensor], form: TensorSplit, ties: Ties
) -> tuple[NativeTensor, ...]:
    """Return the tensors in their own type with copies restored; as `widened` for a vector."""
    if not ties:
        return tuple(own)
    cut, names = _cut(form, ties), form.whole.names
    found = {cut.places[each.position]: each.array for each in own}
    found |= {copy: found[source] for copy, source in cut.beside}
    return tuple(NativeTensor(place, names[place], found[place]) for place in sorted(found))


def widened_model(model: Model, form: TensorSplit, ties: Ties) -> Model:
    """Undo `narrowed_model`."""
    return Model(widened(model.vector, form, ties), widened_own(model.own, form, ties))


def names_of(ties: Ties, form: TensorSplit) -> dict[str, str]:
    """Return the names of the copies in the vector, each with its source's name."""
    names = form.whole.names
    return {names[copy]: names[source] for copy, source in ties if copy not in form.beside}


def told(form: TensorSplit, ties: Ties) -> dict[str, Any]:
    """Return the fields of `DownlinkHeader` that describe copies."""
    if not ties:
        return {}
    return {
        "copies": [form.whole.names[copy] for copy, _ in ties],
        "tied": [place for pair in ties for place in pair],
    }


def form_as_told(form: TensorSplit, note: DownlinkHeader, most: int) -> tuple[TensorSplit, Ties]:
    """Return the form of a message's model, including the copies that its header describes.

    `form`: the payload's form. Raises `PayloadError` for copies of tensors that the payload does
    not hold, for duplicate names, and for a vector of more than `most` entries.
    """
    names, said = note.copies or [], note.tied or []
    if not names and not said:
        return form, ()
    at, total = said[::2], len(form.whole) + len(names)
    copies = dict(zip(at, said[1::2], strict=False))
    if (
        len(said) != 2 * len(names)
        or total > MAX_TENSORS
        or at != sorted({*at})
        or max(said) >= total
        or not copies.keys().isdisjoint(copies.values())
    ):
        raise PayloadError("the message tells of copies of tensors that it does not hold")
    if len({*names, *form.whole.names}) < total:
        raise PayloadError("two tensors of the message's model have the same name")
    rest, named, own_type = iter(form.whole.names), iter(names), set(form.beside)
    called = tuple(next(named if place in copies else rest) for place in range(total))
    number = {p: t for t, p in enumerate(p for p in range(total) if p not in copies)}
    of = [number[copies.get(place, place)] for place in range(total)]
    shapes, dtypes = (
        tuple(form.whole.shapes[t] for t in of),
        tuple(form.whole.dtypes[t] for t in of),
    )
    beside = [place for place in range(total) if of[place] in own_type]
    own = sum(math.prod(shapes[t]) * np.dtype(dtypes[t]).itemsize for t in beside)
    if own > 8 * MAX_SIZE:
        raise PayloadError("the message's copies are larger than is allowed here")
    made = form_as_declared(Layout(called, shapes, dtypes), tuple(beside))
    expect_room(made, most)
    return made, tuple(copies.items())


def left_tied(ties: Ties, untied: Sequence[int] | None) -> Ties:
    """Return the copies that a reply leaves out; `untied`: places of copies that it holds.

    Raises `PayloadError` if `untied` names tensors that are no copies in the message.
    """
    if not untied:
        return ties
    copies = {copy for copy, _ in ties}
    if list(untied) != sorted({*untied} & copies):
        raise PayloadError("it unties tensors that its message did not tie")
    return tuple(pair for pair in ties if pair[0] not in set(untied))
