"""Random damage to payloads: 2,000 by default, more with --mutations.

All damaged payloads get a valid checksum. The decoder must refuse each payload, or return a vector
that is finite and has the declared shape. Half of the payloads are damaged byte by byte, half part
by part with valid lengths and coding (`surgery`). With the original checksum every damaged payload
is refused. Time and memory are bounded.
"""

import time
import tracemalloc
from itertools import product

import numpy as np
import pytest
from xxhash import xxh3_64_digest

from edgewire.compression.base import PayloadError
from edgewire.compression.coders.shared_context import SharedContext
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.native_differences import decode_differences, encode_differences
from edgewire.compression.registry import names as methods
from edgewire.compression.wire_natives import NativeTensor
from tests.compression.surgery import Surgery, with_checksum

# A target is what a decoder knows of the methods; it does not know the sparsifier. Without a
# context the coder `context` is `entropy`. With a context a payload is in the short form.
CODERS = [name for name in methods("coder") if name != "context"]
KINDS = ["dense", "topk", "repeated"]
TARGETS = list(product(KINDS, methods("quantizer"), CODERS))
TARGETS += product(KINDS, methods("quantizer"), ["context"])
MAX_SIZE = 1 << 14
SLOWEST = 5.0  # seconds for one payload on a busy machine
# For each target, how many payloads were accepted, for each kind of damage.
TALLY: dict[tuple[str, str, str], list[int]] = {}
OWN = (np.arange(6, dtype=np.int64).reshape(2, 3), np.ones(5), np.ones(4, dtype=np.bool_))


