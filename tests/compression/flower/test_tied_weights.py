"""Tied weights, two names of one tensor, are sent once each way and stay equal at the server."""

from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import (
    CompressedGrid,
    CompressionMod,
    FailureLimits,
    payload_record,
)
from edgewire.compression.flower.headers import HEADER, DownlinkHeader
from edgewire.compression.flower.node_replica import NodeReplica
from edgewire.compression.flower.server.sent_model import SentModels, SentModelsState
from edgewire.compression.flower.tensor_split import TensorSplit
from edgewire.compression.flower.tied_weights import form_with_copies
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.screening import Screening
from edgewire.compression.wire_natives import NativeTensor
from edgewire.simulation.grid import LocalGrid
from edgewire.strategy.run.serialization import from_bytes, to_bytes
from tests.compression.flower.apps import (
    counted,
    left_out,
    moving,
    record_of,
    replies_to,
    values_of,
)
from tests.grids import grid_of, pool_of
from tests.mutations import Mutator
from tests.same import expect_same

ROUNDS = 4
TOPK = {"sparsifier": "topk", "density": 0.1}
METHODS = {
    "dense": {},
    "topk": TOPK,
    "topk-int8": {**TOPK, "quantizer": "int8", "feedback": True},
    "dgc": {"sparsifier": "dgc", "sparsity": 0.9, "momentum": 0.0},
    "esgd": {"sparsifier": "esgd", "drop": 0.8},
    "cesgd": {"sparsifier": "cesgd"},
    "randomk": {"sparsifier": "randomk", "density": 0.2},
    "int8": {"quantizer": "int8"},
    "qsgd": {"quantizer": "qsgd"},
    "powersgd": {"quantizer": "powersgd", "rank": 2},
}
DOWN = {"whole": None, "int8": "int8", "topk": make_codec("topk", density=0.3, feedback=True)}
PAIR = ("head.weight=emb.weight",)
ALL = (*PAIR, "last.weight=emb.weight", "again=scale", "steps.too=steps")


def model(*copies):
    """Return a model's tensors, and copies of some of them; `copies` are given as `name=source`."""
    draw = np.random.default_rng(0)
    values = {
        "emb.weight": draw.normal(size=(12, 8)).astype(np.float32),
        "scale": np.float32(1.5),
        "steps": np.int64([5, 6]),
        "fc.weight": draw.normal(size=(8, 8)).astype(np.float32),
    }
    for name, source in pairs(copies):
        values[name] = values[source]
    return values


def pairs(copies):
    return [each.partition("=")[::2] for each in copies]


def learns(copies=(), apart=(), since=1, rounds=ROUNDS):
    """Return a training function that ties `copies`; its updates are random multiples of 1/8.

    `apart`: nodes that train their copies separately from round `since` on. `rounds`: in later
    rounds the updates are 0.
    """

    def train(node, values, state):
        number = counted(state)
        of = {} if node in apart and number >= since else dict(pairs(copies))
        places = {name: place for place, name in enumerate(values)}
        moved = {}
        for name, value in values.items():
            draw = np.random.default_rng([node, places[of.get(name, name)], number])
            step = draw.integers(-8, 9, value.shape) * (number <= rounds)
            step = step / np.float32(8) if value.dtype.kind == "f" else step
            moved[name] = np.asarray(value + step, value.dtype)
        return {"arrays": moved}

    return train


def report_loss(message, context, call_next):
    """Report loss 0.5 for odd messages, 1.0 for even ones."""
    reply = call_next(message, context)
    reply.content["metrics"]["loss"] = 0.5 if context.state["count"]["n"] % 2 else 1.0
    return reply


def federated(
    values, train, method, downlink=None, rounds=ROUNDS, strategy=FedAvg, grid_of=grid_of, nodes=2
):
    """Train over a `CompressedGrid`, or a plain grid if `method` is None; return model and grid."""
    mods = None if method is None else [CompressionMod(make_codec(**method)), report_loss]
    grid = grid_of(moving(train, mods), nodes)
    if method is not None:
        limits, screening = FailureLimits(patience=rounds), Screening(refuse=None)
        grid = CompressedGrid(grid, downlink=downlink, failures=limits, screening=screening)
    result = strategy(fraction_evaluate=0).start(grid, record_of(values), rounds)
    return values_of(result.arrays), grid


