"""Secure sums of whole runs: they are exact, survive dropouts, and tell the server nothing else."""

import math
import os
import shutil
from collections import defaultdict
from contextlib import suppress

import numpy as np
import pytest
from flwr.app import MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.codec import Codec
from edgewire.compression.flower.node.secure import SecureMod
from edgewire.compression.flower.records import content_of, metadata_of, records, values_of
from edgewire.compression.flower.secure_messages import SECURE, secure_record
from edgewire.compression.flower.server.session import ServerSession
from edgewire.compression.secure import Coordinator, Member
from edgewire.conf.load import to_config
from edgewire.conf.schema import ConfigError
from edgewire.simulation.grid import LocalGrid
from edgewire.strategy.factory import made
from edgewire.strategy.run import checkpointer
from tests.local_runs import at_row, local_run
from tests.runs import composed, history_of, model_bytes, nodes_of, result_of

RUN = ["algorithm=fedavg_secure", "rounds=3", "local_steps=2", "nodes=4", "dataset=digits",
       "secure.least=3"]  # fmt: skip
MODES = ["secure=sum", "secure=bare"]


@pytest.fixture
def sums(monkeypatch):
    """Check each total against the integers that nodes have masked; return the nodes' numbers."""
    given, taken, found = {}, defaultdict(list), []
    take, totals = Coordinator.take_masked, Coordinator.totals

    def noting(method):
        def masked(self, *arguments):
            values = next(each for each in arguments if isinstance(each, list))
            made = method(self, *arguments)
            given[made] = [np.array(each, dtype=np.int64) for each in values]
            return made

        return masked

    def taking(self, node, masked):
        take(self, node, masked)
        taken[self].append(given[masked])

    def totalling(self):
        made = totals(self)
        wanted = [sum(parts) for parts in zip(*taken[self], strict=True)]
        assert all((a == b).all() for a, b in zip(made, wanted, strict=True))
        found.append(len(taken[self]))
        return made

    monkeypatch.setattr(Member, "masked", noting(Member.masked))
    monkeypatch.setattr(Member, "masked_bare", noting(Member.masked_bare))
    monkeypatch.setattr(Coordinator, "take_masked", taking)
    monkeypatch.setattr(Coordinator, "totals", totalling)
    return found


def dropping(monkeypatch, kind, number, nodes):
    """Let nodes fail instead of answering their message of a kind, for the `number`-th time."""
    asked = defaultdict(int)

    def failing(method):
        def act(self, message, context, *rest):
            key = context.node_id, metadata_of(message)["_message_type"]
            asked[key] += 1
            if key[0] in nodes and key[1] == kind and asked[key] == number:
                raise OSError("the node is gone")
            return method(self, message, context, *rest)

        return act

    monkeypatch.setattr(SecureMod, "answer", failing(SecureMod.answer))
    monkeypatch.setattr(SecureMod, "__call__", failing(SecureMod.__call__))


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_the_same_with_masks_and_without(mode, sums, tmp_path):
    local_run(tmp_path / "masks", *RUN, mode)
    local_run(tmp_path / "plain", *RUN, mode, "secure.masks=false")
    assert model_bytes(tmp_path / "masks") == model_bytes(tmp_path / "plain")
    with_masks, plain = result_of(tmp_path / "masks"), result_of(tmp_path / "plain")
    counted = [key for key in plain if key.endswith("_bytes")]
    assert [with_masks[key] for key in counted] == [plain[key] for key in counted]
    assert sums == [4] * 6
    assert with_masks["failures"] == 0
    assert with_masks["train_loss"] == plain["train_loss"]


def test_both_modes_have_one_model(tmp_path):
    """But for the residuals of `secure=bare`, and how it rounds."""
    forgetting = ["feedback=false", "stochastic=true", "reach=2"]
    for mode in MODES:
        local_run(tmp_path / mode, *RUN, mode)
    same = [f"compression.{word}" for word in forgetting]
    local_run(tmp_path / "same", *RUN, "secure=bare", *same)
    found = [model_bytes(tmp_path / name) for name in (*MODES, "same")]
    assert found[2] == found[0] != found[1]


@pytest.mark.parametrize(
    ("kind", "left"),
    [("query.secure_keys", 7), ("query.secure_shares", 7), ("train.step", 7),
     ("query.secure_unmask", 10)],
)  # fmt: skip
def test_three_of_ten_nodes_may_drop_out(kind, left, sums, monkeypatch, tmp_path, caplog):
    dropping(monkeypatch, kind, 2, {2, 5, 9})
    local_run(tmp_path, *RUN, "nodes=10")
    assert sums == [10, left, 10]
    counted = result_of(tmp_path)  # 30 updates were asked for
    assert (counted["failures"], counted["client_updates"]) == (10 - left, 20 + left)
    said = "the sum has the updates of nodes that sent no shares for it: node 2 (OSError: "
    assert (said in caplog.text) == (kind == "query.secure_unmask")
    assert "has no sum" not in caplog.text


