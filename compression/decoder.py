"""Decodes a payload into an update, and describes a payload (format: docs/payload.md)."""

from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from .base import (
    Array,
    Buffer,
    Indices,
    Kind,
    PayloadError,
    Sparsifier,
    Spec,
    TensorSlices,
    Vector,
    expect_finite,
    quiet,
)
from .batchnorm import exact_tensors, runs, separate
from .coders.shared_context import IndexContext, SharedContext
from .layout import Layout
from .scatter import add_at, find, increase, put_at
from .wire import VERSION, Parsed, StreamSizes, digest, parse, sizes_of, unpack
from .wire_header import MAX_TENSORS
from .wire_natives import NativeTensor, decoded_natives, natives_spec

MAX_SIZE = 1 << 28  # the most entries that decode() accepts without a layout
_U4, _F4 = np.dtype("<u4"), np.dtype("<f4")


class Update(NamedTuple):
    """The contents of a decoded payload."""

    layout: Layout
    indices: Indices | None  # (k,) uint32, strictly increasing; None: every entry is present
    values: Vector  # (k,) float32, all finite; may be a read-only view of the payload
    sparsifier: type[Sparsifier]
    exact: tuple[int, ...] = ()  # positions of the tensors that skipped sparsifier and quantizer
    own: tuple[NativeTensor, ...] = ()  # tensors in their own dtype, which are not in the layout
    sizes: StreamSizes = StreamSizes()  # bytes of indices and of values in the payload

    @property
    def selected(self) -> Indices | None:
        """The selected indices into the trained entries; a later payload may repeat them."""
        if self.indices is None or not self.exact:
            return self.indices
        return separate(self.layout, self.exact).narrow_indices(self.indices)

    def dense(self) -> Vector:
        """Return the update as a (n,) float32 vector, with 0 in entries that were not sent."""
        if self.indices is None:
            return self.values
        vector = np.zeros(self.layout.size, dtype=np.float32)
        put_at(vector, self.indices, self.values)
        return vector

    def model_from(self, vector: Vector) -> Vector:
        """Return a new (n,) model: ``vector`` plus an update that `batchnorm.changes` computed.

        Exact tensors, including BatchNorm's statistics, hold values and not changes. These values
        replace the entries of ``vector``. Raises PayloadError if entries of exact tensors are
        missing.
        """
        total = vector.copy()
        add_at(total, self.indices, self.values)
        values = sorted({*self.exact, *exact_tensors(self.layout)})
        for start, stop in runs(self.layout, values):
            total[start:stop] = self.entries(start, stop)
        return total

    def entries(self, start: int, stop: int) -> Vector:
        """Return the values of the entries ``start`` to ``stop`` - 1.

        Raises PayloadError if one of these entries is missing.
        """
        if self.indices is None:
            return self.values[start:stop]
        first, last = find(self.indices, (start, stop))
        if last - first != stop - start:
            raise PayloadError("payload leaves out statistics, which must be there")
        return self.values[first:last]


@dataclass(frozen=True)
class Description:
    """The fields of a payload's header."""

    version: int
    sparsifier: str
    quantizer: str
    coder: str
    n: int  # entries of the whole vector
    selected: int  # entries that the payload holds
    tensors: int  # tensors in the vector
    bytes: int  # size of the payload


def decode(
    payload: Buffer, layout: Layout | None = None, *, max_size: int = MAX_SIZE
) -> tuple[Vector, Layout]:
    """Decode a payload; return the dense vector, (n,) finite float32, and its layout.

    The vector may be a read-only view of ``payload``. All else is as in `decode_update`.
    """
    update = decode_update(payload, layout, max_size=max_size)
    return update.dense(), update.layout


