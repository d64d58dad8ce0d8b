"""Replies with unusual tensors, dtypes or records, and rounds whose messages differ.

A reply that is valid without compression is valid with compression too. An invalid reply is left
out, and the other replies are used.
"""

from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from numpy.lib import format as numpy_format

from edgewire.compression.flower import CompressedGrid, CompressionMod, ReplyRules, payload_record
from edgewire.compression.flower.headers import HEADER
from edgewire.compression.flower.records import NUMPY
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.wire_header import DTYPES
from edgewire.compression.wire_natives import NativeTensor
from edgewire.simulation.grid import LocalGrid
from tests.compression.flower.apps import (
    NODES,
    ask,
    left_out,
    moving,
    only_of,
    record_of,
    replies_to,
    same,
    spoiling,
    to_targets,
    values_of,
)
from tests.compression.flower.federation import SHAPES, compressed_run, initial
from tests.grids import grid_of
from tests.mutations import HEADERS, ODD_TYPES, npy_of

HALF_UP, HALF_DOWN = ("conv.weight", "conv.bias"), ("scale", "fc.weight")


def part(arrays, names):
    return ArrayRecord({name: arrays[name] for name in names})


def test_arrays_in_the_reply_to_an_evaluation_are_sent_exactly(logged):
    """Arrays in a reply to an evaluation are sent exactly, and the residual does not change."""
    matrix = np.random.default_rng(2).normal(size=(3, 3)).astype(np.float32)
    seen = []

    class Seeing(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            seen.extend(reply.content.pop("confusion")["counts"].numpy() for reply in replies)
            return None

    def evaluate(node, values, state):
        return {"confusion": {"counts": matrix}}

    app = moving(to_targets, CompressionMod("topk", density=0.3, quantizer="int8"), evaluate)
    _, traffic = compressed_run(app, NODES, Seeing(fraction_evaluate=1), 2)
    assert len(seen) == 2 * NODES
    for found in seen:
        np.testing.assert_array_equal(found, matrix)
    assert traffic.failures == 0
    assert not logged()


def test_replies_pass_unchanged_if_none_has_arrays():
    app = moving(lambda node, values, state: {}, CompressionMod("int8"))
    compressed = CompressedGrid(grid_of(app))
    found = [dict(r.content["metrics"]) for r in replies_to(compressed, initial())]
    assert found == [{"num-examples": 2, "loss": 1.0}] * NODES
    assert compressed.traffic.failures == 0


def test_a_reply_without_arrays_among_others_is_left_out():
    def train(node, values, state):
        return to_targets(node, values, state) if node == 1 else {}

    compressed = CompressedGrid(grid_of(moving(train, CompressionMod("int8"))))
    assert left_out(replies_to(compressed, initial())) == [1, 3]
    assert compressed.traffic.failures == 2


def with_another(reply):
    reply.content["more"] = MetricRecord({"a": 1.0})


def with_other_arrays(reply):
    reply.content["more"] = record_of({"a": np.ones(3, np.float32)})


def retyped(reply):
    reply.content["metrics"] = ConfigRecord(dict(reply.content["metrics"]))


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("spoil", [with_another, with_other_arrays, retyped])
def test_a_reply_with_an_unexpected_record_is_left_out_alone(spoil, nodes):
    app = spoiling(moving(to_targets, CompressionMod("int8")), spoil)
    _, traffic = compressed_run(app, nodes, rounds=2)
    assert traffic.failures == 2
    assert traffic.client_updates == 2 * (nodes - 1)


@pytest.mark.parametrize("uneven", [True, False])
def test_nodes_that_reply_with_different_layers(uneven):
    """Nodes may reply with different layers if `uneven=True`; else only one reply is used."""
    names = (HALF_UP, HALF_DOWN, ("conv.bias",))

    def train(node, values, state):
        moved = to_targets(node, values, state)["arrays"]
        return {"arrays": {name: moved[name] for name in names[node]}}

    grid = grid_of(moving(train, CompressionMod("dense")))
    compressed = CompressedGrid(grid, replies=ReplyRules(uneven=uneven))
    replies = replies_to(compressed, initial())
    assert compressed.traffic.failures == (0 if uneven else NODES - 1)
    for reply in replies:
        if uneven:
            node, arrays = reply.metadata.src_node_id - 1, values_of(reply.content["arrays"])
            assert tuple(arrays) == names[node]
            expected = to_targets(node, values_of(initial()), None)["arrays"]
            for name, value in arrays.items():
                np.testing.assert_array_equal(value, expected[name].astype(np.float32))


def test_nodes_that_are_sent_different_layers():
    grid = grid_of(moving(to_targets, CompressionMod("int8")))
    compressed = CompressedGrid(grid, downlink="int8")
    for _ in range(3):
        messages = [
            *ask(compressed, part(initial(), HALF_UP), nodes=[1]),
            *ask(compressed, part(initial(), HALF_DOWN), nodes=[2, 3]),
        ]
        replies = compressed.send_and_receive(messages)
        found = {r.metadata.src_node_id: tuple(r.content["arrays"]) for r in replies}
        assert found == {1: HALF_UP, 2: HALF_DOWN, 3: HALF_DOWN}


def test_layers_that_alternate_are_told_apart():
    """If messages hold two layers of equal shape in turn, each message sends its layer whole."""
    rng, seen = np.random.default_rng(3), []

    def train(node, values, state):
        seen.append(values)
        return same(node, values, state)

    compressed = CompressedGrid(grid_of(moving(train, CompressionMod("dense")), 1), downlink="topk")
    layers = {name: rng.normal(size=100).astype(np.float32) for name in ("first", "second")}
    for number in range(4):
        name = ("first", "second")[number % 2]
        (reply,) = replies_to(compressed, record_of({name: layers[name]}))
        assert not reply.has_error()
        assert list(seen[-1]) == [name]
        np.testing.assert_array_equal(seen[-1][name], layers[name])


def test_exact_tensors_stay_exact_in_a_reply_with_one_layer_fewer():
    def train(node, values, state):
        moved = to_targets(node, values, state)["arrays"]
        del moved["scale"]
        return {"arrays": moved}

    compressed = CompressedGrid(grid_of(moving(train, CompressionMod("int8"))), exact=["fc.*"])
    for reply in replies_to(compressed, initial()):
        node, values = reply.metadata.src_node_id - 1, values_of(reply.content["arrays"])
        expected = to_targets(node, values_of(initial()), None)["arrays"]["fc.weight"]
        np.testing.assert_array_equal(values["fc.weight"], expected.astype(np.float32))
        assert "scale" not in values


@pytest.mark.parametrize("method", ["dense", "int8"])
@pytest.mark.parametrize(
    "other",
    [
        lambda values: {**values, "scale": np.zeros(12, np.float32)},
        lambda values: {**values, "fc.weight": values["fc.weight"][None]},
        lambda values: {n: v for n, v in values.items() if n != "scale"},
        lambda values: {f"x{n}": v for n, v in values.items()},
        lambda values: {**values, "more": np.zeros(3)},
    ],
)
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_reply_with_unexpected_tensors_is_left_out_alone(method, other, nodes):
    """A reply is compared with the tensors that were sent to its node, not with another reply."""
    app = moving(only_of(0, other), CompressionMod(method))
    model, traffic = compressed_run(app, nodes)
    assert traffic.failures == 3
    assert {name: value.shape for name, value in model.items()} == SHAPES


def test_an_apps_other_metrics_pass_unchanged():
    def spoil(reply):
        reply.content["metrics"]["seconds"] = 12345.0

    app = spoiling(moving(same, CompressionMod("int8")), spoil)
    (reply,) = replies_to(CompressedGrid(grid_of(app, 1)), initial())
    assert reply.content["metrics"]["seconds"] == 12345.0


@pytest.mark.parametrize("code", [3, 4, 5])
def test_a_run_survives_a_round_that_reaches_no_node(code):
    class Away(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            error = Error(code, "Error: Node Unavailable")
            list(super().send_and_receive(messages))  # sets the messages' ids
            return [Message(error, reply_to=message) for message in messages]

    compressed = CompressedGrid(grid_of(moving(same, CompressionMod("int8")), kind=Away))
    assert len(left_out(replies_to(compressed, initial()))) == NODES
    assert compressed.traffic.failures == NODES


def test_messages_of_different_types_are_not_compared():
    app = moving(same, CompressionMod("int8"), lambda node, values, state: {})

    @app.query()
    def query(message, context):
        return Message(RecordDict({"m": MetricRecord({"num-examples": 0})}), reply_to=message)

    compressed = CompressedGrid(grid_of(app))
    kinds = ["evaluate", "evaluate", "query"]
    messages = [
        ask(compressed, initial(), kind, [node])[0]
        for kind, node in zip(kinds, compressed.get_node_ids(), strict=True)
    ]
    assert not left_out(compressed.send_and_receive(messages))


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0), (9, 0)])
def test_a_reply_with_an_unreadable_array_is_an_error(kind, version):
    """The server refuses .npy headers that numpy would evaluate as code, and impossible shapes."""
    made = [
        Array(dtype, shape, "numpy.ndarray", npy_of(text, values, version))
        for text, values in HEADERS
        for dtype in ("float32", *ODD_TYPES)
        for shape in ((1,), (-2, -4), (0, 1 << 62), ())
    ]
    app = ClientApp()

    def reply(message, context):
        asked = message.content["of"]["number"]
        return Message(RecordDict({"odd": ArrayRecord({"w": made[asked]})}), reply_to=message)

    for register in (app.train, app.evaluate, app.query):
        register()(reply)
    compressed, failed = CompressedGrid(grid_of(app, 1)), 0
    for number in range(len(made)):
        content = RecordDict({"of": ConfigRecord({"number": number})})
        (found,) = compressed.send_and_receive([Message(content, 1, kind)])
        if found.has_error():
            failed += 1
        else:
            array = found.content["odd"]["w"].numpy()
            assert array.nbytes <= len(made[number].data)
            assert array.size <= 1
    assert compressed.traffic.failures == failed
    assert failed > len(made) * 3 // 4