class Damage:
    """Random kinds of damage to a payload, from one generator."""

    def __init__(self, seed: int, others: list[bytes]) -> None:
        self.draw = np.random.default_rng(seed)
        self.others = others
        self.ways = (self.flip, self.change, self.cut, self.insert, self.remove, self.splice,
                     self.extreme, self.repeat)  # fmt: skip

    def __call__(self, body: bytes) -> bytes:
        for _ in range(self.draw.integers(1, 4)):
            body = self.ways[self.draw.integers(len(self.ways))](body)
        return body

    def place(self, body: bytes) -> int:
        """Return a random position in `body`; every second time it is in the short header."""
        end = min(len(body), 48) if self.draw.random() < 0.5 else len(body)
        return int(self.draw.integers(max(end, 1)))

    def flip(self, body: bytes) -> bytes:
        at = self.place(body)
        bit = 1 << int(self.draw.integers(8))
        return body[:at] + bytes(b ^ bit for b in body[at : at + 1]) + body[at + 1 :]

    def change(self, body: bytes) -> bytes:
        at = self.place(body)
        return body[:at] + self.draw.bytes(1) + body[at + 1 :]

    def extreme(self, body: bytes) -> bytes:
        at = self.place(body)
        values = (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff" * 4, b"\xff" * 8 + b"\x7f")
        value = values[self.draw.integers(len(values))]
        return body[:at] + value + body[at + len(value) :]

    def cut(self, body: bytes) -> bytes:
        return body[: self.place(body)]

    def insert(self, body: bytes) -> bytes:
        at = self.place(body)
        return body[:at] + self.draw.bytes(int(self.draw.integers(1, 20))) + body[at:]

    def remove(self, body: bytes) -> bytes:
        at = self.place(body)
        return body[:at] + body[at + int(self.draw.integers(1, 20)) :]

    def repeat(self, body: bytes) -> bytes:
        at = self.place(body)
        part = body[at : at + int(self.draw.integers(1, 40))]
        return body[:at] + part + body[at:]

    def splice(self, body: bytes) -> bytes:
        other = self.others[self.draw.integers(len(self.others))]
        at = self.place(body)
        return other[:at] + body[at:]


def encode(target, update, layout, names):
    """Return a payload, and what its decoder must know.

    This is: the indices, the model, the places of tensors in their own type, and the context. A
    payload with names also has tensors in their own type; a payload in the short form has no names.
    """
    kind, quantizer, coder = target
    given = [NativeTensor(len(layout) + i, f"own {i}", array) for i, array in enumerate(OWN)]
    own = given if names else []
    tensors = [(each.name, each.array.shape, each.array.dtype.name) for each in own]
    columns = (layout.names, layout.shapes, layout.dtypes)
    added = zip(*tensors, strict=True) if tensors else ((), (), ())
    model = Layout(*(there + tuple(more) for there, more in zip(columns, added, strict=True)))
    places = tuple(each.position for each in own)
    context = None
    if coder == "context":
        activity = np.random.default_rng(1).integers(0, 256, layout.size, dtype=np.uint8)
        context, names = SharedContext(activity), False
    said = {"names": names, "own": own, "context": context}
    if kind != "repeated":
        payload = make_codec(kind, quantizer, coder).encode(update, layout, **said)
        return payload, None, model, places, context
    codec, memory = make_codec("esgd", quantizer, coder, drop=0.8, cap=0.0), {}
    first = codec.encode(update, layout, memory=memory, loss=2.0)
    second = codec.encode(update, layout, memory=memory, loss=1.0, as_before=True, **said)
    return second, decode_update(first, layout).selected, model, places, context


@pytest.fixture(scope="module")
def payloads(mixed, make_layout, update_for):
    """Return four payloads of each target: of two layouts, with and without names."""
    layouts = (mixed, make_layout([(30, 40), (40,)]))
    return {
        target: [
            encode(target, update_for(layout), layout, names)
            for layout in layouts
            for names in (False, True)
        ]
        for target in TARGETS
    }


def check(payload, layout, before, own, context) -> bool:
    """Decode a payload; check result, time and memory; return whether the payload was accepted."""
    tracemalloc.reset_peak()
    start, _ = tracemalloc.get_traced_memory()
    started = time.perf_counter()
    try:
        update = decode_update(
            payload, layout, own=own, before=before, context=context, max_size=MAX_SIZE
        )
        vector, found, there = update.dense(), update.layout, update.own
        selected = update.selected
    except PayloadError:
        size = layout.size if layout is not None else MAX_SIZE
        accepted, beside = False, 8 * size
    else:
        size = found.size
        assert vector.dtype == np.float32
        assert vector.shape == (found.size,)
        assert np.isfinite(vector).all()
        assert size <= (layout.size if layout is not None else MAX_SIZE)
        assert selected is None or (np.diff(selected.astype(np.int64)) > 0).all()
        assert not any(np.isnan(each.array).any() for each in there if each.array.dtype.kind == "f")
        assert layout is None or tuple(each.position for each in there) == own
        accepted, beside = True, sum(each.array.nbytes for each in there)
    assert time.perf_counter() - started < SLOWEST
    used = tracemalloc.get_traced_memory()[1] - start
    by_context = 0 if context is None else 140 * size  # docs/payload.md
    assert used <= 3.1 * 4 * size + 2 * beside + by_context + (1 << 17)
    return accepted


@pytest.mark.few(71)
@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_damaged_payloads(target, payloads, pytestconfig):
    count = -(-pytestconfig.getoption("--mutations") // len(TARGETS))
    seed = TARGETS.index(target)
    others = [payload[:-8] for group in payloads.values() for payload, *_ in group]
    damage, surgery = Damage(seed, others), Surgery(seed)
    accepted, refused = [0, 0], 0  # byte by byte, part by part
    tracemalloc.start()
    try:
        for turn in range(count):
            case = payloads[target][turn // 2 % len(payloads[target])]
            original, before, model, own, context = case
            seed_of, end, known = None, 8, model if turn % 5 % 2 else None
            if context is not None:
                seed_of, end, known = model.without(own), 4, model
            by_parts = turn % 2
            if not by_parts:
                body = damage(original[:-end])
            elif context is None:
                body = surgery(original, before)
            else:
                body = surgery(original, before, model, own, context)
            if body == original[:-end]:
                continue
            if check(with_checksum(body, seed_of, context), known, before, own, context):
                accepted[by_parts] += 1
            else:
                refused += 1
            there = {"own": own, "before": before, "context": context}
            if turn % 8 == 0:
                with pytest.raises(PayloadError):
                    decode_update(body + original[-end:], seed_of and model, **there)
    finally:
        tracemalloc.stop()
    assert refused > count / 5, "the damage does no harm: the test tests nothing"
    TALLY[target] = accepted


def test_some_damage_was_another_valid_payload():
    if len(TALLY) == len(TARGETS):  # not if the run has a single target
        for accepted in zip(*TALLY.values(), strict=True):
            assert sum(accepted) > len(TARGETS) / 8, "nothing gets past the header"


@pytest.mark.parametrize("noise", [0, 1e-3, 1], ids=["equal", "near", "far"])
def test_damaged_differences_of_native_tensors(noise, pytestconfig):
    draw = np.random.default_rng(1)
    arrays = (*OWN, draw.normal(size=700).astype(np.float32))
    before = {str(i): array for i, array in enumerate(arrays)}
    layout = Layout(
        tuple(before), tuple(a.shape for a in arrays), tuple(a.dtype.name for a in arrays)
    )
    now = {**before, "3": (arrays[3] * (1 + noise * draw.normal(size=700))).astype(np.float32)}
    others = [encode_differences({n: now[n]}, before, layout, b"") for n in ("0", "2", "3")]
    original = encode_differences(now, before, layout, b"")
    damage, accepted, refused = Damage(3, others), 0, 0
    tracemalloc.start()
    try:
        for _ in range(pytestconfig.getoption("--mutations") // 10):
            body = damage(original[:-4])
            if body == original[:-4]:
                continue
            tracemalloc.reset_peak()
            start, started = tracemalloc.get_traced_memory()[0], time.perf_counter()
            try:
                payload = body + xxh3_64_digest(body)[:4]
                found = decode_differences(payload, before, layout, b"")
            except PayloadError:
                refused += 1
            else:
                accepted += 1
                for each in found:
                    was = before[each.name]
                    assert (each.array.shape, each.array.dtype) == (was.shape, was.dtype)
                    assert was.dtype.kind != "f" or not np.isnan(each.array).any()
            assert time.perf_counter() - started < SLOWEST
            used = tracemalloc.get_traced_memory()[1] - start
            assert used <= 8 * sum(a.nbytes for a in arrays) + (1 << 17)
            with pytest.raises(PayloadError):
                decode_differences(body + original[-4:], before, layout, b"")
    finally:
        tracemalloc.stop()
    assert refused > 20, "the damage does no harm: the test tests nothing"
    assert accepted, "nothing gets past the header"