@quiet
def decode_update(
    payload: Buffer,
    layout: Layout | None = None,
    *,
    own: tuple[int, ...] = (),
    exact: tuple[int, ...] | None = None,
    before: Indices | None = None,
    context: SharedContext | None = None,
    max_size: int = MAX_SIZE,
    max_tensors: int = MAX_TENSORS,
) -> Update:
    """Decode a payload; all values of the result's vector are finite.

    ``layout``: the layout of the whole model. The payload must have the same shapes. If it has
    names, it must also have the same names and dtypes. Without a layout, any tensors are accepted,
    up to ``max_size`` entries and ``max_tensors`` tensors, but no payload in the short form.
    ``own``: increasing positions in ``layout`` of the tensors that must be sent in their own dtype;
    all other tensors must be in the vector.
    ``exact``: positions, among the vector's tensors, of the tensors that must be exact; None allows
    any.
    ``before``: `Update.selected` of the sender's last payload, for a payload that repeats its
    indices.
    ``context``: what sender and receiver know of the model's coordinates, for a payload in the
    short form; it is for the layout of the vector.

    Raises PayloadError for any other payload. The error is raised before memory is allocated for
    the sizes that the payload declares.
    """
    parsed = parse(payload, layout, max_size, max_tensors, own=own, exact=exact, context=context)
    beside = _own(parsed)
    indices, values = _trained(parsed, before, context)
    if parsed.exact:
        cut, borders = separate(parsed.layout, parsed.exact), None
        apart = _exact(parsed, cut.exact_size)
        if indices is not None:
            borders = find(indices, cut.borders)
            # The narrower indices are deleted before the values are widened.
            indices = cut.widen_indices(indices, borders)
        values = cut.merge(values, apart, borders)
    sizes = sizes_of(parsed)
    return Update(parsed.layout, indices, values, parsed.sparsifier, parsed.exact, beside, sizes)


@quiet
def decode_trained(
    payload: Buffer, layout: Layout, before: Indices | None, context: SharedContext | None = None
) -> tuple[Indices | None, Vector]:
    """Return the indices and values of the trained entries of a payload.

    ``layout``: the layout of the vector, without the tensors in their own dtype. ``before``,
    ``context`` and the errors are the same as in `decode_update`.
    """
    return _trained(
        parse(payload, layout, MAX_SIZE, of_vector=True, context=context), before, context
    )


@quiet
def quantized(payload: Buffer, layout: Layout) -> list[Array]:
    """Return the streams of a payload's quantizer, for a payload of this node's own codec.

    ``layout``: the vector's. Raises PayloadError unless the codec has sent all entries.
    """
    parsed = parse(payload, layout, MAX_SIZE)
    if parsed.selected is not None or parsed.exact or parsed.own:
        raise PayloadError("the payload does not hold all entries by one method")
    specs = parsed.quantizer.specs(parts_of(None, parsed.layout))
    return [unpack(parsed.coder, *pair) for pair in zip(parsed.bodies, specs, strict=True)]


def declared(
    payload: Buffer, *, max_size: int = MAX_SIZE, max_tensors: int = MAX_TENSORS
) -> tuple[Layout, tuple[int, ...]]:
    """Return the layout of all tensors in a payload, and the positions of those in their own dtype.

    `decode_update` accepts the payload with these results as ``layout`` and ``own``. The function
    checks the checksum and the lengths. It decodes no value. Raises the PayloadErrors of
    `decode_update`. Also raises PayloadError for more than ``max_size`` entries, for more than
    ``max_tensors`` tensors, for equal names, and for a position behind the last tensor.
    """
    parsed = parse(payload, None, max_size, max_tensors)
    layout, own = parsed.layout, {each.position: each for each in parsed.own}
    if not own:
        return layout, ()
    rest = zip(layout.names, layout.shapes, layout.dtypes, strict=True)
    total = len(layout) + len(own)
    if max(own) >= total:
        raise PayloadError("payload declares tensors beyond its model's last")
    tensors = [
        (own[place].name, own[place].shape, own[place].dtype) if place in own else next(rest)
        for place in range(total)
    ]
    names, shapes, dtypes = (tuple(column) for column in zip(*tensors, strict=True))
    if len(set(names)) < total:
        raise PayloadError("two tensors of the payload have the same name")
    return Layout(names, shapes, dtypes), tuple(own)