def test_floats_of_another_byte_order_are_floats(logged):
    start = {name: array.numpy().astype(">f4") for name, array in initial().items()}
    arrays = record_of(start)
    assert arrays["scale"].dtype == ">f4"
    app = moving(same, CompressionMod("int8"))
    model, traffic = compressed_run(app, NODES, arrays=arrays)
    for name, value in start.items():
        # The mean may differ in its last bit.
        np.testing.assert_allclose(model[name], value, rtol=1e-6)
    assert traffic.uplink_bytes > 0
    assert not logged()


RAW = make_codec(coder="raw")


def compressed_of(change, uplink="dense"):
    """Return a `CompressedGrid` to nodes; `change` modifies the replies of the first node."""
    app = moving(to_targets, CompressionMod(uplink), lambda node, values, state: {})
    return CompressedGrid(grid_of(spoiling(app, change)))


def with_payload(payload, **header):
    """Return a `change` that replaces a reply's payload, which declares its names."""

    def change(reply):
        said = {**reply.content[HEADER], "named": 1, **header}
        reply.content["arrays"], reply.content[HEADER] = payload_record(payload), ConfigRecord(said)

    return change


def in_vector(dtypes, **header):
    """Return a `change` that puts a reply's tensors into the float32 vector with these dtypes."""
    layout = Layout(tuple(SHAPES), tuple(SHAPES.values()), dtypes)
    payload = RAW.encode(np.ones(layout.size, np.float32), layout, names=True)
    return with_payload(payload, **header)


