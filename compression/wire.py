"""Reads and writes a payload: header, streams and checksum (format: docs/payload.md).

A payload has one of two forms. The short form holds no shapes, for a receiver that knows them.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from .base import Array, Buffer, Coder, Indices, PayloadError, Quantizer, Sparsifier, Spec
from .coders.shared_context import SharedContext
from .layout import Layout
from .registry import STAGES, by_id, quantizer_of
from .wire_header import (
    MAX_TENSORS,
    Reader,
    name_table,
    read_layout,
    shape_hash,
    shape_table,
    skip_layout,
    varint,
)
from .wire_natives import Declared, NativeTensor, expect_natives, native_table, read_natives

MAGIC = b"EWP"
VERSION = 1
# Flags: the payload has a table of names, of exact tensors, of tensors in their own dtype.
NAMED, EXACT, OWN = 1, 2, 4
# The first byte of a payload in the short form, version 2, to which the flags EXACT and OWN are
# added. A later version gets another number; that of version 1 was 0xD0.
SHORT = 0xD8
DIFFERENCES = b"\xe8"  # the first byte of native tensors as differences (`native_differences.py`)
ALL, INDICES, REPEATED = 0, 1, 2  # how a payload says which entries it holds
_MOST_NUMBERS = 16  # the most streams, and the most parameters of a quantizer


class _Form(NamedTuple):
    """The places of a payload's fixed parts."""

    prefix: int  # bytes before the tables
    ids: slice  # the stages' ids
    flags: int  # the byte with the flags
    mark: int  # what this byte is without flags
    checksum: int  # bytes at the end


_LONG = _Form(prefix=8, ids=slice(4, 7), flags=7, mark=0, checksum=8)
_SHORT = _Form(prefix=4, ids=slice(1, 4), flags=0, mark=SHORT, checksum=4)


def _form_of(payload: Buffer) -> _Form:
    """Return the form of a payload, by its first byte."""
    view = memoryview(payload)
    return _SHORT if len(view) and view[0] & ~(EXACT | OWN) == SHORT else _LONG


class Body(NamedTuple):
    """The bytes of one stream in the payload."""

    view: memoryview
    coded: bool


class Parsed(NamedTuple):
    """A payload whose checksum and lengths were checked; its streams are still coded."""

    sparsifier: type[Sparsifier]
    quantizer: Quantizer
    coder: type[Coder]
    layout: Layout  # of the float32 vector
    own: tuple[Declared, ...]  # tensors in their own dtype, which are not in the vector
    exact: tuple[int, ...]  # positions of the vector's tensors that the payload holds exactly
    selected: int | None  # number of indices; None: every coordinate is present
    repeated: int | None  # digest of the last payload's indices, if this payload repeats them
    bodies: list[Body]
    short: bool  # whether the checksum covers the context


@lru_cache(maxsize=64)
def tables(
    layout: Layout, ids: bytes, named: bool, exact: tuple[int, ...], *, short: bool = False
) -> bytes:
    """Return the first part of a payload's header: prefix, shapes, names, and exact tensors.

    This part is equal for all updates of a model by the same codec. ``short``: it holds no shapes
    and no names, for a receiver that has the layout.
    """
    flags = EXACT * bool(exact)
    if short:
        parts = [bytes((SHORT | flags,)), ids]
    else:
        parts = [MAGIC, bytes((VERSION,)), ids, bytes((NAMED * named | flags,))]
        parts.append(shape_table(layout))
        if named:
            parts.append(name_table(layout))
    if exact:
        gaps = (tensor - last - 1 for last, tensor in pairwise((-1, *exact)))
        parts += [varint(len(exact)), *map(varint, gaps)]
    return b"".join(parts)


def ids_of(payload: Buffer) -> bytes:
    """Return the three bytes with the methods' ids in a payload; nothing is checked."""
    return bytes(memoryview(payload)[_form_of(payload).ids])


def with_native_table(head: bytes, own: Sequence[NativeTensor]) -> bytes:
    """Insert the table of tensors in their own dtype into a header's first part (`tables`)."""
    if not own:
        return head
    form = _form_of(head)
    prefix = bytearray(head[: form.prefix])
    prefix[form.flags] |= OWN
    return bytes(prefix) + native_table(own) + head[form.prefix :]


def assemble(
    head: bytes, bodies: Sequence[Body], layout: Layout, context: SharedContext | None
) -> bytes:
    """Join header, directory, padding, streams and checksum to a payload; ``layout``: the vector's.

    Values are copied only here. ``context``: what both ends know, for the short form.
    """
    form = _LONG if context is None else _SHORT
    sizes = [body.view.nbytes << 1 | body.coded for body in bodies]
    if form is _SHORT and sizes:
        sizes[-1] &= 1  # the last stream's length follows from the payload's
    head += b"".join(map(varint, (len(sizes), *sizes)))
    if form is _LONG:
        head += bytes(-len(head) % 8)
    parts: list[Buffer] = [head, *(body.view for body in bodies)]
    return b"".join([*parts, _checksum(parts, form, layout, context)])


def _checksum(
    parts: Sequence[Buffer], form: _Form, layout: Layout | None, context: SharedContext | None
) -> bytes:
    """Return the checksum of a payload's earlier bytes.

    In the short form it also depends on the shapes and on the context. So a receiver with others
    refuses the payload. Raises PayloadError for this form without one of them.
    """
    seed = 0
    if form is _SHORT:
        if layout is None:
            raise PayloadError("payload holds no shapes: they must be known here")
        if context is None:
            raise PayloadError("payload was coded by a context that is not known here")
        seed = context.hash(shape_hash(layout))
    found = xxh3_64(parts[0], seed=seed)
    for part in parts[1:]:
        found.update(part)
    return found.intdigest().to_bytes(8, "little")[: form.checksum]


