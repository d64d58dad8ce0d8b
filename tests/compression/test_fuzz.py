"""Random damage. 2,000 payloads by default, more with --mutations.

Damaged bytes are always refused. Damaged bytes under a right checksum are refused or are
another valid payload: then the vector is finite and of the declared shape.
"""

import time
import tracemalloc
from itertools import product

import numpy as np
import pytest

from compression import PayloadError, decode_update, make_codec
from compression import names as methods

# A decoder sees quantizer, coder and the sort of selection, not what made the selection.
TARGETS = list(product(["dense", "topk", "repeated"], methods("quantizer"), methods("coder")))
MAX_SIZE = 1 << 14
SLOWEST = 5.0  # seconds for one payload, on a busy machine
TALLY: dict[tuple[str, str, str], int] = {}  # target -> damaged payloads accepted


class Damage:
    """Ways to spoil a payload, all drawn from one generator."""

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
        """Half of the damage goes to the header, which is short."""
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
    """Return a payload of a target, and the indices that its decoder must know."""
    kind, quantizer, coder = target
    if kind != "repeated":
        return make_codec(kind, quantizer, coder).encode(update, layout, names=names), None
    codec, memory = make_codec("esgd", quantizer, coder, drop=0.8, cap=0.0), {}
    first = codec.encode(update, layout, memory=memory, loss=2.0)
    second = codec.encode(update, layout, memory=memory, loss=1.0, names=names, as_before=True)
    return second, decode_update(first, layout).selected


@pytest.fixture(scope="module")
def payloads(mixed, make_layout, update_for):
    """Payloads of each target, by target, for a mixed and for a plain layout."""
    layouts = (mixed, make_layout([(30, 40), (40,)]))
    return layouts, {
        target: [
            encode(target, update_for(layout), layout, names)
            for layout in layouts
            for names in (False, True)
        ]
        for target in TARGETS
    }


def check(payload, layout, before, sealed) -> bool:
    """Decode; return whether the payload was accepted."""
    tracemalloc.reset_peak()
    start, _ = tracemalloc.get_traced_memory()
    started = time.perf_counter()
    try:
        update = decode_update(payload, layout, before=before, max_size=MAX_SIZE)
        vector, found = update.dense(), update.layout
    except PayloadError:
        size = layout.size if layout is not None else MAX_SIZE
        accepted = False
    else:
        size = found.size
        assert sealed, "damage went unnoticed"
        assert vector.dtype == np.float32
        assert vector.shape == (found.size,)
        assert np.isfinite(vector).all()
        assert size <= (layout.size if layout is not None else MAX_SIZE)
        accepted = True
    assert time.perf_counter() - started < SLOWEST
    assert tracemalloc.get_traced_memory()[1] - start <= 2.1 * 4 * size + (1 << 17)
    return accepted


@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_damaged_payloads(target, payloads, reseal, pytestconfig):
    layouts, made = payloads
    count = -(-pytestconfig.getoption("--mutations") // len(TARGETS))
    seed = TARGETS.index(target)
    damage = Damage(seed, [p[:-8] for group in made.values() for p, _ in group])
    accepted = refused = 0
    tracemalloc.start()
    try:
        for turn in range(count):
            which = turn % len(made[target])
            original, before = made[target][which]
            layout = layouts[which // 2] if turn % 3 else None
            sealed = turn % 8 != 0
            spoiled = reseal(damage(original[:-8])) if sealed else damage(original)
            if spoiled == original:
                continue
            if check(spoiled, layout, before, sealed):
                accepted += 1
            else:
                refused += 1
    finally:
        tracemalloc.stop()
    assert refused > count / 5, "the damage does no harm: the test tests nothing"
    TALLY[target] = accepted


def test_some_damage_was_another_valid_payload():
    if len(TALLY) == len(TARGETS):  # not when a single target was asked for
        assert sum(map(bool, TALLY.values())) > len(TARGETS) / 3, "nothing gets past the header"


@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_every_truncation(target, payloads, reseal):
    layouts, made = payloads
    payload, before = made[target][0]
    body = payload[:-8]
    ends = {*range(0, len(body), 7), *range(80), *range(len(body) - 20, len(body))}
    for length in (end for end in ends if 0 <= end < len(body)):
        with pytest.raises(PayloadError):
            decode_update(payload[:length], layouts[0], before=before)
        with pytest.raises(PayloadError):
            decode_update(reseal(body[:length]), layouts[0], before=before)
