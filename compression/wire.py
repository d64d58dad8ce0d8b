"""Reads and writes a payload: header, streams and checksum (format: docs/payload.md)."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from .base import (
    Array,
    Buffer,
    Coder,
    Indices,
    PayloadError,
    Quantizer,
    Sparsifier,
    Spec,
)
from .layout import Layout
from .registry import by_id
from .wire_header import (
    DIGEST_SIZE,
    MAX_TENSORS,
    Reader,
    name_table,
    read_layout,
    shape_digest,
    shape_table,
    skip_layout,
    varint,
)
from .wire_natives import Declared, NativeTensor, expect_natives, native_table, read_natives

MAGIC = b"EWP"
VERSION = 1
# Flags: the payload has a table of names, of exact tensors, of tensors in their own dtype.
# With the last flag the payload holds a digest of the table of shapes in place of the table.
NAMED, EXACT, OWN, DIGEST = 1, 2, 4, 8
ALL, INDICES, REPEATED = 0, 1, 2  # how a payload says which entries it holds
_PREFIX = 8  # bytes before the tables
_IDS = slice(4, 7)  # the stages' ids in the prefix
_CHECKSUM = 8  # bytes at the end
_MOST_NUMBERS = 16  # the most streams, and the most parameters of a quantizer


class Body(NamedTuple):
    """The bytes of one stream in the payload."""

    view: memoryview
    coded: bool


class Parsed(NamedTuple):
    """A payload whose checksum and lengths were checked; its streams are still coded."""

    sparsifier: type[Sparsifier]
    quantizer: type[Quantizer]
    coder: type[Coder]
    layout: Layout  # of the float32 vector
    own: tuple[Declared, ...]  # tensors in their own dtype, which are not in the vector
    exact: tuple[int, ...]  # positions of the vector's tensors that the payload holds exactly
    selected: int | None  # number of indices; None: every coordinate is present
    repeated: int | None  # digest of the last payload's indices, if this payload repeats them
    params: tuple[int, ...]
    bodies: list[Body]


@lru_cache(maxsize=64)
def tables(
    layout: Layout, ids: bytes, named: bool, exact: tuple[int, ...], *, short: bool = False
) -> bytes:
    """Return the first part of a payload's header: prefix, shapes, names, and exact tensors.

    This part is equal for all updates of a model by the same codec. ``short``: in place of shapes
    and names it holds a digest of the shapes, for a receiver that has the layout.
    """
    flags = bytes((DIGEST * short | NAMED * (named and not short) | EXACT * bool(exact),))
    parts = [MAGIC, bytes((VERSION,)), ids, flags]
    parts.append(shape_digest(layout) if short else shape_table(layout))
    if named and not short:
        parts.append(name_table(layout))
    if exact:
        gaps = (tensor - last - 1 for last, tensor in pairwise((-1, *exact)))
        parts += [varint(len(exact)), *map(varint, gaps)]
    return b"".join(parts)


def ids_of(payload: Buffer) -> bytes:
    """Return the three bytes with the methods' ids in a payload; nothing is checked."""
    return bytes(memoryview(payload)[_IDS])


def with_native_table(head: bytes, own: Sequence[NativeTensor]) -> bytes:
    """Insert the table of tensors in their own dtype into a header's first part (`tables`)."""
    if not own:
        return head
    flags = bytes((head[_PREFIX - 1] | OWN,))
    return head[: _PREFIX - 1] + flags + native_table(own) + head[_PREFIX:]


def assemble(head: bytes, bodies: Sequence[Buffer]) -> bytes:
    """Join header, padding, streams and checksum to a payload; values are copied only here."""
    parts = [head + bytes(-len(head) % 8), *bodies]
    checksum = xxh3_64()
    for part in parts:
        checksum.update(part)
    return b"".join([*parts, checksum.intdigest().to_bytes(_CHECKSUM, "little")])


