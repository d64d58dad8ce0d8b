"""What `ModelInbox` gives to a strategy in place of nodes' replies."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from compression import Layout
from compression.flower import CompressedGrid, CompressionMod, flat_record, to_vector
from compression.flower.native_tensors import Initial, natives_of, with_natives
from compression.flower.server.session import InitialModel
from compression.flower.server.statistics_screen import StatisticsScreen
from compression.screening import Screening
from tests.compression.flower.apps import ask, grid_of
from tests.compression.flower.federation import PLAIN

NODES, COUNT = 5, "norm.num_batches_tracked"
SHAPES = {"w": (3, 4), "norm.running_mean": (3,), "norm.running_var": (3,), "b": (3,)}
LAYOUT = Layout(tuple(SHAPES), tuple(SHAPES.values()), ("float32",) * 4)
TRAINED, STATISTICS = np.r_[0:12, 18:21], np.r_[12:18]
BN = LAYOUT.without([0, 3])
START = np.ones(LAYOUT.size, np.float32)
HONEST = np.repeat(np.float32([0.5, 2]), 3)


def clipped(ends, clip, flat):
    """Return each node's model (n,) and counter, as the strategy gets them after one round.

    `ends`: the nodes' models after training, each (n,).
    """

    def as_record(vector, counter):
        natives = {COUNT: np.array(counter)}
        if flat:
            return with_natives(flat_record(vector), natives)
        cuts = np.split(vector, LAYOUT.offsets[1:-1])
        named = {n: cut.reshape(SHAPES[n]) for n, cut in zip(SHAPES, cuts, strict=True)}
        return ArrayRecord({name: Array(value) for name, value in {**named, **natives}.items()})

    initial = Initial({COUNT: np.array(0)})
    mod = CompressionMod(PLAIN, **({"layout": LAYOUT, "initial": initial} if flat else {}))
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message, context):
        node = context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": 1})
        content = {"arrays": as_record(ends[node], node), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    compressed = CompressedGrid(
        grid_of(app, NODES),
        screening=Screening(refuse=None, statistics=None, clip=clip),
        model=InitialModel(LAYOUT, 100, initial) if flat else None,
    )
    found = {}
    for reply in compressed.send_and_receive(ask(compressed, as_record(START, 0))):
        record = reply.content["arrays"]
        if flat:
            vector, counter = to_vector(record), natives_of(record)[COUNT]
        else:
            vector = np.concatenate([record[name].numpy().reshape(-1) for name in SHAPES])
            counter = record[COUNT].numpy()
        found[reply.metadata.src_node_id - 1] = vector, int(counter)
    assert compressed.traffic.failures == 0
    return [found[node] for node in range(NODES)]


def ends_of(norms, statistics):
    """Return models that differ from `START` by trained updates of these norms."""
    ends = np.tile(START, (NODES, 1))
    ends[:, TRAINED] += np.float32(norms)[:, None] / np.float32(np.sqrt(len(TRAINED)))
    ends[:, STATISTICS] = statistics
    return ends


@pytest.mark.parametrize("flat", [True, False])
@given(st.lists(st.floats(0.1, 50), min_size=NODES, max_size=NODES), st.floats(1, 4))
def test_clipping_scales_an_update_of_large_norm_and_changes_nothing_else(flat, norms, clip):
    ends = ends_of(norms, HONEST)
    limit = clip * np.median(norms)
    for node, (model, counter) in enumerate(clipped(ends, clip, flat)):
        expected = ends_of(np.minimum(norms, limit), HONEST)[node]
        np.testing.assert_allclose(model, expected, rtol=1e-5)
        assert counter == node


@pytest.mark.parametrize("flat", [True, False])
@given(st.integers(0, NODES - 1), st.floats(20, 1e4))
def test_clipping_moves_unusual_statistics_and_changes_nothing_else(flat, liar, mean):
    statistics = np.tile(HONEST, (NODES, 1))
    statistics[liar, :3] = mean
    screen = StatisticsScreen(Screening(statistics=None, clip=2))
    screen.observe(BN, [(each, START[STATISTICS]) for each in statistics])
    ends = ends_of([1.0] * NODES, statistics)
    for node, (model, counter) in enumerate(clipped(ends, 2, flat)):
        sent = START[STATISTICS]
        np.testing.assert_array_equal(
            model[STATISTICS], screen.taken(node, BN, statistics[node], sent, None)
        )
        assert (model[STATISTICS] != statistics[node]).any() == (node == liar)
        np.testing.assert_array_equal(model[TRAINED], ends[node][TRAINED])
        assert counter == node
