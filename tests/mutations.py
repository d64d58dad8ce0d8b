"""Mutations of whole replies that use their structure; payloads have valid checksums."""

import copy
from collections import deque
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import Update, decode_update
from edgewire.compression.flower.compact_records import COMPACT, compact, restored
from edgewire.compression.flower.headers import HEADER, UplinkHeader
from edgewire.compression.flower.message_size import CARRIER
from edgewire.compression.flower.records import STYPE
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire_natives import NativeTensor
from tests.compression.surgery import Surgery, encoded_again, with_checksum

NUMBERS = (0, 1, -1, 2, 3, 10**6, 2**31, 2**40, 2**62, 2**63 - 1, 10**300, 0.0, -0.5, 1e30,
           1e308, float("nan"), float("inf"), True, "x", b"12345678", [1, 2], [0.5], ["a"],
           [])  # fmt: skip
TYPES = ("float16", "float64", "int8", "int64", "uint64", "bool", "bfloat16", "complex64", "object")
EXTRA = ("copy", "gradients-0", "gradients", "output", "input", "labels", "payload", "native",
         "initial", "more", "")  # fmt: skip
HUGE = (1 << 20, 1 << 30, 1 << 31, 1 << 32, 1 << 40, 1 << 62)


def payload_array(payload: bytes) -> Array:
    return Array("uint8", (len(payload),), STYPE, payload)


def payloads_of(content: Any, kind: str = STYPE) -> list[tuple[str, str, Array]]:
    """Return the names of all Arrays of a kind, and the Arrays."""
    return [
        (record, name, array)
        for record, found in content.items()
        if isinstance(found, ArrayRecord)
        for name, array in found.items()
        if array.stype == kind
    ]


def header(descr: str, shape: str) -> str:
    """Return the header text of an .npy file."""
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


def npy_of(text: str, values: bytes, version: tuple[int, int] = (1, 0)) -> bytes:
    """Return an .npy file with this header."""
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + text.encode("latin1") + values


HEADERS = [  # header and data; with each of them numpy raised an unusual error, or none
    (header("'<f4'", "(1,)"), bytes(4)),
    (header("'<f4'", "(-2, -4)"), bytes(32)),
    (header("'<f4'", f"(0, {1 << 62})"), b""),
    (header("'<f4'", "(True,)"), bytes(4)),
    (header("'|S0'", f"({1 << 40},)"), b""),
    (header("()", "(1,)"), bytes(4)),
    (header("(" * 90 + "'<f4'," + ")" * 90, "(1,)"), bytes(4)),
    (header("'|O'", "(1,)"), bytes(4)),
    (header("'<f4'", "(" + "1, " * 80 + ")"), bytes(4)),
    ("-" * 9000 + "1\n", b""),
    ("(((((\n", b""),
    ("{[]: 1}\n", b""),
    ("x" * 20000, b""),
    ("", b""),
]
ODD_TYPES = ("2000000000f8,f4", "(2,f4", "f4," * 9000, ">f4", "O", "", "bfloat16", "S0", "x")


