"""Index sets coded by shared context: any set and activity; broken and foreign streams."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from edgewire.compression.base import Kind, PayloadError, Spec
from edgewire.compression.coders import context as context_coder
from edgewire.compression.coders.context import SPARSE, Context, coded_in_windows
from edgewire.compression.coders.entropy import Entropy
from edgewire.compression.coders.shared_context import (
    CLASSES,
    IndexContext,
    SharedContext,
    classes_of,
    record,
)
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire import INDICES, Body, assemble, tables

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=4)


def layout_of(shapes):
    return Layout(tuple(map(str, range(len(shapes)))), tuple(shapes), ("float32",) * len(shapes))


@st.composite
def sets(draw):
    """Draw a layout, an activity, and an index set with at least one index."""
    layout = layout_of([*draw(SHAPES), (draw(st.integers(1, 200)),)])
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    activity = np.zeros(layout.size, dtype=np.uint8)
    for _ in range(draw(st.integers(0, 9))):
        density = draw(st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0]))
        changed = np.flatnonzero(rng.random(layout.size) < density).astype(np.uint32)
        record(activity, None if density == 1 else changed)
    likely = draw(st.sampled_from([0.0, 0.1, 1.0])) * np.bitwise_count(activity) / 8
    chosen = rng.random(layout.size) < draw(st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0])) + likely
    chosen[draw(st.integers(0, layout.size - 1))] = True
    return layout, activity, np.flatnonzero(chosen).astype(np.uint32)


def coded(context, indices):
    """Return an index set's stream by context, also if `entropy` would be shorter, and its spec."""
    spec = Spec(Kind.INDICES, np.dtype("<u4"), len(indices), context.size, context)
    return coded_in_windows(indices, context), spec


@given(sets())
def test_a_set_is_decoded(drawn):
    layout, activity, indices = drawn
    stream, spec = coded(IndexContext(activity, layout), indices)
    short = Context().encode(indices, spec)
    if SPARSE * len(indices) > layout.size:
        with pytest.raises(PayloadError, match="more indices by context"):
            Context.decode(memoryview(stream), spec)
        assert short == Entropy().encode(indices, spec)
        return
    found = Context.decode(memoryview(stream), spec)
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, indices)
    assert len(short) <= min(len(stream), len(Entropy().encode(indices, spec)))
    np.testing.assert_array_equal(Context.decode(memoryview(short), spec), indices)


@given(sets())
def test_ranks_are_in_the_order_of_the_classes(drawn):
    layout, activity, indices = drawn
    context, classes = IndexContext(activity, layout), classes_of(activity, layout)
    np.testing.assert_array_equal(context.counts, np.bincount(classes, minlength=CLASSES))
    order = np.argsort(classes, kind="stable")
    np.testing.assert_array_equal(context.indices(np.arange(layout.size)), order)
    np.testing.assert_array_equal(order[context.ranks(indices)], indices)


def test_classes_are_the_same_on_every_machine():
    """A change of these numbers is a change of the payload's format."""
    activity = np.array([0, 128, 192, 255, 1, 0, 0, 85, 0, 0, 0, 0, 255, 255, 3, 7], np.uint8)
    layout = layout_of([(2, 4), (2, 2), (4,)])
    found = classes_of(activity, layout)
    assert found.tolist() == [18, 8, 6, 3, 18, 18, 17, 8, 23, 23, 23, 23, 2, 2, 14, 11]


def test_the_bytes_of_a_stream_stay_the_same():
    """A change of these bytes is a change of the payload's format."""
    counts = np.arange(4000, dtype=np.int64)
    layout, activity = layout_of([(40, 60), (20, 80)]), np.zeros(4000, np.uint8)
    for step in range(8):
        record(activity, np.flatnonzero((counts * counts + 7 * step) % 97 < 12).astype(np.uint32))
    indices = np.flatnonzero((counts * counts + 56) % 97 < 9).astype(np.uint32)
    stream, spec = coded(IndexContext(activity, layout), indices)
    assert (len(stream), xxh3_64_hexdigest(stream)) == (233, "12e066716ecafadb")
    np.testing.assert_array_equal(Context.decode(memoryview(stream), spec), indices)


