"""The warm-up of top-k, in a codec and in runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import Rng, SparsifyContext
from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.sparsifiers.topk import TopK
from tests.local_runs import local_run
from tests.runs import history_of

LAYOUT = Layout(("w",), ((1000,),), ("float32",))
WARM = {"sparsifier": "topk", "density": 0.01, "warmup_density": 0.1, "warmup_steps": 3}


@pytest.mark.parametrize(("number", "count"), [(0, 10), (1, 100), (3, 100), (4, 10), (100, 10)])
def test_the_first_updates_hold_more_entries(number, count):
    update = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    payload = make_codec(**WARM).encode(update, LAYOUT, number=number)
    assert len(decode_update(payload, LAYOUT).values) == count


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 4)), min_size=1, max_size=6),
    st.integers(1, 100),
    st.floats(0.01, 1),
    st.integers(0, 2**32),
)
def test_each_chunk_sends_its_largest_entries(shapes, chunk, density, seed):
    """The chunks of one tensor have the same share as tensors of the same sizes."""
    layout = Layout(tuple(map(str, range(len(shapes)))), tuple(shapes), ("float32",) * len(shapes))
    sizes = [
        min(chunk, rows * columns - start)
        for rows, columns in shapes
        for start in range(0, rows * columns, chunk)
    ]
    cut = Layout(tuple(map(str, sizes)), tuple((n,) for n in sizes), ("float32",) * len(sizes))
    update = np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)
    chosen = []
    for each, scope in ((layout, "chunk"), (cut, "tensor")):
        method = TopK(density=density, scope=scope, chunk_size=chunk)
        chosen.append(method.choose(update, SparsifyContext(each, {}, Rng(0, 0))))
    np.testing.assert_array_equal(*chosen)


RUNS = {
    "Flower's": ["algorithm=fedavg_topk", "downlink=topk"],
    "sparse averaging": [
        "algorithm=fedavg_topk", "downlink=topk", "strategy=sparse_averaging",
        "strategy.update=delta",
    ],
    "pushes": [
        "algorithm=fedbuff", "compression=topk", "downlink=topk", "strategy.pushes=16",
        "eval_every=4", "strategy.buffer=1",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_both_directions_have_a_warm_up(kind, tmp_path):
    """Nodes and server send ten times as many entries in the first two rounds."""
    sent = {}
    for steps in (0, 2):
        words = [
            f"{way}.{key}" for way in ("compression", "downlink")
            for key in ("density=0.01", "warmup_density=0.1", f"warmup_steps={steps}")
        ]  # fmt: skip
        run = [*RUNS[kind], "rounds=4", "nodes=2", "local_steps=2", "downlink.from_seed=true"]
        local_run(tmp_path / str(steps), *run, *words)
        rows = history_of(tmp_path / str(steps))
        columns = ("uplink_bytes", "downlink_bytes")
        sent[steps] = np.diff([[row[key] for key in columns] for row in rows], axis=0)
    first, last = sent[2][:2].sum(axis=0), sent[2][-1]
    before, after = sent[0][:2].sum(axis=0), sent[0][-1]
    assert (first > 2.5 * before).all()  # the first message down holds no values
    assert (last < 1.2 * after).all()
