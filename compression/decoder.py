"""From one payload back to an update; what a payload says about itself. See docs/payload.md."""

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
    is_finite,
)
from .batchnorm import exact_tensors, runs, separate
from .layout import Layout
from .native_tensors import NativeTensor, own_spec, own_tensors
from .scatter import add_at, find, increase, put_at
from .wire import VERSION, Parsed, digest, parse, unpack
from .wire_header import MAX_TENSORS

MAX_SIZE = 1 << 28  # entries decode() accepts when no layout says how many there are
_U4, _F4 = np.dtype("<u4"), np.dtype("<f4")
# What overflows is found by looking at the result, whatever the caller's numpy settings.
quiet = np.errstate(all="ignore")


class Update(NamedTuple):
    """What a payload holds."""

    layout: Layout
    indices: Indices | None  # (k,) uint32, strictly increasing; None: every entry is there
    values: Vector  # (k,) float32, all finite; may be a read-only view of the payload
    sparsifier: type[Sparsifier]
    exact: tuple[int, ...] = ()  # tensors of the layout that no sparsifier or quantizer has touched
    own: tuple[
        NativeTensor, ...
    ] = ()  # tensors of the model that are not in the layout: values, exact

    @property
    def selected(self) -> Indices | None:
        """What a later payload may repeat: the indices among trained entries."""
        if self.indices is None or not self.exact:
            return self.indices
        return separate(self.layout, self.exact).narrow_indices(self.indices)

    def dense(self, out: Vector | None = None) -> Vector:
        """Return the (n,) float32 vector; ``out``, (n,) float32, is used if entries are missing."""
        if self.indices is None:
            return self.values
        if out is None:
            out = np.zeros(self.layout.size, dtype=np.float32)
        else:
            out.fill(0)
        put_at(out, self.indices, self.values)
        return out

    def added_to(self, vector: Vector) -> Vector:
        """Return a new (n,) float32 vector: ``vector`` plus this update."""
        if self.indices is None:
            return self.values + vector
        total = vector.copy()
        add_at(total, self.indices, self.values)
        return total

    def model_from(self, vector: Vector) -> Vector:
        """Return a new (n,) vector: ``vector`` plus these changes of it, made by `changes`.

        Exact tensors, BatchNorm's statistics always, are values and no changes. Raises PayloadError
        if entries of these are missing.
        """
        total = self.added_to(vector)
        values = sorted({*self.exact, *exact_tensors(self.layout)})
        for start, stop in runs(self.layout, values):
            total[start:stop] = self.entries(start, stop)
        return total

    def entries(self, start: int, stop: int) -> Vector:
        """Return the values of the entries from ``start`` to ``stop``: all of them must be there.

        Raises PayloadError if some are missing.
        """
        if self.indices is None:
            return self.values[start:stop]
        first, last = find(self.indices, (start, stop))
        if last - first != stop - start:
            raise PayloadError("payload leaves out statistics, which must be there")
        return self.values[first:last]


@dataclass(frozen=True)
class Description:
    """What a payload says about itself."""

    version: int
    sparsifier: str
    quantizer: str
    coder: str
    n: int  # entries of the whole vector
    selected: int  # entries that are there
    tensors: int
    bytes: int  # of the payload