class Mutator:
    """Mutates replies with one random generator; stores payloads of other nodes and rounds."""

    def __init__(self, seed: int) -> None:
        self.draw, self.seed = np.random.default_rng(seed), seed
        self.surgery = Surgery(seed)
        # Payloads of earlier replies, honest and mutated.
        self.before = deque[tuple[str, bytes]](maxlen=40)
        self.ways = (
            self.drop_record, self.rename_record, self.double_record, self.retype_record,
            self.add_record, self.drop_item, self.rename_item, self.double_item, self.swap_payload,
            self.add_payload, self.declare_payload, self.retype_array, self.plain_array,
            self.odd_array,
            self.lie_in_header, self.lie_in_header, self.lie_in_metrics, self.lie_in_metrics,
            *[self.change_payload] * 8, *[self.operate] * 4, self.truncate,
        )  # fmt: skip
        self.tensor_ways = (
            self.rename_tensor, self.double_tensor, self.drop_tensor, self.resize_tensor,
            self.retype_tensor, self.move_out, self.move_in, self.swap_tensors, self.set_values,
        )  # fmt: skip

    def hear(self, reply: Message) -> None:
        """Store an honest reply's payloads."""
        if not reply.has_error():
            found = payloads_of(restored(reply.content))
            self.before.extend((name, array.data) for _, name, array in found)

    def __call__(self, reply: Message) -> tuple[Message, list[str]]:
        """Return a mutated reply, and the names of the mutations."""
        reply, done = copy.deepcopy(reply), list[str]()
        packed = restored(reply.content) is not reply.content
        opened = packed and bool(self.draw.integers(2))
        if opened:
            reply.content = restored(reply.content)
        for _ in range(self.draw.integers(1, 3)):
            way = self.some(self.ways)
            try:
                name = way(reply)
            except Exception as error:  # this mutation is impossible for this reply
                name = f"not made: {type(error).__name__}"
            done.append(f"{way.__name__} {name or ''}".strip())
        if opened:
            try:
                reply.content = compact(reply.content)
            except PayloadError:  # a value that compact records cannot hold
                done.append("not compact")
        elif packed:
            done.append(f"lie_in_compact {self.lie_in_compact(reply)}")
        return reply, done

    def some(self, choices: Any) -> Any:
        choices = list(choices)
        return choices[int(self.draw.integers(len(choices)))]

    def payloads(self, reply: Message) -> list[tuple[str, str, Array]]:
        return payloads_of(reply.content)

    # Mutations of records.

    def drop_record(self, reply: Message) -> str:
        del reply.content[name := self.some(reply.content)]
        return name

    def rename_record(self, reply: Message) -> str:
        name = self.some(reply.content)
        content = {("x" if k == name else k): v for k, v in reply.content.items()}
        reply.content = RecordDict(content)
        return name

    def double_record(self, reply: Message) -> str:
        name = self.some(reply.content)
        reply.content["y"] = copy.deepcopy(reply.content[name])
        return name

    def retype_record(self, reply: Message) -> str:
        name = self.some(reply.content)
        kinds = (ArrayRecord(), ConfigRecord(), MetricRecord(), MetricRecord({"version": 1}),
                 ConfigRecord({"loss": 0.1, "num-examples": 3}))  # fmt: skip
        reply.content[name] = self.some(kinds)
        return name

    def add_record(self, reply: Message) -> str:
        kinds = (ConfigRecord({"z": "x" * 1000}), MetricRecord({"loss": 0.5, "num-examples": 7}),
                 ArrayRecord({"w": Array(np.ones(3, np.float32))}), ArrayRecord())  # fmt: skip
        name = self.some((HEADER, "a", "zz", "metrics"))
        reply.content[name] = self.some(kinds)
        return name

    # Mutations of items in records.

    def drop_item(self, reply: Message) -> str:
        record = reply.content[self.some(reply.content)]
        del record[name := self.some(record)]
        return name

    def rename_item(self, reply: Message) -> str:
        record = reply.content[self.some(reply.content)]
        record[self.some(EXTRA)] = record.pop(name := self.some(record))
        return name

    def double_item(self, reply: Message) -> str:
        record = reply.content[self.some(reply.content)]
        record[other := self.some(EXTRA)] = record[self.some(record)]
        return other

    def swap_payload(self, reply: Message) -> str:
        """Replace a payload by a payload of another node, round or name."""
        record, name, _ = self.some(self.payloads(reply))
        other, payload = self.some(self.before)
        reply.content[record][name] = payload_array(payload)
        return f"{name} by {other}"

    def add_payload(self, reply: Message) -> str:
        record, _, _ = self.some(self.payloads(reply))
        other, payload = self.some(self.before)
        reply.content[record][name := self.some(EXTRA)] = payload_array(payload)
        return f"{name} of {other}"

    def declare_payload(self, reply: Message) -> str:
        """Add or replace a payload; it declares far more entries than it has bytes."""
        record, own, _ = self.some(self.payloads(reply))
        name = self.some((own, *EXTRA))
        size = self.some(HUGE)
        layout = Layout(("w",), ((size,),), ("float32",))
        codec = make_codec("topk", density=1.0, coder=self.some(("raw", "zstd", "entropy")))
        made = Update(layout, np.array([1], np.uint32), np.ones(1, np.float32), object)
        coded = make_codec().encode_sparse(made.indices, made.values, layout)
        reply.content[record][name] = payload_array(coded)
        return f"{name} of {size} ({codec.coder.name})"

    def retype_array(self, reply: Message) -> str:
        record, name, array = self.some(self.payloads(reply))
        dtype, stype = self.some(("uint8", *TYPES)), self.some((STYPE, "numpy.ndarray", "x"))
        shape = self.some(((len(array.data),), (), (1 << 40,), (-1,), (0,)))
        reply.content[record][name] = Array(dtype, shape, stype, array.data)
        return f"{name} {dtype} {stype} {shape}"

    def plain_array(self, reply: Message) -> str:
        record, name, _ = self.some(self.payloads(reply))
        values = np.full(self.some(((), (3,), (0,), (100, 10))), self.some((0, 1, 1e30, np.nan)))
        reply.content[record][name] = Array(values.astype(self.some(("float32", "int64", "bool"))))
        return name

    def odd_array(self, reply: Message) -> str:
        """Add or replace a numpy array; its header or type is invalid."""
        records = [r for r in reply.content.values() if isinstance(r, ArrayRecord)]
        header, values = self.some(HEADERS)
        dtype, shape = self.some(("float32", *ODD_TYPES)), self.some(((1,), (-2, -4), (0, 1 << 62)))
        name = self.some((*EXTRA, "w"))
        made = Array(dtype, shape, "numpy.ndarray", npy_of(header, values))
        if self.draw.integers(2):
            self.some(records)[name] = made
        else:
            reply.content[name] = ArrayRecord({name: made})
        return f"{name}: {header[:40]} {dtype} {shape}"

    def lie_in_header(self, reply: Message) -> str:
        header = reply.content.get(HEADER) or ConfigRecord()
        key, value = self.some((*UplinkHeader._fields, "hello")), self.some(NUMBERS)
        reply.content[HEADER] = ConfigRecord({**header, key: value})
        return f"{key}={value!r}"[:60]

    def lie_in_compact(self, reply: Message) -> str:
        """Replace, drop or double some bytes of compact records, mostly near their start."""
        carriers = payloads_of(reply.content, CARRIER)
        record, name, array = self.some(carriers) if carriers else (HEADER, "", None)
        data = bytearray(array.data if array else reply.content[HEADER][COMPACT])
        place = int(self.draw.integers(self.some((len(data), min(len(data), 40)))))
        new = self.draw.bytes(int(self.draw.integers(3)))
        data[place : place + int(self.draw.integers(3))] = new
        if array:
            reply.content[record][name] = Array("uint8", (len(data),), CARRIER, bytes(data))
        else:
            reply.content[HEADER] = ConfigRecord({COMPACT: bytes(data)})
        return f"{place}: {new.hex()}"

    def lie_in_metrics(self, reply: Message) -> str:
        kept = [k for k, v in reply.content.items() if isinstance(v, MetricRecord)]
        record = reply.content[self.some(kept)]
        key, value = self.some([*(k for k in record if k != "gradients-refused"), "more"]), None
        record[key] = value = self.some(NUMBERS)
        return f"{key}={value!r}"[:60]

    # Mutations of payloads.

    def truncate(self, reply: Message) -> str:
        record, name, array = self.some(self.payloads(reply))
        body = array.data[: int(self.draw.integers(len(array.data)))]
        reply.content[record][name] = payload_array(self.some((with_checksum, bytes))(body))
        return name

    def operate(self, reply: Message) -> str:
        record, name, array = self.some(self.payloads(reply))
        before = decode_update(array.data).selected
        reply.content[record][name] = payload_array(with_checksum(self.surgery(array.data, before)))
        return name

    def change_payload(self, reply: Message) -> str:
        """Change the tensors of a payload, and encode them by the payload's own methods."""
        record, name, array = self.some(self.payloads(reply))
        update = decode_update(array.data)
        vector = np.array(update.dense())
        bounds = update.layout.offsets.tolist()
        tensors = [
            [n, list(s), t, vector[a:b].copy()]
            for n, s, t, a, b in zip(
                update.layout.names, update.layout.shapes, update.layout.dtypes,
                bounds[:-1], bounds[1:], strict=True,
            )
        ]  # fmt: skip
        own = list(update.own)
        done = [self.some(self.tensor_ways)(tensors, own) for _ in range(self.draw.integers(1, 3))]
        columns = [tuple(t[0] for t in tensors), tuple(tuple(t[1]) for t in tensors)]
        layout = Layout(*columns, tuple(t[2] for t in tensors))
        values = np.concatenate([np.empty(0, np.float32), *(t[3] for t in tensors)])
        named = bool(self.draw.integers(2))
        made = encoded_again(array.data, values, layout, names=named, own=own)
        reply.content[record][name] = payload_array(made)
        if self.draw.integers(2):
            header = reply.content.get(HEADER) or ConfigRecord()
            reply.content[HEADER] = ConfigRecord({**header, "named": int(named)})
        return f"{name}: {', '.join(done)}, named {named}"

    def rename_tensor(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        self.some(tensors)[0] = name = self.some(
            ("w", "", "x" * 300, tensors[0][0], "a.running_var")
        )
        return f"renamed {name[:20]}"

    def double_tensor(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        tensors.insert(int(self.draw.integers(len(tensors) + 1)), list(self.some(tensors)))
        return "doubled"

    def drop_tensor(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        del tensors[int(self.draw.integers(len(tensors)))]
        return "dropped"

    def resize_tensor(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        tensor = self.some(tensors)
        size = self.some((0, 1, tensor[3].size + 1, max(tensor[3].size - 1, 0), 2 * tensor[3].size))
        tensor[3], tensor[1] = np.resize(tensor[3], size), [size]
        return f"resized to {size}"

    def retype_tensor(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        self.some(tensors)[2] = dtype = self.some(TYPES)
        return f"as {dtype}"

    def move_out(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        """Move a tensor from the float32 vector to the tensors that are sent in their own type."""
        place = int(self.draw.integers(len(tensors)))
        name, shape, _, values = tensors[place]
        if self.draw.integers(2):
            del tensors[place]
        dtype = self.some(("float32", "float64", "int64", "float16"))
        own.append(NativeTensor(place, name, values.reshape(shape).astype(dtype)))
        own.sort()
        return f"moved out as {dtype}"

    def move_in(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        each = own.pop(int(self.draw.integers(len(own))))
        values = each.array.astype(np.float32).reshape(-1)
        tensors.insert(each.position, [each.name, each.array.shape, "float32", values])
        return "moved in"

    def swap_tensors(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        one, other = (int(self.draw.integers(len(tensors))) for _ in range(2))
        tensors[one], tensors[other] = tensors[other], tensors[one]
        return f"swapped {one}, {other}"

    def set_values(self, tensors: list[Any], own: list[NativeTensor]) -> str:
        tensor, value = self.some(tensors), self.some((0, -1, 5, 1e5, 1e-30, 3e38))
        tensor[3] = np.full_like(tensor[3], value)
        return f"of {value}"
