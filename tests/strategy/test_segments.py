"""A cut model's runs: the same everywhere, counted to the byte, and whole after every fault."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from safetensors.torch import load_file

import client.app
from client import segment as segment_module
from compression import PayloadError, decode_update, make_codec
from compression.flower.arrays import STYPE
from compression.flower.tensors import pack, pack_labels
from conf.load import compose_config, run_config, to_config
from simulation.job import Job
from simulation.local import run_local

EXACT = make_codec()
ROOT = Path(__file__).parents[2]
CODECS = sorted(path.stem for path in (ROOT / "conf" / "compression").glob("*.yaml"))
QUICK = ("algorithm=synthetic_gradients", "rounds=8", "eval_every=4", "batch_size=64")
SPLIT = ("algorithm=split_backprop", "rounds=8", "eval_every=4", "batch_size=64")
AHEAD = (*QUICK, "strategy.schedule=async", "strategy.queue=4", "strategy.segment_every=0")
PIPED = (*SPLIT, "strategy.schedule=pipeline", "strategy.micro_batches=4")


def run(folder, *words, workers=1, app="client.app:app"):
    """Return the result, the history without seconds, and the weights."""
    composed = compose_config(list(words))
    config, values = to_config(composed), run_config(composed, output=str(folder))
    job = Job(ROOT, values, config.nodes, folder, config.seed, config.network, client_app=app)
    run_local(job, workers=workers)
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"], row["seconds_by_segment"]
    result = json.loads((folder / "result.json").read_text())
    return result, rows, load_file(folder / "model.safetensors")


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "words",
    [
        (*QUICK, "strategy.schedule=sequential"),
        QUICK,
        (*QUICK, "strategy.schedule=async", "network=lte", "strategy.queue=3"),
        (*QUICK, "strategy.schedule=async", "network=classes", "strategy.batches_per_message=2"),
        PIPED,
    ],
)
def test_results_do_not_depend_on_the_number_of_workers(tmp_path, words):
    one = run(tmp_path / "1", *words)
    for workers in (2, 3):
        other = run(tmp_path / str(workers), *words, workers=workers)
        assert other[1] == one[1]
        same(other[2], one[2])


@pytest.mark.parametrize("cuts", ["[1]", "[1,2,3]"])
def test_backpropagation_over_cuts_is_that_of_the_whole_model(tmp_path, cuts):
    whole = run(tmp_path / "whole", *SPLIT, "nodes=1")
    cut = run(tmp_path / "cut", *SPLIT, f"strategy.cuts={cuts}")
    same(cut[2], whole[2])
    for mine, its in zip(cut[1], whole[1], strict=True):
        assert (mine["loss"], mine["accuracy"]) == (its["loss"], its["accuracy"])
    alone = run(tmp_path / "many", *SPLIT, "nodes=1", "strategy.batches_per_message=2")
    same(alone[2], whole[2])


def afresh(message, context):
    """Answer as Flower's own processes do: nothing is left of a message but the node's state."""
    segment_module._hosts.clear()
    context.state = pickle.loads(pickle.dumps(plain(context.state)))
    reply = client.app.app(message, context)
    context.state = plain(context.state)
    return reply


def plain(state):
    """Return a state with nothing but what Flower keeps: read-only bytes."""
    copies = {
        name: ArrayRecord({key: Array(array.numpy()) for key, array in record.items()})
        if isinstance(record, ArrayRecord)
        else record
        for name, record in state.items()
    }
    return RecordDict(copies)


@pytest.mark.parametrize(
    "words",
    [
        QUICK,
        SPLIT,
        PIPED,
        (*QUICK, "strategy.feedback=true", "compression=f2i", "compression.feedback=true"),
    ],
)
def test_a_process_for_each_message_comes_to_the_same(tmp_path, words):
    one, other = run(tmp_path / "one", *words), run(tmp_path / "each", *words, app=afresh)
    assert one[1] == other[1]
    same(one[2], other[2])


@pytest.mark.parametrize("words", [QUICK, SPLIT, (*QUICK, "strategy.conditioned=false")])
def test_every_byte_is_counted_for_its_link_and_its_kind(tmp_path, words):
    seen = {"up": [0] * 4, "down": [0] * 4}

    def watching(message, context):
        reply = client.app.app(message, context)
        node = context.node_config["partition-id"]
        for way, content in (("down", message.content), ("up", reply.content)):
            for array in content["arrays"].values():
                seen[way][node] += len(array.data)
        return reply

    result, _, _ = run(tmp_path, *words, app=watching)
    assert result["uplink_bytes_by_segment"] == seen["up"]
    assert result["downlink_bytes_by_segment"] == seen["down"]
    assert result["uplink_bytes"] == sum(seen["up"])
    assert result["downlink_bytes"] == sum(seen["down"])
    kinds = sum(result[f"{k}_bytes"] for k in ("activations", "gradients", "labels", "copies"))
    assert kinds == result["uplink_bytes"] + result["downlink_bytes"]
    # nothing is compressed but the copies
    assert 0.95 < result["uplink_bytes_float32"] / result["uplink_bytes"] < 1.5
    assert 0.95 < result["downlink_bytes_float32"] / result["downlink_bytes"] < 1.5


def test_who_sees_labels_and_images(tmp_path):
    """The images stay with the first node; unconditioned modules see no labels."""
    held = {}

    def watching(message, context):
        held.setdefault(context.node_config["partition-id"], set()).update(
            message.content["arrays"]
        )
        return client.app.app(message, context)

    run(tmp_path / "with", *QUICK, app=watching)
    assert [("labels" in held[node], "input" in held[node]) for node in range(4)] == [
        (False, False),
        *[(True, True)] * 3,
    ]
    held.clear()
    run(tmp_path / "without", *QUICK, "strategy.conditioned=false", app=watching)
    assert ["labels" in held[node] for node in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("name", CODECS)
def test_every_compression_carries_activations_and_gradients(tmp_path, name):
    words = [f"compression={name}", f"compression@gradients={name}", "rounds=4"]
    result, _, _ = run(tmp_path, *QUICK, *words)
    assert result["failures"] == 0
    assert result["client_updates"] == 16
    if name not in ("none", "powersgd"):
        assert result["uplink_bytes"] < result["uplink_bytes_float32"]


def test_crashed_nodes_come_back_and_get_their_segment_again(tmp_path, caplog):
    words = ("network.crash=0.1", "network.rejoin_seconds=3", "timeout=2", "rounds=40")
    result, _, _ = run(tmp_path, *QUICK, *words, "eval_every=8")
    assert result["failures"] > 0
    assert result["round"] == 40
    assert result["client_updates"] == 160
    assert result["accuracy"] > 0.7
    again = run(tmp_path / "again", *QUICK, *words, "eval_every=8", workers=2)
    assert {k: v for k, v in again[0].items() if "seconds" not in k} == {
        k: v for k, v in result.items() if "seconds" not in k
    }


@pytest.mark.parametrize(("words", "crash"), [(QUICK, 0.08), (SPLIT, 0.08), (PIPED, 0.02)])
def test_a_spare_node_takes_over(tmp_path, caplog, words, crash):
    result, _, _ = run(
        tmp_path,
        *words,
        "nodes=20",
        "strategy.segments=4",
        f"network.crash={crash}",
        "timeout=5",
        "rounds=16",
    )
    assert "takes over" in caplog.text
    assert result["round"] == 16


def test_without_another_node_the_run_ends_and_keeps_what_it_has(tmp_path):
    with pytest.raises(PayloadError, match="waits for a node"):
        run(tmp_path, *QUICK, "network.crash=0.2", "timeout=5", "rounds=40")
    result = json.loads((tmp_path / "result.json").read_text())
    assert "waits for a node" in result["stopped"]
    assert load_file(tmp_path / "model.safetensors")


def spoiling(change, node=1, times=(3, 4)):
    """Return an app of which one node's answers, of these numbers, are changed."""
    count = {}

    def app(message, context):
        reply = client.app.app(message, context)
        here = context.node_config["partition-id"]
        count[here] = count.get(here, 0) + 1
        if here == node and count[here] in times:
            change(reply)
        return reply

    return app


