"""What a node's owner demands in `--node-config` holds for each message that the node answers."""

from contextlib import suppress

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from edgewire.client.app import app
from edgewire.compression.base import PayloadError
from edgewire.conf.schema import ConfigError
from edgewire.simulation.workers import node_host
from tests.conf.hostile import plain, submitted
from tests.local_runs import local_run
from tests.runs import result_of

NODE = {"partition-id": 0, "num-partitions": 4}
ACTIONS = [
    "train", "train.step", "train.segment", "evaluate", "query.columns", "query.secure_keys",
    "query.secure_shares", "query.secure_unmask",
]  # fmt: skip
RUN = ["algorithm=fedavg_secure", "nodes=4", "rounds=2", "local_steps=1", "dataset=digits",
       "secure.least=3"]  # fmt: skip


@pytest.fixture
def ask(identity):
    def call(action, config, **node_config):
        message = Message(RecordDict({"x": ConfigRecord()}), 1, action)
        message.metadata.__dict__["_message_id"] = "1"
        values = submitted(plain("nodes=4", *config))
        return app(message, Context(1, 1, {**NODE, **node_config}, RecordDict(), values))

    return call


OPEN, UNMASKED = [], [*RUN[:1], "secure.masks=false"]
WRONG = [
    ({"secure": 1}, OPEN, "this node's owner allows secure=sum and secure=bare alone"),
    ({"secure": True}, OPEN, "this node's owner allows secure=sum and secure=bare alone"),
    ({"secure": 1}, UNMASKED, "this node's owner allows secure=sum and secure=bare alone"),
    ({"secure": 1}, [*RUN[:1], "personal=[3.*]"], "which personal= would weaken"),
    ({"secure": "maybe"}, RUN[:1], "--node-config secure=maybe: this node needs 0, 1 or sum"),
    ({"secure": "maybe"}, OPEN, "--node-config secure=maybe: this node needs 0, 1 or sum"),
    ({"secure-least": "x"}, RUN[:1], "secure-least=x: this node needs a count of nodes"),
    ({"secure-least": -1}, RUN[:1], "secure-least=-1: this node needs a count of nodes"),
    ({"secure-least": 5.5}, OPEN, "secure-least=5.5: this node needs a count of nodes"),
    ({"secure-least": True}, OPEN, "secure-least=true: this node needs a count of nodes"),
]


@pytest.mark.parametrize("action", ACTIONS)
def test_no_message_gets_past_the_floor(action, ask):
    for node_config, config, says in WRONG:
        with pytest.raises(ConfigError) as found:
            ask(action, config, **node_config)
        assert says in str(found.value)
        assert "\n" not in str(found.value)


@pytest.mark.parametrize("mode", ["sum", "bare"])
@pytest.mark.parametrize(("least", "failures"), [(4, 0), (5, 2)])
def test_a_node_takes_part_in_large_enough_sums_alone(
    mode, least, failures, monkeypatch, tmp_path, caplog
):
    def context(*arguments, node_config, node_id, **options):
        own = {"secure": 1, "secure-least": least} if node_id == 2 else {"secure-least": 2}
        return Context(*arguments, node_config=node_config | own, node_id=node_id, **options)

    monkeypatch.setattr(node_host, "Context", context)
    with suppress(PayloadError):  # without node 2 there is no sum in mode `bare`
        local_run(tmp_path, *RUN, f"secure={mode}")
    assert result_of(tmp_path)["failures"] == failures
    assert ("4 nodes take part, and the owner asks for 5" in caplog.text) == bool(failures)
