"""`Traffic` counts all bytes that cross the grid, and the bytes that Flower alone would send."""

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from edgewire.compression.flower import CompressedGrid, CompressionMod, payload_of
from edgewire.compression.flower.message_size import size_of
from tests.compression.flower.apps import vector
from tests.compression.flower.plain_grid import PlainGrid

ROUNDS, NODES = 3, 3


class Weighing(PlainGrid):
    """A grid that counts the bytes of all messages and replies."""

    down = up = payloads = 0

    def push_messages(self, messages):
        messages = list(messages)
        self.down += sum(size_of(message.content) for message in messages)
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        self.up += sum(size_of(reply.content) for reply in replies)
        found = filter(None, (payload_of(reply.content) for reply in replies))
        self.payloads += sum(len(payload) for _, payload in found)
        return replies


class WithControls(FedAvg):
    """A FedAvg that sends a second vector with the model, as SCAFFOLD sends control variates."""

    def configure_train(self, server_round, arrays, config, grid):
        config["text"] = "é" * server_round
        messages = super().configure_train(server_round, arrays, config, grid)
        for message in messages:
            message.content["controls"] = vector(server_round)
        return messages

    def aggregate_train(self, server_round, replies):
        for reply in replies:
            del reply.content["controls"]
        return super().aggregate_train(server_round, replies)


def run_over(compressed, mods):
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        number = message.content["config"]["server-round"] * context.node_id
        metrics = {"num-examples": 10, "loss": 0.5 / number}
        content = {"arrays": vector(number), "metrics": MetricRecord(metrics)}
        if "controls" in message.content:
            content["controls"] = vector(-number + 100)
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"num-examples": 10, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query()
    def query(message, context):
        held = ConfigRecord({"trees": bytes(message.content["ask"]["size"])})
        return Message(RecordDict({"reply": held, "arrays": vector(0)}), reply_to=message)

    grid = Weighing(app, NODES)
    started = compressed(grid)
    for strategy in (FedAvg(), WithControls()):
        strategy.start(started, vector(0), num_rounds=ROUNDS)
    ask = RecordDict({"ask": ConfigRecord({"size": 5000})})
    started.send_and_receive([Message(ask, node, "query") for node in (1, 2)])
    return grid, started


@pytest.mark.parametrize("downlink", [None, "int8"])
def test_all_that_crosses_the_grid_is_counted(downlink):
    """The counts include payloads, second vectors, evaluations, queries, metrics and headers."""
    grid, compressed = run_over(
        lambda grid: CompressedGrid(grid, downlink=downlink), [CompressionMod("int8")]
    )
    plain, _ = run_over(lambda grid: grid, [])
    traffic = compressed.traffic
    assert traffic.failures == 0
    sent = traffic.downlink_bytes, traffic.downlink_other_bytes, traffic.downlink_header_bytes
    came = traffic.uplink_bytes, traffic.uplink_other_bytes, traffic.uplink_header_bytes
    assert (sum(sent), sum(came)) == (grid.down, grid.up)
    assert traffic.uplink_bytes == grid.payloads > 0
    assert traffic.downlink_bytes_float32 + traffic.downlink_other_bytes == plain.down
    assert traffic.uplink_bytes_float32 + traffic.uplink_other_bytes == plain.up
    assert traffic.uplink_ratio == plain.up / grid.up
    assert traffic.downlink_ratio == plain.down / grid.down
    payloads = traffic.uplink_bytes_float32 / traffic.uplink_bytes
    # The second vector, half of all bytes, is not compressed.
    assert payloads > 3.9 > 2.5 > traffic.uplink_ratio
