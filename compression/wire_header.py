"""Reads and writes a payload's header: integers, and tables of shapes and names.

The page docs/payload.md describes the format.
"""

import math
from functools import lru_cache

from xxhash import xxh3_64_intdigest

from .base import PayloadError
from .layout import Layout

ENDS = "payload ends within its header"
MAX_TENSORS = 1 << 14
MAX_DIMENSIONS = 32
MAX_NAME = 1 << 10  # bytes of a tensor's name

# In the table of names a dtype is one byte, its index in DTYPES. The order is part of the format,
# so a new dtype must be appended.
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
)


def varint(number: int) -> bytes:
    """Encode an integer in as few bytes as possible (unsigned LEB128)."""
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


class Reader:
    """Reads untrusted bytes in order; raises PayloadError at the end of the bytes."""

    def __init__(self, view: memoryview, position: int = 0) -> None:
        self.view, self.size = view, len(view)
        self.position = position

    def take(self, count: int) -> memoryview:
        """Return the next ``count`` bytes."""
        start = self.position
        if count > self.size - start:
            raise PayloadError(ENDS)
        self.position = start + count
        return self.view[start : self.position]

    def byte(self) -> int:
        """Return the next byte."""
        try:
            found = self.view[self.position]
        except IndexError:
            raise PayloadError(ENDS) from None
        self.position += 1
        return found

    def varint(self) -> int:
        """Return the next integer (LEB128).

        Raises PayloadError for 2**63 or more, and for more bytes than the integer needs.
        """
        view, number, shift = self.view, 0, 0
        while True:
            try:
                byte = view[self.position]
            except IndexError:
                raise PayloadError(ENDS) from None
            self.position += 1
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 56:
                raise PayloadError("payload holds a number of more than 63 bits")
        if byte == 0 and shift:
            raise PayloadError("payload holds a number with needless bytes")
        return number


@lru_cache(maxsize=64)
def shape_table(layout: Layout) -> bytes:
    """Encode the tensors' shapes; raises ValueError for shapes beyond the format's limits."""
    shapes = map(shaped, layout.names, layout.shapes)
    return b"".join([counted(len(layout)), *shapes])


def counted(tensors: int) -> bytes:
    """Encode the number of a table's tensors; raises ValueError beyond the format's limit."""
    if tensors > MAX_TENSORS:
        raise ValueError(f"a payload holds at most {MAX_TENSORS} tensors, not {tensors}")
    return varint(tensors)


def shaped(name: str, shape: tuple[int, ...]) -> bytes:
    """Encode a tensor's shape, which `read_shape` reads; raises ValueError for too many axes."""
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has more than {MAX_DIMENSIONS} dimensions")
    return b"".join(map(varint, (len(shape), *shape)))


def typed(name: str, dtype: str) -> bytes:
    """Encode a tensor's dtype as one byte; raises ValueError for an unknown dtype."""
    if dtype not in DTYPES:
        raise ValueError(f"tensor {name} has dtype {dtype}; known are {', '.join(DTYPES)}")
    return bytes((DTYPES.index(dtype),))


@lru_cache(maxsize=64)
def shape_hash(layout: Layout) -> int:
    """Return a 64-bit hash of the table of shapes."""
    return xxh3_64_intdigest(shape_table(layout))


@lru_cache(maxsize=64)
def name_table(layout: Layout) -> bytes:
    """Encode the tensors' dtypes and names, after the length; raises ValueError if it cannot."""
    if len(set(layout.names)) < len(layout):
        raise ValueError("two tensors have the same name")
    pairs = zip(layout.names, layout.dtypes, strict=True)
    table = b"".join(typed(name, dtype) + named(name) for name, dtype in pairs)
    return varint(len(table)) + table


def named(name: str) -> bytes:
    """Encode a tensor's name, after its length; raises ValueError if the name is too long."""
    text = name.encode()
    if len(text) > MAX_NAME:
        raise ValueError(f"tensor {name[:40]}... has a name of more than {MAX_NAME} bytes")
    return varint(len(text)) + text


