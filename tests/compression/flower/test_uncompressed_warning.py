"""`CompressedGrid` warns once if it compresses nothing, and leaves uncompressed data unchanged."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from edgewire.compression.flower import CompressedGrid, CompressionMod
from tests.compression.flower.apps import vector
from tests.compression.flower.plain_grid import PlainGrid

NODES, CALLS = 3, 5


def trees(size):
    return ArrayRecord({"0": Array(np.frombuffer(bytes(size), np.uint8))})


def compressed_run(answer, **options):
    """Return a `CompressedGrid`; nodes reply `answer(content, context)`."""
    app = ClientApp(mods=[CompressionMod("int8")])

    def reply(message, context):
        return Message(answer(message.content, context), reply_to=message)

    for register in (app.train, app.evaluate, app.query):
        register()(reply)
    return CompressedGrid(PlainGrid(app, NODES), **options)


def ask(compressed, content, kind="train"):
    return compressed.send_and_receive(
        [Message(content, n, kind) for n in compressed.get_node_ids()]
    )


def test_messages_without_replies_are_compressed(logged):
    got = []

    def answer(content, context):
        got.append(content["gradients"]["w"].numpy())
        return RecordDict()

    compressed, plain = compressed_run(answer, downlink="int8"), 0
    for call in range(CALLS):
        content = RecordDict({"gradients": vector(call)})
        plain += NODES * len(content["gradients"]["w"].data)
        compressed.push_messages([Message(content, node, "train") for node in range(1, NODES + 1)])
        for found in got[-NODES:]:
            given = content["gradients"]["w"].numpy()
            assert np.abs(found - given).max() <= np.abs(given).max() / 127
    assert compressed.traffic.downlink_bytes_float32 == plain
    # Two whole messages, then one byte an entry.
    assert compressed.traffic.downlink_bytes < plain * (2 + 3 * 0.26) / CALLS
    assert logged() == []


def test_a_grid_that_compresses_neither_direction_warns(logged):
    compressed = compressed_run(
        lambda content, _: RecordDict({"m": MetricRecord({"num-examples": 5})})
    )
    for _ in range(CALLS):
        ask(compressed, RecordDict({"arrays": vector(0)}))
    (line,) = logged()
    assert "not compressed: the model of messages, " in line
    assert 'downlink="int8"' in line


def test_a_grid_that_compresses_replies_does_not_warn(logged):
    compressed = compressed_run(lambda content, _: RecordDict({"arrays": content["arrays"]}))
    for _ in range(CALLS):
        ask(compressed, RecordDict({"arrays": vector(0)}))
        content = RecordDict({"arrays": vector(0)})
        compressed.push_messages([Message(content, n, "evaluate") for n in (1, 2, 3)])
    assert logged() == []


def queried(content, context):
    return RecordDict({"e": vector(context.node_id)})


BYTES = {"c": ConfigRecord({"model": bytes(9000)})}
LARGEST = {  # the reply to a message of a type with these records, and the record that is named
    "arrays of a query": (queried, "query", {}, "'e' of replies to 'query', 60384 bytes so far"),
    "a model in a configuration": (
        lambda content, _: RecordDict({"c": content["c"]}), "train", BYTES, "'c' of"
    ),
    "a second vector": (
        lambda content, _: RecordDict({"a": vector(1), "controls": vector(2)}),
        "train", {"a": vector(3)}, "'controls' of replies to 'train', 120768 bytes so far",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LARGEST)
def test_the_largest_record_that_is_not_compressed_is_named_once(case, logged):
    answer, kind, sent, named = LARGEST[case]
    compressed = compressed_run(answer)
    for _ in range(CALLS):
        replies = ask(compressed, RecordDict(sent), kind)
    assert not any(reply.has_error() for reply in replies)
    (line,) = logged()
    assert named in line
    assert "only the model that a node has trained" in line


def test_trees_pass_through_untouched(logged):
    """Serialised decision trees are sent unchanged; their length differs between nodes."""
    grown = lambda _, context: RecordDict({"arrays": trees(600 * context.node_id)})  # noqa: E731
    compressed = compressed_run(grown, downlink="int8")
    for size in (0, 600, 1200, 1800):
        replies = ask(compressed, RecordDict({"arrays": trees(size)}))
        sizes = [r.content["arrays"]["0"].shape for r in replies]
        assert sizes == [(600,), (1200,), (1800,)]
        ask(compressed, RecordDict({"arrays": trees(size + 600)}), "evaluate")
    (line,) = logged()
    assert "'arrays' of replies to 'train'" in line
    assert compressed.traffic.failures == 0
    assert compressed.traffic.uplink_bytes == compressed.traffic.downlink_bytes == 0


def test_an_app_that_is_compressed_gets_no_warning(logged):
    def answer(content, _):
        more = {f"m{i}": 0.5 for i in range(9)}
        metrics = MetricRecord({"num-examples": 5, "accuracy": 0.5, **more})
        return RecordDict({"arrays": content["arrays"], "metrics": metrics})

    small = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    for model in (small, vector(0)):
        compressed = compressed_run(answer, downlink="int8")
        FedAvg(fraction_evaluate=0).start(compressed, model, num_rounds=CALLS)
        assert compressed.traffic.client_updates == NODES * CALLS
    assert logged() == []


@pytest.mark.parametrize("record", ["fitins.parameters", "secaggplus_configs"])
def test_flowers_old_api_is_refused_in_one_line(record):
    compressed = compressed_run(lambda content, _: content)
    held = vector(0) if record.endswith("parameters") else ConfigRecord()
    with pytest.raises(ValueError, match=f"old API .*{record}.*flwr.serverapp"):
        ask(compressed, RecordDict({record: held}))


@pytest.mark.parametrize("record", ["fitins.parameters", "secaggplus_configs"])
def test_the_mod_alone_under_flowers_old_api_warns_once(logged, record):
    """An old-API server has no Grid to wrap, so the mod warns once."""
    app = ClientApp(mods=[CompressionMod("int8")])
    app.train()(lambda message, _: Message(message.content, reply_to=message))
    grid = PlainGrid(app, NODES)
    array = Array("", (), "numpy.ndarray", vector(0)["w"].data)  # in the form of Flower's old API
    old = ArrayRecord({"0": array}) if record.endswith("parameters") else ConfigRecord()
    for _ in range(2):
        replies = ask(grid, RecordDict({record: old}))
    assert [set(reply.content) for reply in replies] == NODES * [{record}]
    (line,) = logged()
    assert f"of Flower's old API (it sends '{record}')" in line
    assert "flwr.serverapp" in line