@pytest.mark.parametrize("kind", ["train.step", "query.secure_unmask"])
def test_seven_of_twenty_are_too_many_and_the_run_goes_on(
    kind, sums, monkeypatch, tmp_path, caplog
):
    dropping(monkeypatch, kind, 2, {1, 2, 5, 9, 11, 13, 17})
    local_run(tmp_path, *RUN, "nodes=20")
    assert "round 2 has no sum" in caplog.text
    assert "13 of 20 nodes" in caplog.text
    assert result_of(tmp_path)["failures"] == 7
    assert len(history_of(tmp_path)) == 4
    assert sums == [20, 20]


def test_a_round_waits_until_enough_nodes_are_online(sums, tmp_path, caplog):
    local_run(tmp_path, *RUN, "network.join_seconds=9", "network.seconds_per_step=0.01")
    assert [result_of(tmp_path)["failures"], *sums][:2] == [0, 3]
    assert len(sums) == 3
    assert caplog.text.count("secure.least=3 asks for 3: the server waits") == 1


def test_a_run_ends_when_too_few_nodes_are_left(sums, tmp_path, caplog):
    lasting = ["nodes=10", "secure.least=8", "rounds=20", "network.crash=0.03", "timeout=10"]
    local_run(tmp_path, *RUN, *lasting)
    rounds = len(history_of(tmp_path)) - 1
    assert 1 < rounds < 20
    assert f"6 nodes are left, and secure.least=8 asks for 8; {rounds} of 20" in caplog.text
    assert sums


def test_bare_loses_the_round_of_a_lost_node(sums, monkeypatch, tmp_path, caplog):
    dropping(monkeypatch, "train.step", 2, {3})
    restored, restore = [], Codec.restore
    monkeypatch.setattr(Codec, "restore", lambda *a, **b: [restored.append(1), restore(*a, **b)])
    local_run(tmp_path, *RUN, "secure=bare")
    assert "round 2 has no sum" in caplog.text
    assert sums == [4, 4]
    assert len(restored) == 3  # the updates of round 2 return in round 3


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_is_the_same(mode, monkeypatch, tmp_path):
    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    at_row(monkeypatch, 3, lambda: shutil.copytree(whole, stopped))
    local_run(whole, *RUN, mode)
    local_run(stopped, *RUN, mode, resume=True)
    assert model_bytes(stopped) == model_bytes(whole)
    before, after = result_of(whole), result_of(stopped)
    assert [after[k] for k in ("loss", "train_loss", "uplink_bytes")] == [
        before[k] for k in ("loss", "train_loss", "uplink_bytes")
    ]
    # The resumed server has new keys.
    assert after["downlink_secure_bytes"] > before["downlink_secure_bytes"]


def test_the_protocol_has_the_bytes_of_the_formula(monkeypatch, tmp_path):
    sizes, push, pull = defaultdict(int), LocalGrid.push_messages, LocalGrid.pull_before

    def count(message, way):
        for record in [values_of(content_of(message)).get(SECURE)]:
            for name, value in values_of(record).items() if record is not None else ():
                sizes[way, name] += len(value)

    def pushing(self, messages, *rest):
        messages = [*messages]
        [count(each, "down") for each in messages]
        return push(self, messages, *rest)

    def pulling(self, *rest):
        found = pull(self, *rest)
        [count(each, "up") for each in found]
        return found

    monkeypatch.setattr(LocalGrid, "push_messages", pushing)
    monkeypatch.setattr(LocalGrid, "pull_before", pulling)
    n, rounds = 10, 3
    local_run(tmp_path, *RUN, f"nodes={n}")
    each = n * rounds
    assert sizes["up", "keys"] == each * 64
    assert sizes["up", "sealed"] == each * 50 * (n - 1)
    assert sizes["up", "shares"] == each * 17 * n
    assert sizes["down", "masks"] == each * 32 * n
    assert sizes["down", "sealed"] == each * 50 * (n - 1)
    assert sizes["down", "alive"] == sizes["down", "roster"] == each * 2
    assert sizes["down", "keys"] == each * 4 + n * n * 32  # each key once for each node
    assert sizes["down", "terms"] == each * 48
    assert sizes["down", "run"] == each * 16
    result = result_of(tmp_path)
    assert result["uplink_secure_bytes"] - sum(s for (w, _), s in sizes.items() if w == "up") > 0
    overhead = result["uplink_secure_bytes"] + result["downlink_secure_bytes"] - sum(sizes.values())
    assert overhead < each * 300  # names of records and values


def test_nothing_of_a_single_node_is_sent_or_kept(monkeypatch, tmp_path):
    drawn, told, draw, pull = [], [], os.urandom, LocalGrid.pull_before

    def drawing(size):
        drawn.append(draw(size))
        return drawn[-1]

    def pulling(self, *rest):
        found = pull(self, *rest)
        told.extend(found)
        return found

    monkeypatch.setattr(os, "urandom", drawing)
    monkeypatch.setattr(LocalGrid, "pull_before", pulling)
    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    dropping(monkeypatch, "train.step", 2, {2})
    local_run(tmp_path, *RUN, "rounds=2", "secure.least=3")
    for reply in told:
        if not reply.has_error():
            for _, metrics in records(content_of(reply), MetricRecord):
                assert {*metrics} == {"num-steps"}
    rows = nodes_of(tmp_path)
    assert all(row["samples"] is row["train_loss"] is None for row in rows["nodes"])
    secrets = [each for each in drawn if len(each) >= 16]
    assert secrets
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in secrets[1:]:
        assert not any(secret in data or secret.hex().encode() in data for data in files)


