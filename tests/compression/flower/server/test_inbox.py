"""What a strategy gets in place of nodes' replies, and what an `Inbox` makes of updates."""

import copy

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.batchnorm import scale_of
from edgewire.compression.flower import (
    CompressedGrid,
    CompressionMod,
    ReplyRules,
    flat_record,
    payload_record,
    to_vector,
)
from edgewire.compression.flower.headers import HEADER, DownlinkHeader, read
from edgewire.compression.flower.native_tensors import NATIVE, Initial, natives_of, with_natives
from edgewire.compression.flower.records import with_content
from edgewire.compression.flower.server.acks import OTHER_METHOD
from edgewire.compression.flower.server.inbox import Inbox, ReceivedUpdate
from edgewire.compression.flower.server.norm_screen import NormScreen, Screens, UpdateNorms
from edgewire.compression.flower.server.session import InitialModel
from edgewire.compression.flower.server.statistics_screen import StatisticsScreen, StatisticsSplit
from edgewire.compression.layout import Layout
from edgewire.compression.screening import Screening
from edgewire.compression.validation import FOREVER
from edgewire.simulation.grid import LocalGrid
from tests import spoil
from tests.compression.flower.apps import (
    ask,
    left_out,
    moving,
    only_of,
    record_of,
    replies_to,
    spoiling,
    to_targets,
    vector,
)
from tests.compression.flower.federation import INT8, PLAIN, initial
from tests.grids import grid_of

NODES, COUNT = 5, "norm.num_batches_tracked"
SHAPES = {"w": (3, 4), "norm.running_mean": (3,), "norm.running_var": (3,), "b": (3,)}
LAYOUT = Layout(tuple(SHAPES), tuple(SHAPES.values()), ("float32",) * 4)
TRAINED, STATISTICS = np.r_[0:12, 18:21], np.r_[12:18]
BN = LAYOUT.without([0, 3])
START = np.ones(LAYOUT.size, np.float32)
ALL_USED = {"refuse": None, "statistics": None}
HONEST = np.repeat(np.float32([0.5, 2]), 3)