def parse(
    payload: Buffer,
    layout: Layout | None,
    max_size: int,
    max_tensors: int = MAX_TENSORS,
    *,
    own: tuple[int, ...] = (),
    exact: tuple[int, ...] | None = None,
    of_vector: bool = False,
) -> Parsed:
    """Check a payload's checksum and header, but not the contents of its streams.

    ``layout``: the layout of the whole model; None accepts any tensors up to ``max_size`` entries
    and ``max_tensors`` tensors. ``own``: the positions of the tensors in their own dtype; all other
    tensors are in the vector. ``exact``: the positions, among the vector's tensors, of the tensors
    that are sent without loss; None accepts any. ``of_vector``: True if ``layout`` is only the
    layout of the vector; then any tensors in their own dtype are accepted. Raises PayloadError for
    any other payload.
    """
    view = memoryview(payload).cast("B")
    if len(view) < _PREFIX + _CHECKSUM or view[:3] != MAGIC:
        raise PayloadError("these bytes are no payload")
    if view[3] != VERSION:
        raise PayloadError(f"payload has version {view[3]}; this program reads {VERSION}")
    view, checksum = view[:-_CHECKSUM], view[-_CHECKSUM:]
    if xxh3_64_intdigest(view) != int.from_bytes(checksum, "little"):
        raise PayloadError("payload is damaged: its checksum does not match")
    sparsifier, quantizer, coder, flags = view[4:_PREFIX]
    if flags & ~(NAMED | EXACT | OWN | DIGEST) or (flags & NAMED and flags & DIGEST):
        raise PayloadError(f"payload has unknown flags {flags:#x}")
    reader = Reader(view, _PREFIX)
    if layout is None or of_vector:
        there = read_natives(reader, max_size, max_tensors) if flags & OWN else ()
    else:
        there = expect_natives(reader, bool(flags & OWN), layout, own)
        layout = layout.without(own)
    if flags & DIGEST:
        layout = _by_digest(reader, layout)
    elif layout is None:
        layout = read_layout(reader, bool(flags & NAMED), max_size, max_tensors)
    else:
        skip_layout(reader, bool(flags & NAMED), layout)
    exactly = _read_exact(reader, len(layout)) if flags & EXACT else ()
    if exact is not None and exactly != exact:
        raise PayloadError("payload holds other exact tensors than this method sends")
    return Parsed(
        by_id("sparsifier", sparsifier),  # type: ignore[arg-type]
        by_id("quantizer", quantizer),  # type: ignore[arg-type]
        by_id("coder", coder),  # type: ignore[arg-type]
        layout,
        there,
        exactly,
        *_read_selection(reader, layout),
        _read_numbers(reader),
        _read_bodies(reader),
    )


def _read_exact(reader: Reader, tensors: int) -> tuple[int, ...]:
    count = reader.varint()
    if not 0 < count <= tensors:
        raise PayloadError(f"payload declares {count} exact tensors of {tensors}")
    found = accumulate([reader.varint() + 1 for _ in range(count)], initial=-1)
    exact = tuple(found)[1:]
    if exact[-1] >= tensors:
        raise PayloadError("payload declares exact tensors beyond its last")
    return exact


def digest(indices: Indices) -> int:
    """Return a 32-bit hash of the indices, to check that sender and receiver have the same ones."""
    return xxh3_64_intdigest(np.ascontiguousarray(indices, dtype="<u4").data) & 0xFFFFFFFF


def _by_digest(reader: Reader, layout: Layout | None) -> Layout:
    """Read the digest of the shapes, which must be those of the layout."""
    if layout is None:
        raise PayloadError("payload holds no shapes: they must be known here")
    if reader.take(DIGEST_SIZE) != shape_digest(layout):
        raise PayloadError("payload is for another model: the digest of its shapes differs")
    return layout


def _read_selection(reader: Reader, layout: Layout) -> tuple[int | None, int | None]:
    selection = reader.byte()
    if selection == ALL:
        return None, None
    if selection not in (INDICES, REPEATED):
        raise PayloadError(f"payload has the unknown selection {selection}")
    count = reader.varint()
    if count > layout.size:
        raise PayloadError(f"payload declares {count} indices into {layout.size} entries")
    repeated = int.from_bytes(reader.take(4), "little") if selection == REPEATED else None
    return count, repeated


def _read_numbers(reader: Reader) -> tuple[int, ...]:
    count = reader.varint()
    if count > _MOST_NUMBERS:
        raise PayloadError(f"payload declares {count} streams or parameters")
    return tuple([reader.varint() for _ in range(count)])


def _read_bodies(reader: Reader) -> list[Body]:
    sizes = _read_numbers(reader)
    if any(reader.take(-reader.position % 8)):
        raise PayloadError("payload has padding that is not zero")
    bodies = [Body(reader.take(size >> 1), bool(size & 1)) for size in sizes]
    if reader.position != len(reader.view):
        raise PayloadError("payload goes on after its last stream")
    return bodies


def unpack(coder: type[Coder], body: Body, spec: Spec) -> Array:
    """Return the array of one stream; an uncoded, aligned stream is a view of the payload."""
    size = spec.nbytes
    if not body.coded:
        if len(body.view) != size:
            raise PayloadError(
                f"payload holds a stream of {len(body.view)} bytes instead of {size}"
            )
        stream: Array = np.frombuffer(body.view, dtype=spec.dtype)
        return stream if stream.flags.aligned else stream.copy()
    if len(body.view) >= size:
        raise PayloadError("payload holds a coded stream that is no smaller than uncoded")
    return coder.decode(body.view, spec)
