"""Takes payloads apart and builds them again with changed parts.

Lengths, padding and codings stay valid, so that the decoder reads the changed part.
"""

import numpy as np
from xxhash import xxh3_64_intdigest

from edgewire.compression.base import PayloadError
from edgewire.compression.batchnorm import separate
from edgewire.compression.decoder import describe, exact_spec, index_spec, parts_of
from edgewire.compression.make import make_codec
from edgewire.compression.registry import by_id
from edgewire.compression.scatter import find
from edgewire.compression.wire import NAMED, ids_of, parse, tables, unpack, with_native_table
from edgewire.compression.wire_header import shape_table, varint
from edgewire.compression.wire_natives import NativeTensor, natives_spec

NUMBERS = (0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 128, 1 << 14, 1 << 16, 1 << 31, 1 << 62)


def streams_of(parsed, before, context=None):
    """Return the content and the spec of each stream of a payload, in the payload's order."""
    layout, specs = parsed.layout, []
    known = None if context is None else context.of(layout, parsed.exact)
    if parsed.exact:
        cut = separate(layout, parsed.exact)
        specs.append(exact_spec(cut.exact_size))
        layout = cut.layout
    indices = before if parsed.repeated is not None else None
    if parsed.repeated is None and parsed.selected is not None:
        specs.append(index_spec(parsed.selected, layout.size, known))
        indices = unpack(parsed.coder, parsed.bodies[len(specs) - 1], specs[-1])
    specs += parsed.quantizer.specs(parts_of(indices, layout))
    specs += [natives_spec(parsed.own)] if parsed.own else []
    bodies = zip(parsed.bodies, specs, strict=True)
    return [(unpack(parsed.coder, *pair).copy(), pair[1]) for pair in bodies]


def widened(cut, indices, values, exact):
    """Join selected trained entries and all exact entries, as the decoder does."""
    borders = find(indices, cut.borders)
    return cut.widen_indices(indices, borders), cut.merge(values, exact, borders)


def with_checksum(body, layout=None, context=None):
    """Append the right checksum, so that the decoder reads the changed bytes.

    `layout`, `context`: of the vector, for a payload in the short form.
    """
    if layout is None:
        return body + xxh3_64_intdigest(body).to_bytes(8, "little")
    seed = xxh3_64_intdigest(context.activity, xxh3_64_intdigest(shape_table(layout)))
    return body + xxh3_64_intdigest(body, seed).to_bytes(8, "little")[:4]


def encoded_again(payload, vector, layout, whole=False, **options):
    """Encode a vector by a payload's own quantizer and coder, and name the payload's sparsifier.

    With `whole`, no indices are sent.
    """
    said = describe(payload)
    stages = {"quantizer": said.quantizer, "coder": said.coder}
    codec = make_codec(**stages) if whole else make_codec("topk", density=1.0, **stages)
    made = codec.encode(np.asarray(vector, np.float32), layout, memory={}, **options)
    return with_checksum(made[:4] + payload[4:5] + made[5:-8])