def read_name(reader: Reader) -> str:
    """Read a tensor's name that `named` encoded."""
    length = reader.varint()
    if length > MAX_NAME:
        raise PayloadError(f"payload holds a tensor name of more than {MAX_NAME} bytes")
    try:
        return str(reader.take(length), "utf-8")
    except UnicodeDecodeError:
        raise PayloadError("payload holds a tensor name that is not UTF-8") from None


def read_layout(
    reader: Reader, has_names: bool, max_size: int, max_tensors: int = MAX_TENSORS
) -> Layout:
    """Read the tables of shapes and names; raises PayloadError if malformed or too large."""
    tensors = reader.varint()
    if tensors > max_tensors:
        raise PayloadError(f"payload declares {tensors} tensors; at most {max_tensors} are allowed")
    listed: list[tuple[int, ...]] = []
    size = 0
    for _ in range(tensors):
        listed.append(read_shape(reader, max_size))
        size += math.prod(listed[-1])
        if size > max_size:
            raise PayloadError(f"payload declares more than the {max_size} entries allowed here")
    shapes = tuple(listed)
    if not has_names:
        names = tuple(str(tensor) for tensor in range(len(shapes)))
        return Layout(names, shapes, ("float32",) * len(shapes))
    table = Reader(reader.take(reader.varint()))
    found: dict[str, str] = {}
    for _ in shapes:
        code = table.byte()
        if code >= len(DTYPES):
            raise PayloadError(f"payload holds the unknown dtype {code}")
        found[read_name(table)] = DTYPES[code]
    if table.position != len(table.view) or len(found) != len(shapes):
        raise PayloadError("payload holds another number of names than of tensors")
    return Layout(tuple(found), shapes, tuple(found.values()))


def skip_layout(reader: Reader, has_names: bool, layout: Layout) -> None:
    """Read past the tables of shapes and names, which must be those of the layout.

    Raises PayloadError for other shapes or names.
    """
    if not skip(reader, shape_table(layout)):
        raise PayloadError(f"payload is for another model: {_difference(reader, layout)}")
    try:
        same = not has_names or skip(reader, name_table(layout))
    except ValueError as error:  # no payload can hold this layout's names
        raise PayloadError(f"payload names its tensors: {error}") from None
    if not same:
        raise PayloadError("payload is for another model: it has other names or dtypes")


def skip(reader: Reader, table: bytes) -> bool:
    """Return whether the next bytes equal ``table``; if they do, read past them."""
    start = reader.position
    if reader.view[start : start + len(table)] != table:
        return False
    reader.position += len(table)
    return True


def read_shape(reader: Reader, max_size: int) -> tuple[int, ...]:
    """Read one tensor's shape: the number of dimensions, then each dimension."""
    dimensions = reader.varint()
    if dimensions > MAX_DIMENSIONS:
        raise PayloadError(f"payload declares a tensor of {dimensions} dimensions")
    shape = tuple([reader.varint() for _ in range(dimensions)])
    # Dimensions of 0 are skipped, because numpy also refuses an empty tensor with huge dimensions.
    if math.prod(d for d in shape if d) > max_size:
        raise PayloadError(f"payload declares more than the {max_size} entries allowed here")
    return shape


def _difference(reader: Reader, layout: Layout) -> str:
    """Read a table of shapes up to the first that differs from the layout, and describe it."""
    tensors = reader.varint()
    if tensors != len(layout):
        return f"it holds {tensors} tensors, {len(layout)} are expected"
    for name, ours in zip(layout.names, layout.shapes, strict=True):
        theirs = read_shape(reader, 1 << 62)
        if theirs != tuple(ours):
            return f"{name} has shape {theirs}, {tuple(ours)} is expected"
    return "its table of shapes differs"