def beside(dtype):
    """Return a `change` that moves all tensors of a reply out of the float32 vector, as `dtype`."""
    given = enumerate(SHAPES.items())
    own = [NativeTensor(i, name, np.ones(shape, dtype)) for i, (name, shape) in given]
    payload = RAW.encode(np.ones(0, np.float32), Layout((), (), ()), names=True, own=own)
    return with_payload(payload, whole=1)


def expect_refused(compressed, caplog, said):
    """Assert that one reply is left out with the reason `said`; others have the sent dtypes."""
    sent = initial()
    replies = replies_to(compressed, sent)
    assert left_out(replies) == [1]
    assert compressed.traffic.failures == 1
    assert "node 1" in caplog.text
    assert said in caplog.text
    for reply in replies:
        if not reply.has_error():
            FedAvg().aggregate_train(1, [reply])
            for name, array in reply.content["arrays"].items():
                assert array.dtype == sent[name].dtype


@pytest.mark.parametrize("header", [{}, {"whole": 1}])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.startswith("float")])
def test_dtypes_that_the_vector_cannot_hold(dtype, header, caplog):
    expect_refused(compressed_of(in_vector((dtype,) * len(SHAPES), **header)), caplog, dtype)


BESIDE = {dtype: f"comes as {dtype}, float32 was sent" for dtype in ("int8", "uint64", "bool")}
BESIDE["float32"] = "travels in another part of the payload"