def parse(
    payload: Buffer,
    layout: Layout | None,
    max_size: int,
    max_tensors: int = MAX_TENSORS,
    *,
    own: tuple[int, ...] = (),
    exact: tuple[int, ...] | None = None,
    of_vector: bool = False,
    context: SharedContext | None = None,
    own_payload: bool = False,
) -> Parsed:
    """Check a payload's checksum and header, but not the contents of its streams.

    ``layout``: the layout of the whole model; None accepts any tensors up to ``max_size`` entries
    and ``max_tensors`` tensors. ``own``: the positions of the tensors in their own dtype; all other
    tensors are in the vector. ``exact``: the positions, among the vector's tensors, of the tensors
    that are sent without loss; None accepts any. ``of_vector``: True if ``layout`` is only the
    layout of the vector; then any tensors in their own dtype are accepted. ``context``: what both
    ends know, which the short form needs. ``own_payload``: True if this process has made the
    payload; then the checksum is not checked, and the context is not needed. Raises PayloadError
    for any other payload.
    """
    vector = layout if layout is None or of_vector else layout.without(own)
    view = memoryview(payload).cast("B")
    form = _form_of(view)
    if len(view) < form.prefix + form.checksum or (form is _LONG and view[:3] != MAGIC):
        raise PayloadError("these bytes are no payload")
    if form is _LONG and view[3] != VERSION:
        raise PayloadError(f"payload has version {view[3]}; this program reads {VERSION}")
    view, checksum = view[: -form.checksum], view[-form.checksum :]
    if not own_payload and _checksum([view], form, vector, context) != checksum:
        what = "damaged" if form is _LONG else "damaged, or for another model or another context"
        raise PayloadError(f"payload is {what}: its checksum does not match")
    flags = view[form.flags] ^ form.mark
    if flags & ~(NAMED | EXACT | OWN):
        raise PayloadError(f"payload has unknown flags {flags:#x}")
    reader = Reader(view, form.prefix)
    if layout is None or of_vector:
        there = read_natives(reader, max_size, max_tensors) if flags & OWN else ()
    else:
        there = expect_natives(reader, bool(flags & OWN), layout, own)
    if vector is None:
        vector = read_layout(reader, bool(flags & NAMED), max_size, max_tensors)
    elif form is _LONG:
        skip_layout(reader, bool(flags & NAMED), vector)
    exactly = _read_exact(reader, len(vector)) if flags & EXACT else ()
    if exact is not None and exactly != exact:
        raise PayloadError("payload holds other exact tensors than this method sends")
    sparsifier, quantizer, coder = map(by_id, STAGES, view[form.ids])
    selection, params = _read_selection(reader, vector), _read_numbers(reader)
    bodies = _read_bodies(reader, form)
    return Parsed(
        sparsifier,  # type: ignore[arg-type]
        quantizer_of(quantizer, params),  # type: ignore[arg-type]
        coder,  # type: ignore[arg-type]
        vector,
        there,
        exactly,
        *selection,
        bodies,
        form is _SHORT,
    )


class StreamSizes(NamedTuple):
    """The bytes of a payload's streams; the other bytes of the payload are its header.

    ``indices``: those that say which entries the payload holds. ``values``: those that say the
    entries' values.
    """

    indices: int = 0
    values: int = 0


def stream_sizes(payloads: Iterable[Buffer], layout: Layout | None = None) -> StreamSizes:
    """Return the sizes of the streams in payloads that this process has made, added up.

    ``layout``: the vector's, which only the short form needs. Raises PayloadError for other bytes.
    """
    indices = values = 0
    for payload in payloads:
        view = memoryview(payload).cast("B")
        if view[:1] == DIFFERENCES:
            values += len(view)
            continue
        known = layout if _form_of(view) is _SHORT else None
        sizes = sizes_of(parse(view, known, 1 << 62, of_vector=True, own_payload=True))
        indices, values = indices + sizes.indices, values + sizes.values
    return StreamSizes(indices, values)


def sizes_of(parsed: Parsed) -> StreamSizes:
    """Return the sizes of a parsed payload's streams."""
    sizes = [body.view.nbytes for body in parsed.bodies]
    at = bool(parsed.exact)  # the stream of exact tensors is the first
    indices = parsed.selected is not None and parsed.repeated is None and at < len(sizes)
    taken = sizes[at] if indices else 0
    return StreamSizes(taken, sum(sizes) - taken)


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


def _read_bodies(reader: Reader, form: _Form) -> list[Body]:
    """Read directory and streams; the short form has no padding, and no last length."""
    sizes = _read_numbers(reader)
    if form is _LONG and any(reader.take(-reader.position % 8)):
        raise PayloadError("payload has padding that is not zero")
    if form is _SHORT and sizes:
        if sizes[-1] > 1:
            raise PayloadError("payload holds the length of its last stream, which needs none")
        rest = len(reader.view) - reader.position - sum(size >> 1 for size in sizes[:-1])
        sizes = *sizes[:-1], max(rest, 0) << 1 | sizes[-1]
    bodies = [Body(reader.take(size >> 1), bool(size & 1)) for size in sizes]
    if reader.position != len(reader.view):
        last = "last stream" if sizes or form is _LONG else "header"
        raise PayloadError(f"payload goes on after its {last}")
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
