"""One update as one self-describing payload: encode, decode, describe. See docs/payload.md."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from compression.envelope import ALL, INDICES, NAMED, VERSION, parse, seal, tables, unpack
from compression.header import varint
from compression.layout import Layout
from compression.stages import (
    Array,
    Buffer,
    Coder,
    Indices,
    Kind,
    Memory,
    PayloadError,
    Quantizer,
    Rng,
    Segments,
    Sparsifier,
    Spec,
    Vector,
    is_finite,
)

__all__ = ["MAX_SIZE", "Codec", "Description", "PayloadError", "decode", "describe"]

MAX_SIZE = 1 << 28  # entries decode() accepts when no layout says how many there are
_SMALL = 64  # streams of fewer bytes are left as they are: coding gains nothing
_U4 = np.dtype("<u4")
# What overflows is found by looking at the result, whatever the caller's numpy settings.
_quiet = np.errstate(all="ignore")


@dataclass(frozen=True)
class Codec:
    """Three stages: which coordinates, how their values are written, lossless coding."""

    sparsifier: Sparsifier
    quantizer: Quantizer
    coder: Coder

    @_quiet
    def encode(
        self,
        update: Vector,
        layout: Layout,
        *,
        memory: Memory | None = None,
        seed: int = 0,
        names: bool = False,
    ) -> bytes:
        """Encode (layout.size,) contiguous float32.

        ``memory``: the sparsifier's arrays on this node, changed in place. ``seed``: for
        methods that draw; the global random state is never touched. ``names``: add the tensors'
        names and dtypes, for a receiver that has no layout. Raises ValueError for a vector that
        does not fit the layout, PayloadError for NaN or infinity.
        """
        _check_update(update, layout)
        indices, values = self.sparsifier.select(update, layout, memory, Rng(seed, 0))
        ids = bytes((self.sparsifier.id, self.quantizer.id, self.coder.id, NAMED * bool(names)))
        params = self.quantizer.params()
        head = [tables(layout, ids), bytes((ALL,)), varint(len(params)), *map(varint, params)]
        specs: tuple[Spec, ...] = ()
        streams: tuple[Array, ...] = ()
        segments = layout.offsets
        if indices is not None:
            if not is_finite(values):
                raise PayloadError("the sparsifier's memory has grown beyond float32")
            head[1] = bytes((INDICES,)) + varint(len(indices))
            specs = (_index_spec(len(indices), layout.size),)
            streams = (cast(Array, indices.astype(_U4, copy=False)),)
            segments = _segments(indices, layout)
        specs += self.quantizer.specs(params, segments)
        head.append(varint(len(specs)))
        streams += tuple(self.quantizer.encode(values, segments, Rng(seed, 1)))
        bodies: list[Buffer] = []
        for stream, spec in zip(streams, specs, strict=True):
            coded = self.coder.encode(stream, spec) if spec.nbytes >= _SMALL else None
            if coded is not None and len(coded) < spec.nbytes:
                bodies.append(coded)
                head.append(varint(len(coded) << 1 | 1))
            else:
                bodies.append(stream.data)
                head.append(varint(spec.nbytes << 1))
        return seal(b"".join(head), bodies)


@dataclass(frozen=True)
class Description:
    """What a payload says about itself."""

    version: int
    sparsifier: str
    quantizer: str
    coder: str
    n: int  # entries of the whole vector
    tensors: int
    bytes: int  # of the payload


@_quiet
def decode(
    payload: Buffer, layout: Layout | None = None, *, max_size: int = MAX_SIZE
) -> tuple[Vector, Layout]:
    """Return the (n,) float32 vector, all finite, and its layout.

    The vector may be a read-only view of ``payload``. With a ``layout`` the payload must hold
    the same shapes; without, at most ``max_size`` entries. Raises PayloadError for everything
    else, before memory is allocated for what the payload declares.
    """
    parsed = parse(payload, layout, max_size)
    layout, bodies = parsed.layout, parsed.bodies
    indices: Indices | None = None
    segments = layout.offsets
    if parsed.selected is not None:
        if not bodies:
            raise PayloadError("payload declares indices and holds none")
        spec = _index_spec(parsed.selected, layout.size)
        indices = _check_indices(unpack(parsed.coder, bodies[0], spec), layout.size)
        segments = _segments(indices, layout)
        bodies = bodies[1:]
    specs = parsed.quantizer.specs(parsed.params, segments)
    if len(bodies) != len(specs):
        raise PayloadError(f"payload holds {len(bodies)} streams of values, not {len(specs)}")
    streams = [unpack(parsed.coder, *pair) for pair in zip(bodies, specs, strict=True)]
    values = parsed.quantizer.decode(parsed.params, streams, segments)
    if indices is None:
        return values, layout
    vector = np.zeros(layout.size, dtype=np.float32)
    vector[indices] = values
    return vector, layout


def describe(payload: Buffer) -> Description:
    """Return what the header says; checksum and lengths are checked, no value is decoded."""
    parsed = parse(payload, None, 1 << 62)
    return Description(
        version=VERSION,
        sparsifier=parsed.sparsifier.name,
        quantizer=parsed.quantizer.name,
        coder=parsed.coder.name,
        n=parsed.layout.size,
        tensors=len(parsed.layout),
        bytes=memoryview(payload).nbytes,
    )


def _check_update(update: Vector, layout: Layout) -> None:
    if (
        not isinstance(update, np.ndarray)
        or update.dtype != np.float32
        or update.shape != (layout.size,)
        or not update.flags.c_contiguous
    ):
        got = f"{getattr(update, 'dtype', type(update).__name__)} {getattr(update, 'shape', '')}"
        raise ValueError(f"update must be {layout.size} contiguous float32 entries, not {got}")
    if not is_finite(update):
        first = int(np.argmin(np.isfinite(update)))
        tensor = int(np.searchsorted(layout.offsets, first, side="right")) - 1
        what = "NaN" if np.isnan(update[first]) else "infinity"
        raise PayloadError(
            f"update holds {what} in {layout.names[tensor]}: training has diverged; "
            "lower the learning rate or clip the gradients"
        )


def _index_spec(count: int, size: int) -> Spec:
    return Spec(Kind.INDICES, _U4, count, size)


def _segments(indices: Indices, layout: Layout) -> Segments:
    """Return (T+1,) offsets of the tensors within the selected values."""
    bounds = layout.offsets.astype(np.uint32)
    return np.searchsorted(indices, bounds).astype(np.int64, copy=False)


def _check_indices(stream: Array, size: int) -> Indices:
    indices = cast(Indices, stream.astype(np.uint32, copy=False))
    if len(indices) and (indices[-1] >= size or not (indices[1:] > indices[:-1]).all()):
        raise PayloadError("payload holds indices that do not increase or lie beyond the model")
    return indices