def describe(payload: Buffer) -> Description:
    """Return the fields of a payload's header; check its checksum and lengths, but decode no value.

    The header may hold numbers of any size. Check the payload with `parse` before you use them.
    """
    parsed = parse(payload, None, 1 << 62)
    selected = parsed.layout.size
    if parsed.selected is not None:
        selected = parsed.selected + separate(parsed.layout, parsed.exact).exact_size
    return Description(
        version=VERSION,
        sparsifier=parsed.sparsifier.name,
        quantizer=parsed.quantizer.name,
        coder=parsed.coder.name,
        n=parsed.layout.size,
        selected=selected,
        tensors=len(parsed.layout),
        bytes=memoryview(payload).nbytes,
    )


def _own(parsed: Parsed) -> tuple[NativeTensor, ...]:
    """Return the tensors in their own dtype; their bytes are the payload's last stream."""
    if not parsed.own:
        return ()
    if not parsed.bodies:
        raise PayloadError("payload declares tensors of their own type and holds none")
    stream = unpack(parsed.coder, parsed.bodies[-1], natives_spec(parsed.own))
    return decoded_natives(parsed.own, stream)


def _exact(parsed: Parsed, count: int) -> Vector:
    """Return the ``count`` values of tensors that are sent without loss, float32."""
    if not parsed.bodies:
        raise PayloadError("payload declares exact tensors and holds none")
    values: Vector = unpack(  # type: ignore[assignment]
        parsed.coder, parsed.bodies[0], exact_spec(count)
    )
    expect_finite(values)
    return values


def _trained(
    parsed: Parsed, before: Indices | None, context: SharedContext | None
) -> tuple[Indices | None, Vector]:
    """Return indices and values of all but the exact tensors."""
    layout, bodies = parsed.layout, parsed.bodies
    if parsed.own:
        bodies = bodies[:-1]
    if parsed.exact:
        layout, bodies = separate(layout, parsed.exact).layout, bodies[1:]
    if parsed.selected is not None and parsed.selected > layout.size:
        raise PayloadError(f"payload declares {parsed.selected} indices into {layout.size} entries")
    indices: Indices | None = None
    if parsed.repeated is not None:
        indices = _repeated(parsed, layout, before)
    elif parsed.selected is not None:
        if not bodies:
            raise PayloadError("payload declares indices and holds none")
        known = None
        if context is not None and parsed.short and parsed.coder.contextual:
            known = context.of(parsed.layout, parsed.exact)
        spec = index_spec(parsed.selected, layout.size, known)
        indices = _check_indices(unpack(parsed.coder, bodies[0], spec), layout.size)
        bodies = bodies[1:]
    parts = parts_of(indices, layout)
    specs = parsed.quantizer.specs(parts)
    if len(bodies) != len(specs):
        raise PayloadError(f"payload holds {len(bodies)} streams of values, not {len(specs)}")
    streams = [unpack(parsed.coder, *pair) for pair in zip(bodies, specs, strict=True)]
    return indices, parsed.quantizer.decode(streams, parts)


def exact_spec(count: int) -> Spec:
    """Return the `Spec` of the stream of ``count`` values that are sent without loss."""
    return Spec(Kind.FLOATS, _F4, count)


def index_spec(count: int, size: int, context: IndexContext | None = None) -> Spec:
    """Return the `Spec` of a stream of ``count`` indices into a vector of ``size`` entries."""
    return Spec(Kind.INDICES, _U4, count, size, context)


def parts_of(indices: Indices | None, layout: Layout) -> TensorSlices:
    """Return, for each tensor, which part of the values at ``indices`` belongs to it."""
    if indices is None:
        return TensorSlices(layout.offsets, layout.shapes)
    bounds = layout.offsets.astype(np.uint32)
    return TensorSlices(indices.searchsorted(bounds).astype(np.int64, copy=False))


def _check_indices(stream: Array, size: int) -> Indices:
    indices: Indices = stream.astype(np.uint32, copy=False)
    if len(indices) and (indices[-1] >= size or not increase(indices)):
        raise PayloadError("payload holds indices that do not increase or lie beyond the model")
    return indices


def _repeated(parsed: Parsed, layout: Layout, before: Indices | None) -> Indices:
    if before is None or len(before) != parsed.selected or digest(before) != parsed.repeated:
        raise PayloadError("payload repeats indices that are not known here: they must be sent")
    return _check_indices(cast(Array, before), layout.size)