class Surgery:
    """Changes random parts of a payload; a call returns the changed body without checksum."""

    def __init__(self, seed):
        self.draw = np.random.default_rng(seed)
        self.ways = (self.entries, self.entries, self.fill, self.order, self.length, self.streams,
                     self.parameters, self.selection, self.methods, self.exact)  # fmt: skip

    def __call__(self, payload, before, layout=None, own=(), context=None):
        """Return the bytes of a changed copy of a payload, without the checksum.

        `layout`, `own`, `context`: what a decoder must know, for a payload in the short form.
        """
        self.short = layout is not None
        parsed = parse(payload, layout, 1 << 28, own=own, context=context)
        self.ids, self.params = list(ids_of(payload)), list(parsed.quantizer.params())
        self.chosen, self.repeated = parsed.selected, parsed.repeated
        self.tensors, self.listed = list(parsed.exact), streams_of(parsed, before, context)
        for _ in range(self.draw.integers(1, 4)):
            self.ways[self.draw.integers(len(self.ways))]()
        arrays = [np.zeros(each.shape, each.dtype) for each in parsed.own]
        own = [NativeTensor(d.position, d.name, a) for d, a in zip(parsed.own, arrays, strict=True)]
        named = not self.short and bool(payload[7] & NAMED)
        head = tables(parsed.layout, bytes(self.ids), named, tuple(self.tensors), short=self.short)
        return self.joined(with_native_table(head, own))

    def some(self, count):
        return int(self.draw.integers(count))

    def stream(self):
        """Return the index of a random stream that is not empty, or None."""
        full = [place for place, (array, _) in enumerate(self.listed) if array.size]
        return full[self.some(len(full))] if full else None

    def extreme(self, dtype):
        """Return one entry: a number at the limits of its type, or random bits."""
        patterns = (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", self.draw.bytes(1))
        raw = patterns[self.some(len(patterns))] * dtype.itemsize
        raw = raw[:-1] + (b"\x7f" if self.some(3) == 0 else raw[-1:])
        return np.frombuffer(raw, dtype)[0]

    def entries(self):
        if (place := self.stream()) is not None:
            array = self.listed[place][0]
            for at in self.draw.integers(0, array.size, self.some(8) + 1):
                array[at] = self.extreme(array.dtype)

    def fill(self):
        if (place := self.stream()) is not None:
            array = self.listed[place][0]
            array[self.some(array.size) :] = self.extreme(array.dtype)

    def order(self):
        if (place := self.stream()) is not None:
            array, at = self.listed[place][0], self.some(3)
            array[:] = (array[::-1], np.sort(array), np.roll(array, 1))[at].copy()

    def length(self):
        if (place := self.stream()) is not None:
            array, spec = self.listed[place]
            size = self.some(2 * array.size)
            self.listed[place] = np.resize(array, size), spec._replace(size=size)

    def streams(self):
        if self.listed:
            place, other = self.some(len(self.listed)), self.some(len(self.listed))
            way = self.some(3)
            if way == 0:
                del self.listed[place]
            elif way == 1:
                self.listed.insert(other, self.listed[place])
            else:
                swapped = self.listed[other], self.listed[place]
                self.listed[place], self.listed[other] = swapped

    def parameters(self):
        number = NUMBERS[self.some(len(NUMBERS))]
        if self.params and self.some(3):
            self.params[self.some(len(self.params))] = number
        else:
            self.params = [*self.params, number] if self.some(2) else self.params[1:]

    def selection(self):
        if self.some(2) and self.chosen is not None:
            self.chosen = max(0, self.chosen + self.some(5) - 2)
            return
        self.chosen = self.some(2000) if self.some(3) else None
        self.repeated = self.some(1 << 32) if self.chosen is not None and self.some(2) else None

    def methods(self):
        self.ids[self.some(3)] = self.some(12)

    def exact(self):
        self.tensors = [tensor for tensor in range(5) if self.some(2)]

    def coded(self, array, spec):
        """Return a stream as stored in a payload: coded if that makes it smaller."""
        try:
            coder = by_id("coder", self.ids[2])()
            coded = coder.encode(array, spec) if self.some(4) else None
        except (PayloadError, ValueError, IndexError):  # this coder may not accept the stream
            coded = None
        if coded is None or len(coded) >= array.nbytes:
            return array.tobytes(), False
        coded = bytearray(coded)
        if self.some(8) == 0:
            coded[self.some(len(coded))] = self.some(256)
        return bytes(coded), True

    def joined(self, head):
        selection = [0] if self.chosen is None else [1 if self.repeated is None else 2]
        head += bytes(selection) + (b"" if self.chosen is None else varint(self.chosen))
        if self.repeated is not None:
            head += self.repeated.to_bytes(4, "little")
        bodies = [self.coded(array, spec) for array, spec in self.listed]
        numbers = [len(self.params), *self.params, len(bodies)]
        numbers += [len(body) << 1 | coded for body, coded in bodies]
        if self.short and bodies and self.some(16):
            numbers[-1] &= 1
        head += b"".join(map(varint, numbers))
        head += bytes(0 if self.short else -len(head) % 8)
        return head + b"".join(body for body, _ in bodies)