def decode(
    payload: Buffer, layout: Layout | None = None, *, max_size: int = MAX_SIZE
) -> tuple[Vector, Layout]:
    """Return the (n,) float32 vector, all finite, and its layout: `decode_update`, made dense.

    The vector may be a read-only view of ``payload``.
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
    max_size: int = MAX_SIZE,
    max_tensors: int = MAX_TENSORS,
) -> Update:
    """Return what a payload holds, all finite.

    With a ``layout``, of the whole model, the payload must hold the same shapes, and if it has
    names the same names and dtypes. Its tensors ``own``, by increasing position among all, must
    travel in their own type, all others in the vector; and of the vector's tensors ``exact``, by
    their position in it, exactly (None: any may). Without a layout, all that the payload says is
    taken, up to so many entries and tensors.
    ``before``: `Update.selected` of the sender's last payload, for one that repeats it. Raises
    PayloadError for everything else, before memory is allocated for what the payload declares.
    """
    parsed = parse(payload, layout, max_size, max_tensors, own=own, exact=exact)
    beside = _own(parsed)
    apart = _exact(parsed)
    indices, values = _trained(parsed, before)
    if apart is not None:
        cut, borders = separate(parsed.layout, parsed.exact), None
        if indices is not None:
            borders = cut.borders_of(indices)
            indices = cut.widen_indices(
                indices, borders
            )  # the narrower ones go before values get wider
        values = cut.merge(values, apart, borders)
    return Update(parsed.layout, indices, values, parsed.sparsifier, parsed.exact, beside)


@quiet
def decode_trained(
    payload: Buffer, layout: Layout, before: Indices | None
) -> tuple[Indices | None, Vector]:
    """Return indices and values among the trained entries alone; as `decode_update`.

    ``layout``: of the vector, without tensors of their own type.
    """
    return _trained(parse(payload, layout, MAX_SIZE, of_vector=True), before)


def expect(
    payload: Buffer,
    layout: Layout,
    *,
    own: tuple[int, ...] = (),
    exact: tuple[int, ...] | None = None,
) -> None:
    """Raise PayloadError unless the header says what was asked for, as `decode_update` takes it.

    Checksum and lengths are checked, no value is decoded.
    """
    parse(payload, layout, MAX_SIZE, own=own, exact=exact)


def declared(
    payload: Buffer, *, max_size: int = MAX_SIZE, max_tensors: int = MAX_TENSORS
) -> tuple[Layout, tuple[int, ...]]:
    """Return the tensors that a header declares, and which of them are in their own type.

    With these `decode_update` takes the payload. It has at most so many entries and tensors.
    Checksum and lengths are checked, no value is decoded. Raises PayloadError as that, and for two
    tensors of one name, or a position that there is not.
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
    """Return what the header says; checksum and lengths are checked, no value is decoded.

    Nothing bounds that: hold it against what was asked (`expect`) before it is used.
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
    """Return the tensors in their own type: their bytes are the last stream."""
    if not parsed.own:
        return ()
    if not parsed.bodies:
        raise PayloadError("payload declares tensors of their own type and holds none")
    stream = unpack(parsed.coder, parsed.bodies[-1], own_spec(parsed.own))
    return own_tensors(parsed.own, stream)


def _exact(parsed: Parsed) -> Vector | None:
    """Return the values of the exact tensors, (s,) float32, if there are any."""
    if not parsed.exact:
        return None
    spec = exact_spec(separate(parsed.layout, parsed.exact).exact_size)
    if not parsed.bodies:
        raise PayloadError("payload declares exact tensors and holds none")
    values = cast(Vector, unpack(parsed.coder, parsed.bodies[0], spec))
    if not is_finite(values):
        raise PayloadError("payload holds NaN or infinity")
    return values


def _trained(parsed: Parsed, before: Indices | None) -> tuple[Indices | None, Vector]:
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
        spec = index_spec(parsed.selected, layout.size)
        indices = _check_indices(unpack(parsed.coder, bodies[0], spec), layout.size)
        bodies = bodies[1:]
    parts = parts_of(indices, layout)
    specs = parsed.quantizer.specs(parsed.params, parts)
    if len(bodies) != len(specs):
        raise PayloadError(f"payload holds {len(bodies)} streams of values, not {len(specs)}")
    streams = [unpack(parsed.coder, *pair) for pair in zip(bodies, specs, strict=True)]
    return indices, parsed.quantizer.decode(parsed.params, streams, parts)


def exact_spec(count: int) -> Spec:
    """Describe the stream of ``count`` exact values."""
    return Spec(Kind.FLOATS, _F4, count)


def index_spec(count: int, size: int) -> Spec:
    """Describe the stream of ``count`` indices into ``size`` entries."""
    return Spec(Kind.INDICES, _U4, count, size)


def parts_of(indices: Indices | None, layout: Layout) -> TensorSlices:
    """Return how the values at ``indices`` belong to the layout's tensors."""
    if indices is None:
        return TensorSlices(layout.offsets, layout.shapes)
    bounds = layout.offsets.astype(np.uint32)
    return TensorSlices(np.searchsorted(indices, bounds).astype(np.int64, copy=False))


def _check_indices(stream: Array, size: int) -> Indices:
    indices = cast(Indices, stream.astype(np.uint32, copy=False))
    if len(indices) and (indices[-1] >= size or not increase(indices)):
        raise PayloadError("payload holds indices that do not increase or lie beyond the model")
    return indices


def _repeated(parsed: Parsed, layout: Layout, before: Indices | None) -> Indices:
    if before is None or len(before) != parsed.selected or digest(before) != parsed.repeated:
        raise PayloadError("payload repeats indices that are not known here: they must be sent")
    return _check_indices(cast(Array, before), layout.size)
