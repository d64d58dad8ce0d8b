"""Random damage. 2,000 payloads by default, more with --mutations.

Damaged bytes are always refused. Damaged bytes under a right checksum are refused or are
another valid payload: then the vector is finite and of the declared shape.
"""

import time
import tracemalloc

import numpy as np
import pytest

from compression import PayloadError, decode, make_codec
from compression import names as methods

TARGETS = [(s, q, c) for s in methods("sparsifier") for q in methods("quantizer")
           for c in methods("coder")]  # fmt: skip
TARGETS += [("toy", "toy", "raw"), ("toy", "toy", "zstd")]
MAX_SIZE = 1 << 14
SLOWEST = 5.0  # seconds for one payload, on a busy machine


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


@pytest.fixture
def payloads(toy_codec, mixed, make_layout, update_for):
    """Payloads of each target, by target, for a mixed and for a plain layout."""
    layouts = (mixed, make_layout([(30, 40), (40,)]))

    def codec_of(target):
        if target[0] == "toy":
            return toy_codec(coded=target[2] == "zstd")
        return make_codec(*target)

    return layouts, {
        target: [
            codec_of(target).encode(update_for(layout), layout, names=names)
            for layout in layouts
            for names in (False, True)
        ]
        for target in TARGETS
    }


def check(payload, layout, sealed) -> bool:
    """Decode; return whether the payload was accepted."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    started = time.perf_counter()
    try:
        vector, found = decode(payload, layout, max_size=MAX_SIZE)
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
    assert tracemalloc.get_traced_memory()[1] - before <= 2.1 * 4 * size + (1 << 17)
    return accepted


@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_damaged_payloads(target, payloads, reseal, pytestconfig):
    layouts, made = payloads
    count = -(-pytestconfig.getoption("--mutations") // len(TARGETS))
    seed = TARGETS.index(target)
    damage = Damage(seed, [p[:-8] for group in made.values() for p in group])
    accepted = refused = 0
    tracemalloc.start()
    try:
        for turn in range(count):
            which = turn % len(made[target])
            original = made[target][which]
            layout = layouts[which // 2] if turn % 3 else None
            sealed = turn % 8 != 0
            spoiled = reseal(damage(original[:-8])) if sealed else damage(original)
            if spoiled == original:
                continue
            if check(spoiled, layout, sealed):
                accepted += 1
            else:
                refused += 1
    finally:
        tracemalloc.stop()
    assert refused > count / 3, "the damage does no harm: the test tests nothing"
    assert accepted, "nothing gets past the header: the test tests too little"


@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_every_truncation(target, payloads, reseal):
    layouts, made = payloads
    payload = made[target][0]
    body = payload[:-8]
    for length in {*range(0, len(body), 7), *range(80), *range(len(body) - 20, len(body))}:
        with pytest.raises(PayloadError):
            decode(payload[:length], layouts[0])
        with pytest.raises(PayloadError):
            decode(reseal(body[:length]), layouts[0])