WAYS = [(each, "whole") for each in METHODS]
WAYS += [(each, down) for each in ("dense", "topk", "int8") for down in ("int8", "topk")]


@pytest.mark.parametrize(("method", "downlink"), WAYS)
def test_a_model_with_copies_learns_and_copies_take_no_bytes(method, downlink):
    found, compressed = federated(model(*ALL), learns(ALL), METHODS[method], DOWN[downlink])
    alone, other = federated(model(), learns(), METHODS[method], DOWN[downlink])
    for name, source in [*pairs(ALL), *((name, name) for name in alone)]:
        np.testing.assert_array_equal(found[name], alone[source])
        assert found[name].dtype == alone[source].dtype
    assert list(found) == list(model(*ALL))
    assert compressed.traffic.failures == 0
    assert compressed.traffic.uplink_bytes == other.traffic.uplink_bytes
    assert compressed.traffic.downlink_bytes == other.traffic.downlink_bytes
    assert compressed.traffic.uplink_header_bytes == other.traffic.uplink_header_bytes


@pytest.mark.parametrize("since", ["first", "second"])
@pytest.mark.parametrize("method", METHODS)
def test_an_app_that_replies_in_another_dtype_may_tie_its_weights(method, since):
    """Nodes may reply in float64 and tie weights, from the first or from the second message on."""
    halves = learns(ALL)

    def train(node, values, state):
        made = halves(node, values, state)["arrays"]
        if since == "second" and state["count"]["n"] == 1:
            return {"arrays": made}
        wide = {n: np.asarray(v, np.float64) for n, v in made.items() if v.dtype.kind == "f"}
        return {"arrays": {**made, **wide}}

    plain, _ = federated(model(*ALL), train, None)
    found, compressed = federated(model(*ALL), train, METHODS[method])
    assert compressed.traffic.failures == 0
    assert compressed.traffic.client_updates == 2 * ROUNDS
    if method == "dense":
        expect_same(found, plain)


class Losing(LocalGrid):
    """A grid that loses all replies of the rounds `lost`."""

    def __init__(self, app, nodes, lost):
        super().__init__(pool_of(app, nodes), nodes)
        self.lost, self.round = lost, 0

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.round += bool(replies)
        return [] if self.round in self.lost else replies


# Rounds with updates; first round with separate copies; rounds until all residuals are sent.
LEARN, SINCE, FLUSH = 4, 3, 14
KEEPING = {
    "topk": {**TOPK, "density": 0.2},
    "topk-int8": {**TOPK, "density": 0.2, "quantizer": "int8", "feedback": True},
    "dgc": {"sparsifier": "dgc", "sparsity": 0.8, "momentum": 0.0},
    "esgd": {"sparsifier": "esgd", "drop": 0.7, "beta": 1.0, "cap": 0.3},
    "cesgd": {"sparsifier": "cesgd", "feedback": True},
    "powersgd": {"quantizer": "powersgd", "rank": 1},
}


@cache
def summed(apart):
    """Return the model after all updates are added, without compression."""
    train = learns(ALL, apart, SINCE, LEARN)
    return federated(model(*ALL), train, None, rounds=LEARN)[0]


@pytest.mark.few(6)
@pytest.mark.parametrize("lost", [(), (2,), (3,)], ids=str)
@pytest.mark.parametrize("method", KEEPING)
def test_copies_that_separate_late_lose_no_residual(method, lost):
    apart = (0, 1) if len(method) % 2 else (0,)
    found, compressed = federated(
        model(*ALL),
        learns(ALL, apart, SINCE, LEARN),
        KEEPING[method],
        rounds=LEARN + FLUSH,
        grid_of=lambda app, nodes: Losing(app, nodes, lost),
    )
    assert compressed.traffic.failures == 2 * len(lost)
    for name, value in summed(apart).items():
        if value.dtype == np.float32:
            np.testing.assert_allclose(found[name], value, atol=2e-3, err_msg=name)


