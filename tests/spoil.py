"""Functions that spoil a node's reply in place, and replies that no server can use."""

import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from edgewire.compression.decoder import decode_update
from edgewire.compression.flower import payload_of
from edgewire.compression.flower.headers import HEADER
from edgewire.compression.flower.records import STYPE, payload_records
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire_header import varint
from edgewire.compression.wire_natives import NativeTensor
from tests.compression.surgery import encoded_again, with_checksum


def payload(change):
    """Return a function that changes all payloads; nodes of a cut model send several."""

    def spoil(reply):
        if found := payload_of(reply.content):
            payloads = {k: change(array.data) for k, array in reply.content[found[0]].items()}
            reply.content[found[0]] = payload_records(payloads)

    return spoil


def metrics(**changes):
    """Return a function that changes metrics, named with `_` for `-`; None removes a metric."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}

    def spoil(reply):
        for name, held in reply.content.metric_records.items():
            found = {k: v for k, v in {**held, **named}.items() if v is not None}
            reply.content[name] = MetricRecord(found)

    return spoil


def header(**changes):
    def spoil(reply):
        said = reply.content.get(HEADER, ConfigRecord())
        reply.content[HEADER] = ConfigRecord({**said, **changes})

    return spoil


def record(name, found):
    return lambda reply: reply.content.update({name: found})


def without(name):
    return lambda reply: reply.content.pop(name, None)


def first_beside(data):
    """Encode a payload again; the first tensor leaves the float32 vector."""
    layout = decode_update(data).layout
    own = NativeTensor(0, "w", np.ones(layout.shapes[0], np.float32))
    rest = layout.without((0,))
    return encoded_again(data, np.ones(rest.size), rest, whole=True, own=[own])


OTHER = Layout(("w",), ((3, 3),), ("float32",))
PLAIN = ArrayRecord({"x": Array(np.ones(3, np.float32))})
# For each reply that the server refuses, a part of the reason.
COUNTED = {  # the payload of these replies is counted
    "no samples": (metrics(num_examples=0), "num-examples must be"),
    "fewer than none": (metrics(num_examples=-3), "num-examples must be"),
    "samples that nobody counted": (metrics(num_examples=None), "num-examples"),
    "more than anybody counts": (metrics(num_examples=1e39), "num-examples must be"),
    "endless samples": (metrics(num_examples=math.inf), "num-examples must be"),
    "no loss": (metrics(loss=None), "'loss' must be a finite number, not None"),
    "a loss that is none": (metrics(loss=math.nan), "finite number"),
    "losses": (metrics(loss=[1.0]), "finite number"),
    "a flipped bit": (payload(lambda d: d[:30] + bytes([d[30] ^ 1]) + d[31:]), "damaged"),
    "half": (payload(lambda d: d[: len(d) // 2]), "damaged"),
    "empty": (payload(lambda d: b""), "no payload"),
    "another model": (
        payload(lambda d: make_codec().encode(np.ones(9, np.float32), OTHER)),
        "another model",
    ),
    "a tensor beside the vector": (payload(first_beside), "in their own type must be none"),
    "the model itself": (header(whole=1), "an update is asked for"),
    "another message's": (header(number=99), "replies to message 99: 2 was to be answered"),
    "nobody's": (without(HEADER), "replies to message None"),
    "no metrics": (without("metrics"), "and a MetricRecord"),
    "a header of another program": (header(colour="red"), "holds 'red' as colour"),
    "a version of words": (header(version="five"), "holds 'five' as version"),
    "half a number": (header(sequence=1.5), "holds 1.5 as sequence"),
    "a list of numbers": (header(sequence=[1]), "as sequence"),
    "a number below none": (header(sequence=-1), "holds -1 as sequence"),
    "a number beyond all": (header(sequence=2**62), "as sequence"),
    "no header": (record(HEADER, MetricRecord({"version": 5})), "must be a ConfigRecord"),
}
UNUSABLE = {
    **COUNTED,
    "no arrays": (without("arrays"), "must hold a payload"),
    "plain arrays": (record("arrays", PLAIN), "must hold a payload"),
}


def declaring(entries, own=False):
    """Return a payload of about 40 bytes that declares this many entries and holds none.

    The tensor is in the float32 vector, or with `own` in its own type.
    """
    size = varint(entries)
    table = b"\x01\x00\x05\x01" + size + b"\x01x" if own else b""
    shapes = b"\x00" if own else b"\x01\x01" + size
    body = b"EWP\x01\x01\x00\x00" + bytes([4 * own]) + table + shapes + b"\x01\x00\x00\x00"
    return with_checksum(body + bytes(-len(body) % 8))


def array(name, change, add=False):
    """Return a function that changes a reply's payload `name`; with `add`, it may be new."""

    def spoil(reply):
        held = dict(reply.content["arrays"])
        if add or name in held:
            data = change(held[name].data if name in held else b"")
            held[name] = Array("uint8", (len(data),), STYPE, data)
        reply.content["arrays"] = ArrayRecord(held)

    return spoil


no_arrays = record("arrays", ArrayRecord())