@given(sets(), st.data())
def test_a_broken_stream_is_refused_or_is_an_index_set(drawn, data):
    layout, activity, indices = drawn
    context = IndexContext(activity, layout)
    stream, spec = coded(context, indices)
    broken = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(5, len(broken))) if len(broken) > 5 else len(broken)
        kind = data.draw(st.sampled_from(["flip", "cut", "add"]))
        if kind == "flip" and at < len(broken):
            broken[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del broken[at:]
        else:
            broken[at:at] = data.draw(st.binary(min_size=1, max_size=3))
    try:
        found = Context.decode(memoryview(bytes(broken)), spec)
    except PayloadError:
        return
    assert len(found) == len(indices)
    assert (np.diff(found.astype(np.int64)) > 0).all()
    assert found[-1] < layout.size


@pytest.mark.parametrize("share", [0.001, 0.02])
def test_a_hostile_stream_takes_few_passes(share, monkeypatch):
    """Each pass reads twice as many coordinates, however few its class says to have."""
    layout = layout_of([(256, 1024)])
    activity = np.zeros(layout.size, np.uint8)
    count = int(share * layout.size)
    head, unary = [1] * 5, [1] * count  # one class of width 31, all places 0
    bits = np.array([*head, *unary, *[0] * (31 * count)], dtype=np.uint8)
    context = IndexContext(activity, layout)
    stream = b"\4" + np.packbits(bits).tobytes()
    spec = Spec(Kind.INDICES, np.dtype("<u4"), count, layout.size, context)
    passes, read = [], context_coder.numbers_of
    monkeypatch.setattr(
        context_coder, "numbers_of", lambda *given: (passes.append(0), read(*given))[1]
    )
    np.testing.assert_array_equal(Context.decode(memoryview(stream), spec), np.arange(count))
    assert len(passes) <= 12


@pytest.mark.parametrize(
    ("rows", "count", "stream", "more", "most"),
    [
        (256, 50_000, b"\4\0", 64, 1 << 16),  # it is longer than a bitmap
        (1024, 1000, b"\4\7", 0, 6 << 20),  # it has more ones than are needed
    ],
)
def test_a_stream_of_too_many_ones_is_refused_in_little_memory(rows, count, stream, more, most):
    layout = layout_of([(rows, 1024)])
    context = IndexContext(np.zeros(layout.size, np.uint8), layout)
    spec = Spec(Kind.INDICES, np.dtype("<u4"), count, layout.size, context)
    stream += bytes([255]) * (layout.size // 8 + more)
    tracemalloc.start()
    with pytest.raises(PayloadError, match="broken stream"):
        Context.decode(memoryview(stream), spec)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < most


def test_another_context_is_refused():
    layout = layout_of([(40, 30)])
    rng = np.random.default_rng(0)
    indices = np.flatnonzero(rng.random(layout.size) < 0.1).astype(np.uint32)
    activity = np.zeros(layout.size, np.uint8)
    other = activity.copy()
    record(other, indices)
    update = np.zeros(layout.size, np.float32)
    update[indices] = 1.0
    codec = make_codec(sparsifier="topk", density=0.05, coder="context")
    payload = codec.encode(update, layout, context=SharedContext(other))
    with pytest.raises(PayloadError, match="or another context"):
        decode_update(payload, layout, context=SharedContext(activity))
    with pytest.raises(PayloadError, match="not known here"):
        decode_update(payload, layout)
    with pytest.raises(PayloadError, match="damaged, or for another model"):
        decode_update(payload, layout_of([(30, 40)]), context=SharedContext(other))
    decoded = decode_update(payload, layout, context=SharedContext(other)).dense()
    assert set(np.flatnonzero(decoded)) <= set(indices.tolist())


def test_a_set_near_the_activity_takes_fewer_bytes_than_a_uniform_set():
    layout = layout_of([(120, 400)])
    rng = np.random.default_rng(1)
    rows, columns = rng.exponential(size=(120, 1)) ** 2, rng.exponential(size=(1, 400)) ** 2
    chance = (0.01 * rows * columns).reshape(-1).clip(0, 0.5)
    activity = np.zeros(layout.size, np.uint8)
    for _ in range(8):
        record(activity, np.flatnonzero(rng.random(layout.size) < chance).astype(np.uint32))
    indices = np.flatnonzero(rng.random(layout.size) < chance).astype(np.uint32)
    stream, spec = coded(IndexContext(activity, layout), indices)
    assert len(stream) < 0.8 * len(Entropy().encode(indices, spec))


def test_the_long_form_holds_no_indices_by_context():
    """Its checksum does not cover the context, so a receiver with another one would not notice."""
    layout = layout_of([(40, 30)])
    indices = np.arange(0, 60, 3, dtype=np.uint32)
    activity = np.zeros(layout.size, np.uint8)
    record(activity, indices)
    shared = SharedContext(activity)
    stream = coded_in_windows(indices, shared.of(layout, ()))
    values = np.ones(len(indices), np.float32).tobytes()
    head = tables(layout, bytes((0, 0, 4)), False, ()) + bytes((INDICES, len(indices), 0))
    bodies = [Body(memoryview(stream), True), Body(memoryview(values), False)]
    payload = assemble(head, bodies, layout, None)
    with pytest.raises(PayloadError, match="not known here"):
        decode_update(payload, layout, context=shared)
    short = tables(layout, bytes((0, 0, 4)), False, (), short=True)
    head = short + bytes((INDICES, len(indices), 0))
    payload = assemble(head, bodies, layout, shared)
    found = decode_update(payload, layout, context=shared).indices
    np.testing.assert_array_equal(found, indices)