def test_a_pair_that_separated_at_the_server_is_never_tied_again():
    state = SentModelsState()

    def ties(one, other):
        nonlocal state
        state = from_bytes(SentModelsState, to_bytes(state))  # as stored in a checkpoint
        values = {"a": np.float32([1, one]), "b": np.float32([1, other])}
        content = RecordDict({"m": record_of(values)})
        return SentModels(None, [], 0, state).of(content, first=True).ties

    assert ties(2, 2) == ((1, 0),)
    assert ties(3, 3) == ((1, 0),)
    assert ties(3, 4) == ()
    assert ties(3, 3) == ()
    assert ties(0.0, -0.0) == ()


def test_which_tensors_are_tied():
    same = np.float32([1, 2])
    values = {
        "a": same,
        "a.running_mean": same,
        "a.wide": same.astype(np.float64),
        "a.long": np.float32([[1, 2]]),
        "empty": np.zeros((0, 2), np.float32),
        "void": np.zeros((0, 2), np.float32),
        "b.running_mean": same,
        "own.a": same,
        "own.b": same,
        "mine": same,
        "zero": np.float32([0, 1]),
        "less": np.float32([-0.0, 1]),
        "b": same,
        "one": np.float32(0),
        "other": np.float32(0),
    }
    models = SentModels(None, ["own.*"], 0, SentModelsState(), ("mine",))
    found = models.of(RecordDict({"m": record_of(values)}), first=True)
    names = found.form.whole.names
    assert [(names[copy], names[source]) for copy, source in found.ties] == [
        ("b.running_mean", "a.running_mean"),
        ("own.b", "own.a"),
        ("b", "a"),
        ("other", "one"),
    ]


class Spied:
    """A ClientApp that records the headers of messages and replies; `spoil` changes its replies."""

    def __init__(self, app, spoil=None):
        self.app, self.spoil, self.asked, self.answered = app, spoil, [], defaultdict(list)

    def __call__(self, message, context):
        node = context.node_config["partition-id"]
        self.asked.append(message.content[HEADER])
        reply = self.app(message, context)
        if self.spoil and not reply.has_error():
            reply = self.spoil(reply, node)
        self.answered[node].append(reply.content.get(HEADER))
        return reply


def spied(values, train, method, spoil=None, **options):
    """Run `federated`; return the model, the grid and the `Spied` app."""
    apps = []

    def make(app, nodes):
        apps.append(Spied(app, spoil))
        return grid_of(apps[0], nodes)

    return *federated(values, train, method, grid_of=make, **options), apps[0]


def test_each_reply_declares_its_tied_tensors():
    values, train = model(*PAIR), learns(PAIR, apart=(1,), since=2)
    _, compressed, app = spied(values, train, METHODS["topk"], rounds=3)
    tied = [header.get("tied") for header in app.asked]
    assert tied == [[4, 0], [4, 0], [4, 0], [4, 0], None, None]
    assert app.asked[0]["copies"] == ["head.weight"]
    assert [header.get("untied") for header in app.answered[0]] == [None, None, None]
    assert [header.get("untied") for header in app.answered[1]] == [None, [4], None]
    assert compressed.traffic.failures == 0


def test_a_copy_that_a_method_names_is_sent_too():
    method = {**TOPK, "exact": ["head*", "emb*"]}
    found, compressed, app = spied(model(*PAIR), learns(PAIR), method)
    assert [notes[0]["untied"] for notes in app.answered.values()] == [[4], [4]]
    assert compressed.traffic.failures == 0
    plain, _ = federated(model(*PAIR), learns(PAIR), None)
    np.testing.assert_allclose(found["head.weight"], plain["head.weight"], rtol=1e-6)
    down = make_codec("topk", density=0.2, exact=["head*"])
    _, compressed, app = spied(model(*PAIR), learns(PAIR), TOPK, downlink=down)
    assert not any("tied" in header for header in app.asked)
    assert compressed.traffic.failures == 0


def test_where_nodes_clip_copies_are_sent_untied():
    values = {name: value for name, value in model(*PAIR).items() if value.dtype == np.float32}
    app = Spied(moving(learns(PAIR), CompressionMod("int8")))
    compressed = CompressedGrid(grid_of(app, 2))
    for norm, untied in ((1e3, [3]), (1e-3, None)):  # no mod has clipped to the second
        assert not left_out(replies_to(compressed, record_of(values), clipping_norm=norm))
        assert app.answered[1][-1].get("untied") == untied