def replaced(name, change):
    def spoil(reply):
        record = dict(reply.content["arrays"])
        if name in record:
            data = change(record[name].data)
            record[name] = Array("uint8", (len(data),), STYPE, data)
        reply.content["arrays"] = ArrayRecord(record)

    return spoil


def missing(reply):
    reply.content["arrays"] = ArrayRecord()


@pytest.mark.parametrize(
    "change",
    [
        replaced("output", lambda data: data[:-1]),
        replaced(
            "output", lambda data: data[: len(data) // 2] + b"\1" + data[len(data) // 2 + 1 :]
        ),
        replaced("gradients", lambda data: b""),
        replaced("output", lambda data: pack_labels(torch.ones(3).numpy(), 10)),
        missing,
        lambda reply: reply.content.pop("metrics"),
    ],
)
@pytest.mark.parametrize("words", [QUICK, SPLIT])
def test_an_answer_that_cannot_be_used_costs_its_mini_batch(tmp_path, change, words):
    result, rows, _ = run(tmp_path, *words, app=spoiling(change))
    assert result["failures"] >= 1
    assert result["round"] == 8
    assert rows[-1]["loss"] < rows[0]["loss"]


def measured(**changes):
    def spoil(reply):
        reply.content["metrics"] = MetricRecord({**reply.content["metrics"], **changes})

    return spoil


@pytest.mark.parametrize("samples", [1e13, -64, 0, 65, 3.5, float("nan")])
@pytest.mark.parametrize("words", [QUICK, SPLIT])
def test_an_absurd_number_of_samples_costs_a_mini_batch_and_no_memory(tmp_path, samples, words):
    app = spoiling(measured(**{"num-examples": float(samples)}), node=0)
    result, _, _ = run(tmp_path, *words, app=app)
    assert result["failures"] >= 1
    assert result["round"] == 8


def test_nobody_but_the_first_node_says_what_the_labels_are(tmp_path):
    def forge(reply):
        record = dict(reply.content["arrays"])
        data = pack_labels(np.zeros((1, 64)), 10)
        record["labels"] = Array("uint8", (len(data),), STYPE, data)
        reply.content["arrays"] = ArrayRecord(record)

    plain = run(tmp_path / "1", *QUICK)
    forged = run(tmp_path / "2", *QUICK, app=spoiling(forge, times=range(20)))
    same(forged[2], plain[2])


@pytest.mark.parametrize("size", [1e25, 1e18, 1e12])
@pytest.mark.parametrize("what", ["gradients", "output"])
def test_huge_values_leave_a_segment_that_can_be_copied(tmp_path, size, what):
    """A module's moments would be infinite, and no later copy of it could be sent."""

    def blow(data):
        update = decode_update(data)
        return pack([update.values.reshape(update.layout.shapes[0]) * 0 + np.float32(size)], EXACT)

    words = (*QUICK, "strategy.segment_every=2", "rounds=12", "model=four_layers_plain")
    node = 2 if what == "gradients" else 1
    result, _, _ = run(tmp_path, *words, app=spoiling(replaced(what, blow), node=node))
    assert result["failures"] <= 4
    assert result["client_updates"] >= 44


def test_with_gpipe_all_skip_a_mini_batch_that_is_lost(tmp_path):
    """Nobody adds to gradients of the mini-batch before it, nor steps along a part."""
    seen = []

    def app(message, context):
        config = message.content["config"]
        task = (config["segment"], config["phase"], config["batch"], config["micro"])
        if task == (1, "forward", 2, 0):
            raise PayloadError("lost")
        seen.append(task)
        return client.app.app(message, context)

    result, _, _ = run(tmp_path, *PIPED, "eval_every=2", app=app)
    assert result["failures"] == 1
    assert not [task for task in seen if task[2] == 2 and task[0] > 1]
    assert not [task for task in seen if task[2] == 2 and task[1] == "backward"]
    assert result["round"] == 8


def test_with_messages_ahead_a_copy_is_of_its_very_mini_batch(tmp_path):
    often = run(tmp_path / "1", *AHEAD, "eval_every=1")[1]
    seldom = run(tmp_path / "4", *AHEAD, "eval_every=4")[1]
    losses = {row["round"]: row["loss"] for row in often}
    assert [losses[row["round"]] for row in seldom] == [row["loss"] for row in seldom]


@pytest.mark.parametrize("words", [QUICK, SPLIT, (*QUICK, "strategy.schedule=async")])
def test_a_copy_is_asked_for_once(tmp_path, words):
    came = []

    def app(message, context):
        reply = client.app.app(message, context)
        came.extend(["copy"] * ("copy" in reply.content["arrays"]))
        return reply

    more = ("strategy.queue=4",) if "async" in words[-1] else ()
    result, rows, _ = run(tmp_path, *words, *more, "rounds=20", "strategy.segment_every=0", app=app)
    assert len(came) == 4 * (len(rows) - 1) == 20
    assert result["failures"] == 0


def test_a_late_node_keeps_its_segment(tmp_path):
    """An answer that is lost costs a step or two, not all since the last copy."""
    handed = []

    def app(message, context):
        if "copy" in message.content["arrays"]:
            handed.append(context.node_config["partition-id"])
        return client.app.app(message, context)

    words = ("network.loss=0.05", "timeout=3", "rounds=30")
    result, _, _ = run(tmp_path, *QUICK, *words, app=app)
    assert result["failures"] > 0
    assert handed == [0, 1, 2, 3]


def test_a_node_that_always_fails_ends_the_run_by_its_reason(tmp_path):
    def app(message, context):
        if context.node_config["partition-id"] == 2:
            raise RuntimeError("out of coffee")
        return client.app.app(message, context)

    with pytest.raises(PayloadError, match=r"segment 2 has failed 20 times in a row.*coffee"):
        run(tmp_path, *QUICK, app=app)


@pytest.mark.parametrize("shape", [(64, 7), (63, 128), (64, 2, 64)])
def test_activations_of_a_wrong_shape_get_one_clear_error(tmp_path, shape):
    """The node says so, keeps its segment, and goes on with the next mini-batch."""
    said = []
    wrong = pack([np.ones(shape, np.float32)], EXACT)
    count = 0

    def app(message, context):
        nonlocal count
        arrays = message.content["arrays"]
        if context.node_config["partition-id"] == 2:
            count += 1
            if count == 4:
                before = {k: a.numpy() for k, a in context.state["segment"].items()}
                spoiled = {**arrays, "input": Array("uint8", (len(wrong),), STYPE, wrong)}
                content = RecordDict({**message.content, "arrays": ArrayRecord(spoiled)})
                with pytest.raises(PayloadError, match="activations of mini-batch 3") as error:
                    client.app.app(Message(content=content, metadata=message.metadata), context)
                said.append(str(error.value))
                after = context.state["segment"]
                for key in before:
                    if not key.startswith("module"):
                        np.testing.assert_array_equal(before[key], after[key].numpy())
        return client.app.app(message, context)

    run(tmp_path, *QUICK, app=app)
    assert len(said) == 1
    assert "\n" not in said[0]


def test_a_run_that_diverges_says_so(tmp_path):
    with pytest.raises(PayloadError, match="diverged"):
        run(tmp_path, *QUICK, "lr=1e30", "model=four_layers_plain", "rounds=60")
    assert json.loads((tmp_path / "result.json").read_text())["diverged"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy.cuts=[2,9]"], "numbers of layers from 1 to 3"),
        (["strategy.cuts=two"], "must be auto or a list"),
        (["strategy.cuts=[1,2]", "nodes=2"], "3 segments need as many nodes"),
        (["strategy.segments=9", "nodes=9"], "4 layers cannot be cut into 9"),
        (["strategy.memory_mb=0.01", "strategy.segments=2"], "no cut into 2 segments fits"),
        (["strategy.memory_mb=[1]"], "memory_mb must be"),
        (["strategy.schedule=fast"], "schedule must be one of"),
        (["strategy.batches_per_message=3"], "must be a multiple of"),
        (["strategy.micro_batches=2"], "micro_batches goes with"),
        (["downlink=f2i"], "downlink=full"),
        (["model=resnet18"], "must be an nn.Sequential"),
        (["partition=dirichlet"], "the first node holds all"),
        (["batch_size=1"], "2 samples or more"),
        (["strategy.segments=0"], "segments must be at least 1"),
        (["engine.memory_mb=1"], "is less than Python, torch and data take"),
        (["compression@gradients=topk", "gradients.density=2"], "density"),
    ],
)
def test_mistakes_are_one_line(command, words, said):
    code, printed, _ = command(*QUICK, "engine.workers=1", *words)
    assert code == 2
    assert said in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err
