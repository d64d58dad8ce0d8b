"""Sends equal tensors, such as tied weights, only once, in both directions.

A state dict lists a tied weight once for each of its uses. The first of these tensors is called the
source, the others are its copies. A message says which tensors are copies, and leaves the copies
out. A reply leaves out the copies that still equal their source after training. It says which
copies differ. The receiver restores the copies from their sources, bit for bit. So tied weights
stay equal even with a method that sends only part of an update. Tensors that are equal by chance,
such as biases initialised with zeros, are treated as copies until they differ.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_64_digest

from ..base import PayloadError
from ..batchnorm import Separation, is_statistic, matches, separate
from ..decoder import MAX_SIZE
from ..layout import Layout
from ..wire_header import MAX_TENSORS
from ..wire_natives import NativeTensor
from .headers import DownlinkHeader
from .native_tensors import differing
from .records import Vector
from .tensor_split import Model, TensorSplit, expect_room, form_as_declared, form_of_models

Ties = tuple[tuple[int, int], ...]  # (copy's position, source's position), sorted by the copy's


def ties_in(form: TensorSplit, model: Model, apart: tuple[str, ...] = ()) -> Ties:
    """Find copies: tensors with the dtype, shape and checksum of an earlier tensor, their source.

    `form`: the result of `form_of_updates`. `model`: the model, split by `form_of_models`. `apart`:
    patterns of names; tensors with such a name are never treated as copies. Call `still_tied`
    afterwards, because it compares the values and not only the checksums.
    """
    whole, alike = form.whole, defaultdict[object, list[int]](list)
    for place, name in enumerate(whole.names):
        shape, inside = whole.shapes[place], place not in form.beside
        if 0 not in shape and not matches(name, apart):
            alike[shape, whole.dtypes[place], inside, is_statistic(name)].append(place)
    values, ties = list(form_of_models(form).tensors(model)), []
    for places in alike.values():
        if len(places) > 1:
            first = dict[bytes, int]()
            hashes = (xxh3_64_digest(values[place].tobytes()) for place in places)
            sources = [first.setdefault(*pair) for pair in zip(hashes, places, strict=True)]
            ties += [pair for pair in zip(places, sources, strict=True) if pair[0] != pair[1]]
    return tuple(sorted(ties))


def still_tied(ties: Ties, form: TensorSplit, model: Model) -> Ties:
    """Return those pairs (copy, source) of tensors that are equal, bit for bit."""
    if not ties:
        return ()
    values = list(form.tensors(model))
    copies = {str(copy): values[copy] for copy, _ in ties}
    apart = differing(copies, {str(copy): values[source] for copy, source in ties})
    return tuple(pair for pair in ties if str(pair[0]) not in apart)


class _Cut(NamedTuple):
    """How to remove copies from a model, and to restore them."""

    form: TensorSplit  # of the model without the copies
    vector: Separation  # separates the vector into copies and the rest
    sources: tuple[slice, ...]  # for each copy in the vector, its source's slice of the rest
    places: tuple[int, ...]  # positions of the tensors that are not copies
    beside: tuple[tuple[int, int], ...]  # (copy, source) for copies in their own dtype


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
    """Return the `TensorSplit` of a model without its copies; `form` itself without copies."""
    return _cut(form, ties).form if ties else form


def narrowed(model: Model, form: TensorSplit, ties: Ties) -> Model:
    """Return a model without the tensors that are copies of another tensor."""
    if not ties:
        return model
    cut = _cut(form, ties)
    number = {place: each for each, place in enumerate(cut.places)}
    own = [each for each in model.own if each.position in number]
    left = tuple(each._replace(position=number[each.position]) for each in own)
    return Model(cut.vector.gather(model.vector), left)


def widened(vector: Vector, form: TensorSplit, ties: Ties) -> Vector:
    """Restore copies of tensors in a model's vector."""
    cut = _cut(form, ties)
    if not cut.sources:
        return vector
    return cut.vector.merge(vector, np.concatenate([vector[source] for source in cut.sources]))


def widened_own(
    own: Sequence[NativeTensor], form: TensorSplit, ties: Ties
) -> tuple[NativeTensor, ...]:
    """Restore copies among the tensors that are sent in their own dtype."""
    if not ties:
        return tuple(own)
    cut, names = _cut(form, ties), form.whole.names
    found = {cut.places[each.position]: each.array for each in own}
    found |= {copy: found[source] for copy, source in cut.beside}
    return tuple(NativeTensor(place, names[place], found[place]) for place in sorted(found))


def widened_model(model: Model, form: TensorSplit, ties: Ties) -> Model:
    """Undo `narrowed`: return a model with the copies of tensors restored."""
    return Model(widened(model.vector, form, ties), widened_own(model.own, form, ties))


def names_of(ties: Ties, form: TensorSplit) -> dict[str, str]:
    """Return the name of each copied tensor in the vector, with the name of its source."""
    names = form.whole.names
    return {names[copy]: names[source] for copy, source in ties if copy not in form.beside}


def written_ties(form: TensorSplit, ties: Ties) -> dict[str, Any]:
    """Return the fields of `DownlinkHeader` that say which tensors are copies of which."""
    if not ties:
        return {}
    return {
        "copies": [form.whole.names[copy] for copy, _ in ties],
        "tied": [place for pair in ties for place in pair],
    }


def form_with_copies(
    form: TensorSplit, header: DownlinkHeader, most: int
) -> tuple[TensorSplit, Ties]:
    """Add a message's copies to the `TensorSplit` of its payload; return the result and the copies.

    Raises `PayloadError` for copies of tensors that the payload does not hold, for copies that are
    too large, for duplicate names, and for a vector of more than `most` entries.
    """
    names, said = header.copies or [], header.tied or []
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
    shapes = tuple(form.whole.shapes[t] for t in of)
    dtypes = tuple(form.whole.dtypes[t] for t in of)
    beside = [place for place in range(total) if of[place] in own_type]
    own = sum(math.prod(shapes[t]) * np.dtype(dtypes[t]).itemsize for t in beside)
    if own > 8 * MAX_SIZE:
        raise PayloadError("the message's copies are larger than is allowed here")
    made = form_as_declared(Layout(called, shapes, dtypes), tuple(beside))
    expect_room(made, most)
    return made, tuple(copies.items())


def left_tied(ties: Ties, untied: Sequence[int] | None) -> Ties:
    """Return the copies that a reply leaves out: the message's `ties` without those `untied`.

    Raises `PayloadError` if `untied` holds another position than that of a copy in `ties`.
    """
    if not untied:
        return ties
    copies = {copy for copy, _ in ties}
    if list(untied) != sorted({*untied} & copies):
        raise PayloadError("it unties tensors that its message did not tie")
    return tuple(pair for pair in ties if pair[0] not in set(untied))