LIES = ([0], [1], [99], [-1], [4, 4], [5, 4], ["x"], [0.5], 4, [2**61], [4], [4, 5, 6, 7], "4")


def test_a_reply_with_a_false_claim_of_copies_fails_its_node():
    lies = iter(LIES)

    def lie(reply, node):
        if node == 1:
            reply.content[HEADER] = ConfigRecord({**reply.content[HEADER], "untied": next(lies)})
        return reply

    found, compressed, _ = spied(model(*ALL), learns(ALL), METHODS["topk"], lie, rounds=len(LIES))
    assert compressed.traffic.failures == len(LIES)
    for name, source in pairs(ALL):
        np.testing.assert_array_equal(found[name], found[source])


def test_mutated_replies_fail_their_node_alone(caplog):
    mutate, number = Mutator(5), Counter()

    def spoil(reply, node):
        number[node] += 1
        if node == 1 and number[node] % 2:
            return mutate(reply)[0]
        mutate.hear(reply)
        return reply

    values, train = model(*ALL), learns(ALL)
    _, compressed, _ = spied(values, train, METHODS["topk"], spoil, rounds=30, nodes=3)
    left_out = {found.args[1] for found in caplog.records if "left out" in found.msg}
    assert left_out == {"node 2"}
    assert compressed.traffic.failures > 7


LAYOUT = Layout(("a", "b"), ((3,), (2,)), ("float32",) * 2)
PAYLOAD = make_codec().encode(
    np.arange(5, dtype=np.float32), LAYOUT, names=True, own=[NativeTensor(1, "n", np.int64([7, 8]))]
)


def received(**header):
    """Return a node's model after a message of three tensors: a, n and b."""
    header = DownlinkHeader(1, **header)
    return NodeReplica().model(payload_record(PAYLOAD), header, RecordDict()).arrays()


def test_copies_are_put_where_they_were():
    arrays = received(copies=["x", "y", "z"], tied=[0, 4, 3, 2, 5, 1])
    assert list(arrays) == ["x", "a", "n", "y", "b", "z"]
    assert [a.numpy().tolist() for a in arrays.values()] == [
        [3, 4], [0, 1, 2], [7, 8], [7, 8], [3, 4], [0, 1, 2]
    ]  # fmt: skip
    assert arrays["y"].dtype == "int64"


@pytest.mark.parametrize(
    ("copies", "tied"),
    [
        (["x"], [3, 3]),
        (["x"], [3, 4]),
        (["x"], [4, 0]),
        (["x"], [3]),
        (["x"], []),
        ([], [3, 0]),
        (["x"], None),
        (None, [3, 0]),
        (["x", "y"], [3, 4, 4, 3]),
        (["x", "y"], [3, 0, 4, 3]),
        (["x", "y"], [3, 0, 3, 0]),
        (["x", "y"], [4, 0, 3, 0]),
        (["x", "x"], [3, 0, 4, 0]),
        (["a"], [3, 0]),
        (["n"], [3, 0]),
        (["x"], [2**61, 0]),
        (["x"], [3, 2**61]),
        ([f"x{i}" for i in range(1 << 14)], [p for i in range(1 << 14) for p in (i + 3, 0)]),
    ],
    ids=str,
)
def test_a_node_refuses_a_message_about_copies_that_it_does_not_hold(copies, tied):
    with pytest.raises(PayloadError, match=r"^[^\n]{20,120}$"):
        received(copies=copies, tied=tied)


def test_copies_make_no_model_larger_than_is_allowed():
    form = TensorSplit(Layout(("a", "n"), ((5,), (4,)), ("float32", "int64")), (1,))
    header = DownlinkHeader(1, copies=["x", "y"], tied=[2, 0, 3, 0])
    assert len(form_with_copies(form, header, 15)[0].whole) == 4
    with pytest.raises(PayloadError, match="more than the 14 entries allowed"):
        form_with_copies(form, header, 14)
    form = TensorSplit(Layout(("n",), ((1 << 28,),), ("int64",)), (0,))
    with pytest.raises(PayloadError, match="larger than is allowed"):
        form_with_copies(form, DownlinkHeader(1, copies=["x"], tied=[1, 0]), 1 << 28)