def test_a_node_refuses_another_model_or_other_settings(sums, monkeypatch, tmp_path, caplog):
    messages = ServerSession.messages

    def other(self, nodes, kind, orders, header, natives):
        made = messages(self, nodes, kind, orders, header, natives)
        if header.number == 2:
            made[1:2] = messages(self, nodes[1:2], kind, {**orders, "lr": 0.0}, header, natives)
        return made

    monkeypatch.setattr(ServerSession, "messages", other)
    local_run(tmp_path, *RUN)
    assert "not those of the round's terms" in caplog.text
    assert sums == [4, 3, 4]


REFUSED = {
    "compression=int8": "give compression=grid",
    "compression.feedback=true": "option feedback: with secure=sum nodes keep no errors",
    "compression.stochastic=false": "option stochastic: with secure=sum nodes keep no errors",
    "compression.reach=0": "reach of grid must be a number of at least 0.01",
    "compression.coder=entropy": "give compression.coder=raw",
    "compression.exact=[0.weight]": "give compression.exact=null",
    "strategy.mean=median": "give strategy.mean=mean",
    "strategy.weighted_by_key=num-examples": "give strategy.weighted_by_key=null",
    "strategy.sender_exponent=0.5": "give strategy.sender_exponent=0",
    "strategy.quorum=0.9": "give strategy.quorum=1",
    "strategy.deadline=5": "give strategy.deadline=null",
    "strategy.follow=differences": "give strategy.follow=steps",
    "screen.refuse=100": "give screen.refuse=null",
    "screen.clip=3": "give screen.clip=null",
    "screen.statistics=5": "give screen.statistics=null",
    "screen.weight=5": "give screen.weight=null",
    "local=scaffold": "local=plain",
    "local=kept_optimizer": "give local=plain",
    "local.autocast=float16": "give local.autocast=bfloat16",
    "strategy.fraction_train=0.2": "larger strategy.fraction_train",
    "secure.least=5": "secure.least=5 nodes are needed",
    "strategy=fedavg ~strategy.update": "secure=sum is for strategy=sparse_averaging",
    "strategy=asynchronous": "secure=sum is for strategy=sparse_averaging",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_needs_single_updates_is_refused_in_one_line(words):
    given = [*RUN, "timeout=100", *words.split()]
    if words.startswith("strategy.follow"):
        given.append("downlink=topk")
    if words.startswith("strategy="):
        given.remove("timeout=100")
    with pytest.raises(ConfigError) as found:
        made(to_config(composed(*given)))
    assert REFUSED[words] in str(found.value)
    assert "\n" not in str(found.value)


def test_who_sealed_a_share_that_does_not_open_is_named(monkeypatch, tmp_path, caplog):
    answer = SecureMod.answer

    def answering(self, message, context):
        reply = answer(self, message, context)
        record = values_of(content_of(reply))[SECURE]
        if context.node_id == 5 and "sealed" in values_of(record):
            values_of(record)["sealed"] = bytes(len(values_of(record)["sealed"]))
        return reply

    monkeypatch.setattr(SecureMod, "answer", answering)
    dropping(monkeypatch, "query.secure_keys", 1, {2})  # so places are no numbers of nodes
    with pytest.raises(PayloadError, match="no update could be used"):
        local_run(tmp_path, *RUN, "rounds=1", "nodes=6")
    for node in (1, 3, 4, 6):
        said = f"node {node} left out: SecureError: a share of node 5 does not open"
        assert said in caplog.text


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_no_answer_of_a_node_ends_a_run(tmp_path_factory, data):
    """One node of five sends any bytes in one of its answers: the others' rounds go on."""
    kind = data.draw(st.sampled_from(["keys", "sealed", "shares"]))
    said = data.draw(st.one_of(st.binary(max_size=400), st.sampled_from([32, 64, 200, 85])))
    record = secure_record

    def hostile(**values):
        if [*values] == [kind] and asked[-1] == 3:
            values[kind] = said if isinstance(said, bytes) else bytes(said)
        return record(**values)

    asked, answer = [], SecureMod.answer

    def answering(self, message, context):
        asked.append(context.node_id)
        return answer(self, message, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureMod, "answer", answering)
        patch.setattr("edgewire.compression.flower.node.secure.secure_record", hostile)
        folder = tmp_path_factory.mktemp("run")
        with suppress(PayloadError):  # said at the end, if no round had a sum
            local_run(folder, *RUN, "rounds=2", "nodes=5", "engine.workers=1")
    assert len(history_of(folder)) == 3
    assert np.isfinite(result_of(folder)["loss"])