def one_round(ends, flat, spoil=lambda reply, node: reply, counters=range(NODES), **options):
    """Return each node's model (n,) and counter, as the strategy gets them after one round.

    `ends`: the nodes' models after training, each (n,). `options`: those of `Screening`. The result
    is None for a reply that is refused. `spoil` changes a node's reply.
    """

    def as_record(vector, counter):
        natives = {COUNT: np.array(counter)}
        if flat:
            return with_natives(flat_record(vector), natives)
        cuts = np.split(vector, LAYOUT.offsets[1:-1])
        named = {n: cut.reshape(SHAPES[n]) for n, cut in zip(SHAPES, cuts, strict=True)}
        return record_of({**named, **natives})

    natives = Initial({COUNT: np.array(0)})
    mod = CompressionMod(PLAIN, **({"layout": LAYOUT, "initial": natives} if flat else {}))
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message, context):
        node = context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": 1})
        content = {"arrays": as_record(ends[node], counters[node]), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    compressed = CompressedGrid(
        grid_of(lambda m, c: spoil(app(m, c), c.node_config["partition-id"]), NODES),
        screening=Screening(**options),
        model=InitialModel(LAYOUT, 100, natives) if flat else None,
    )
    found = {}
    for reply in replies_to(compressed, as_record(START, 0)):
        if reply.has_error():
            continue
        record = reply.content["arrays"]
        if flat:
            vector, counter = to_vector(record), natives_of(record)[COUNT]
        else:
            vector = np.concatenate([record[name].numpy().reshape(-1) for name in SHAPES])
            counter = record[COUNT].numpy()
        found[reply.metadata.src_node_id - 1] = vector, int(counter)
    assert compressed.traffic.failures == NODES - len(found)
    return [found.get(node) for node in range(NODES)]


def ends_of(norms, statistics):
    """Return models that differ from `START` by trained updates of these norms."""
    ends = np.tile(START, (NODES, 1))
    ends[:, TRAINED] += np.float32(norms)[:, None] / np.float32(np.sqrt(len(TRAINED)))
    ends[:, STATISTICS] = statistics
    return ends


@pytest.mark.parametrize("flat", [True, False])
@given(st.lists(st.floats(0.1, 50), min_size=NODES, max_size=NODES), st.floats(1, 4))
def test_clipping_scales_all_that_an_update_of_large_norm_carries(flat, norms, clip):
    screen, counts = (NormScreen(Screening(**ALL_USED, clip=clip)) for _ in range(2))
    screen.observe(dict(enumerate(norms)))
    counts.observe({node: node for node in range(NODES)})
    ends = ends_of(norms, HONEST)
    for node, (model, counter) in enumerate(one_round(ends, flat, **ALL_USED, clip=clip)):
        factor = screen.clip_factor(node, norms[node], START)
        expected = ends_of(np.multiply(norms, factor), HONEST)[node]
        np.testing.assert_allclose(model, expected, rtol=1e-5)
        assert counter == pytest.approx(
            node * min(factor, counts.clip_factor(node, node, START)), abs=0.51
        )


@pytest.mark.parametrize("flat", [True, False])
@given(st.integers(0, NODES - 1), st.floats(20, 1e4))
def test_clipping_moves_unusual_statistics_and_changes_nothing_else(flat, liar, mean):
    statistics = np.tile(HONEST, (NODES, 1))
    statistics[liar, :3] = mean
    screen = StatisticsScreen(Screening(statistics=None, clip=2))
    screen.observe(BN, [(each, START[STATISTICS]) for each in statistics])
    ends = ends_of([1.0] * NODES, statistics)
    ends[:, TRAINED] = 1e-9  # the difference from 1 rounds it off
    for node, (model, counter) in enumerate(one_round(ends, flat, **ALL_USED, clip=2)):
        sent = START[STATISTICS]
        np.testing.assert_array_equal(
            model[STATISTICS], screen.taken(node, BN, statistics[node], sent, None)
        )
        assert (model[STATISTICS] != statistics[node]).any() == (node == liar)
        np.testing.assert_array_equal(model[TRAINED], ends[node][TRAINED])
        assert counter == node


@pytest.mark.parametrize("flat", [True, False])
@given(st.sets(st.integers(0, NODES - 1), max_size=2))
def test_each_update_of_large_norm_is_refused(flat, liars):
    norms = [9.0 if node in liars else 1.0 for node in range(NODES)]
    found = one_round(ends_of(norms, HONEST), flat, refuse=2)
    assert {node for node in range(NODES) if found[node] is None} == liars


@given(st.floats(1, 100), st.floats(2, 1e4))
def test_an_inbox_of_updates_uses_what_the_filters_allow(norm, mean):
    """Both limits are 2: the usual norm is 1, and the usual weight 10."""
    split = StatisticsSplit(Layout(("w", *BN.names), ((4,), *BN.shapes), ("float32",) * 3))
    screens = Screens(Screening(**ALL_USED, clip=2, weight=2))
    inbox = Inbox(None, split, screens, [], "num-examples")

    def update(norm, statistics, weight):
        values, sent = np.full(4, norm / 2, np.float32), START[STATISTICS]
        norms = UpdateNorms(norm, None, statistics, sent)
        return ReceivedUpdate(None, None, values, statistics, None, weight, {}, {}, norms)

    odd = HONEST.copy()
    odd[0] = mean
    found = {node: update(1.0, HONEST, 10) for node in range(4)} | {9: update(norm, odd, 1e9)}
    found |= {7: update(norm, HONEST, 10), 8: update(1.0, HONEST, 1e9)}
    inbox.observe(found)
    model = np.ones(split.layout.size + 4, np.float32)
    for node in range(4):
        assert inbox.accept(node, found[node], model, 1.0) is found[node]
    assert inbox.accept(8, found[8], model, 1.0).weight == 20
    clipped = inbox.accept(7, found[7], model, 1.0)
    assert np.linalg.norm(clipped.values) == pytest.approx(min(norm, 2))
    accepted = inbox.accept(9, found[9], model, 1.0)
    assert np.linalg.norm(accepted.values) == pytest.approx(min(norm, 2))
    assert accepted.weight == 20
    far, sent = scale_of(BN), START[STATISTICS]
    limit = max(2 * far.distance(HONEST, sent, HONEST), far.distance(sent, HONEST, HONEST))
    expected = min(far.distance(odd, HONEST, HONEST), limit)
    assert far.distance(accepted.statistics, HONEST, HONEST) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_reply_holds_the_required_metrics_and_no_other_records(kind):
    def with_more(reply):
        reply.content["metrics"]["more"] = 1.0
        reply.content["notes"] = MetricRecord({"x": 1.0})

    app = moving(to_targets, CompressionMod(PLAIN), lambda node, values, state: {})
    for node in range(3):
        app = spoiling(app, with_more, node)
    app = spoiling(app, lambda reply: reply.content["metrics"].pop("loss"))
    rules = ReplyRules(metrics={kind: ["num-examples", "loss"]})
    first, *others = replies_to(CompressedGrid(grid_of(app), replies=rules), initial(), kind)
    assert "'loss' must be a finite number, not None" in first.error.reason
    for reply in others:
        assert set(reply.content) == ({"arrays", "metrics"} if kind == "train" else {"metrics"})
        assert set(reply.content["metrics"]) == {"num-examples", "loss"}


def test_a_reply_that_names_its_tensors_is_refused_if_the_model_is_flat(caplog):
    layout = Layout(("v",), ((3,),), ("float32",))
    payload = PLAIN.encode(np.ones(3, np.float32), layout, names=True)

    def spoil(reply, node):
        if node == 1:
            natives = reply.content["arrays"][NATIVE]
            reply.content["arrays"] = ArrayRecord({**payload_record(payload), NATIVE: natives})
            reply.content[HEADER] = ConfigRecord({**reply.content[HEADER], "named": 1})
        return reply

    found = one_round(ends_of([1.0] * NODES, HONEST), True, spoil)
    assert [each is None for each in found] == [node == 1 for node in range(NODES)]
    assert "node 2 left out: its records or metrics have other names or lengths" in caplog.text


def test_on_a_virtual_clock_the_grid_itself_waits_for_the_replies():
    class Waiting(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            waited.append(timeout)
            return super().send_and_receive(messages, timeout=timeout)

    waited = []
    app = moving(to_targets, CompressionMod("int8"))
    compressed = CompressedGrid(grid_of(app, 2, kind=Waiting))
    for timeout in (None, 5.0, FOREVER):
        assert len(compressed.send_and_receive(ask(compressed, initial()), timeout=timeout)) == 2
    assert waited == [None, 5.0, FOREVER]


def test_models_that_no_node_has_are_not_stored():
    grid = grid_of(moving(to_targets, CompressionMod("int8")))
    compressed = CompressedGrid(grid, downlink="int8")
    for number in range(6):
        replies_to(compressed, record_of({"w": np.full(9, number, np.float32)}))
        assert len(compressed.state.deltas.versions) <= 2  # the newest, and the one before


def test_a_reply_with_other_tensors_is_refused_if_all_nodes_have_one_codec():
    def with_more(values):
        return {**values, "more": np.zeros(3, np.float32)}

    for codec, failures in ((PLAIN, 1), (None, 0)):
        grid = grid_of(moving(only_of(0, with_more), CompressionMod(PLAIN)))
        compressed = CompressedGrid(grid, replies=ReplyRules(uplink=codec, uneven=True))
        assert len(left_out(replies_to(compressed, initial()))) == failures


@pytest.mark.parametrize("codec", [PLAIN, INT8], ids=["lossless", "lossy"])
def test_a_model_in_place_of_an_update_is_refused_if_all_nodes_have_one_codec(codec):
    """Nodes with a lossless codec send models, others send updates; node 0 says the reverse."""

    def spoil(reply):
        header = {**reply.content[HEADER], "whole": int(not codec.exact)}
        reply.content[HEADER] = ConfigRecord(header)

    app = spoiling(moving(to_targets, CompressionMod(codec)), spoil)
    compressed = CompressedGrid(grid_of(app), replies=ReplyRules(uplink=codec))
    first, *others = replies_to(compressed, initial())
    assert OTHER_METHOD in first.error.reason
    assert not left_out(others)


def test_a_repeated_reply_is_refused_and_its_bytes_are_counted():
    class Repeating(LocalGrid):
        times = 1

        def send_and_receive(self, messages, *, timeout=None):
            found = list(super().send_and_receive(messages))
            again = [with_content(each, copy.deepcopy(each.content)) for each in found]
            return found + again * (self.times - 1)

    app, counted = moving(to_targets, CompressionMod("int8")), []
    for Repeating.times in (1, 2):
        compressed = CompressedGrid(grid_of(app, 1, kind=Repeating))
        first, *others = replies_to(compressed, initial())
        assert not first.has_error()
        assert all("answered before" in each.error.reason for each in others)
        assert all(each.error.code == 1 for each in others)
        traffic = compressed.traffic
        assert (traffic.client_updates, traffic.failures) == (1, Repeating.times - 1)
        counted.append((traffic.uplink_bytes, traffic.uplink_header_bytes))
        assert traffic.uplink_bytes_float32 == traffic.downlink_bytes_float32
    assert np.array_equal(counted[1], 2 * np.array(counted[0]))


def test_each_type_of_message_has_its_own_usual_weight():
    """Weights in training do not limit those in an evaluation; those in a query have no limit."""
    weights, app = {}, ClientApp(mods=[CompressionMod(PLAIN)])

    def reply(message, context):
        metrics = MetricRecord({"num-examples": weights[context.node_config["partition-id"]]})
        content = {"metrics": metrics}
        if message.metadata.message_type == "train":
            content["arrays"] = message.content["arrays"]
        return Message(RecordDict(content), reply_to=message)

    for register in (app.train, app.evaluate, app.query):
        register()(reply)
    compressed = CompressedGrid(grid_of(app, 9), screening=Screening(weight=10))

    def found(kind, given):
        weights.update(enumerate(given))
        nodes = compressed.get_node_ids()[: len(given)]
        replies = replies_to(compressed, initial(), kind, nodes)
        return [reply.content["metrics"]["num-examples"] for reply in replies]

    assert found("train", [1000] * 9) == [1000] * 9
    assert found("evaluate", [5, 1 << 62, 5]) == [5, 50, 5]
    assert found("query", [5, 1 << 62, 5]) == [5, 1 << 62, 5]
    assert found("train", [5, 1 << 62, 5]) == [5, 10_000, 5]


@pytest.mark.parametrize("flat", [True, False])
def test_a_native_tensor_that_moved_too_far_is_refused(flat):
    counters = [1, 1, 10**6, 1, 1]
    found = one_round(ends_of([1.0] * NODES, HONEST), flat, counters=counters, refuse=2)
    assert [node for node, each in enumerate(found) if each is None] == [2]


def test_a_reply_refused_after_decoding_is_not_applied():
    """The node adds a refused update back to its residual, because the next message says so."""
    seen = {}

    def note(message, context, call_next):
        seen[context.node_config["partition-id"]] = read(message.content, DownlinkHeader).applied
        return call_next(message, context)

    mods = [note, CompressionMod("topk", density=0.1)]
    app = spoiling(moving(to_targets, mods), spoil.metrics(loss=float("nan")), node=1)
    compressed = CompressedGrid(
        grid_of(app, 3), replies=ReplyRules(metrics={"train": ("loss", "num-examples")})
    )
    assert left_out(replies_to(compressed, vector(0))) == [2]
    replies_to(compressed, vector(1))
    assert seen == {0: 1, 1: None, 2: 1}