@pytest.mark.parametrize("dtype", BESIDE)
def test_tensors_beside_the_vector_that_were_not_requested(dtype, caplog):
    expect_refused(compressed_of(beside(dtype)), caplog, BESIDE[dtype])


@pytest.mark.parametrize("method", ["dense", "int8"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.int64])
def test_replies_in_another_dtype_are_used(method, dtype):
    """Apps may reply in another dtype: NumPy turns float32 into float64 and int32 into int64."""
    counts = np.array([1, 2], np.int32)

    def train(node, values, state):
        return {"arrays": {"w": values["w"].astype(dtype), "n": values["n"].astype(np.int64)}}

    values = {"w": np.full(3, 2.0, np.float32), "n": counts}
    compressed = CompressedGrid(grid_of(moving(train, CompressionMod(method))))
    for reply in replies_to(compressed, record_of(values)):
        found = values_of(reply.content["arrays"])
        np.testing.assert_array_equal(found["w"], values["w"])
        assert found["w"].dtype.kind == "f"
        assert found["n"].dtype == counts.dtype
        np.testing.assert_array_equal(found["n"], counts)
    assert compressed.traffic.failures == 0


@pytest.mark.parametrize("method", ["dense", "topk"])
def test_new_tensors_may_have_any_numpy_dtype(method):
    kinds = [kind for kind in DTYPES if kind != "bfloat16"]
    values = {f"adapter.{kind}": np.ones((4, 2), kind) for kind in kinds}

    def train(node, _, state):
        return {"arrays": values}

    options = {} if method == "dense" else {"density": 1.0}
    compressed = CompressedGrid(grid_of(moving(train, CompressionMod(method, **options))))
    replies = replies_to(compressed, initial())
    assert compressed.traffic.failures == 0
    assert len(replies) == NODES
    for reply in replies:
        for name, array in reply.content["arrays"].items():
            assert array.dtype == values[name].dtype
            np.testing.assert_array_equal(array.numpy(), values[name])


def npy(dtype, shape, data=b""):
    """Return an .npy file with this dtype, shape and data, as bytes."""
    file = BytesIO()
    numpy_format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)
UNREADABLE = {
    "entries that are not there": Array("float32", (1 << 40,), NUMPY, npy("<f4", (1 << 40,))),
    "too few": Array("float32", (2, 3), NUMPY, npy("<f4", (2, 3), GOOD.tobytes()[:-4])),
    "too many": Array("float32", (2, 3), NUMPY, npy("<f4", (2, 3), GOOD.tobytes() + b"more")),
    "another shape": Array("float32", (3, 2), NUMPY, Array(GOOD).data),
    "another type": Array("float32", (2, 3), NUMPY, npy("<i4", (2, 3), GOOD.tobytes())),
    "objects": Array("object", (1,), NUMPY, npy("|O", (1,), b"12345678")),
    "noise": Array("float32", (2, 3), NUMPY, b"noise"),
    "nothing": Array("float32", (0,), NUMPY, b""),
    "a negative shape": Array("float32", (0,), NUMPY, npy("<f4", (-1,))),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_plain_arrays_are_checked_before_a_strategy_reads_them(name, kind, caplog):
    compressed = compressed_of(
        lambda reply: reply.content.update(more=ArrayRecord({"x": UNREADABLE[name]}))
    )
    assert left_out(replies_to(compressed, initial(), kind)) == [1]
    assert "node 1" in caplog.text
    assert "its array 'x'" in caplog.text


@pytest.mark.parametrize(
    "array",
    [Array(GOOD), Array(GOOD.T), Array(GOOD.astype(">f4")), Array(np.zeros((0, 3))),
     Array(np.array(1, np.float32)), Array("", (), NUMPY, Array(GOOD).data),
     Array("x", (9,), "mine", b"?")],
)  # fmt: skip
def test_plain_arrays_that_are_readable_are_handed_on(array):
    app = moving(to_targets, CompressionMod("dense"))
    answer = spoiling(app, lambda reply: reply.content.update(more=ArrayRecord({"x": array})))
    compressed = CompressedGrid(grid_of(answer, 1))
    (reply,) = replies_to(compressed, initial())
    assert reply.content["more"]["x"].data == array.data
    assert compressed.traffic.failures == 0
