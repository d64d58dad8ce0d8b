"""With one malicious node of ten, no attack ends a run or spoils its model.

`python -m papers.benchmarks.hostile_nodes` runs every attack on every strategy.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from edgewire.compression.batchnorm import COUNT, own_name
from edgewire.conf.network import Network
from edgewire.task.models.parts import MODELS
from tests.hostile import (
    ATTACKS,
    CONTROLS,
    LIES,
    STATISTICS,
    STEPS,
    all_in_turn,
    app_with,
    at_once,
    header,
)
from tests.local_runs import local_run
from tests.runs import history_of, result_of
from tests.zoo import makers

IN_TURN = {
    "fedavg": ["compression=f2i", "downlink=f2i", "local_steps=1"],
    "fedadam": ["strategy=fedadam", "compression=topk", "local_steps=1"],
    "qfedavg": ["strategy=qfedavg", "compression=none", "local_steps=1"],
    "krum": ["strategy=krum", "compression=f2i", "local_steps=1"],
    "esgd": ["algorithm=esgd"],
    "dgc": ["algorithm=dgc"],
    "batchnorm": ["model=four_layers", "compression=f2i", "local_steps=2"],
}
PUSHES = ["strategy.pushes=100", "strategy.record_every=100", "eval_every=100"]
ONE_BY_ONE = ["raises", "no model", "3e38 everywhere", "1e5 everywhere",
              "a flipped byte", "no loss"]  # fmt: skip


def trained(folder, *words, **options):
    """Make a run; return its result and its weights."""
    local_run(folder, "nodes=10", "dataset=digits", *words, network=Network(), **options)
    return result_of(folder), load_file(folder / "model.safetensors")


FEW = [*IN_TURN["fedavg"], "rounds=4"]
SHORT = ["algorithm=esgd", "rounds=30", "eval_every=30"]


BATCHNORM = ["model=four_layers", "rounds=4", "eval_every=4"]
SGD = ["algorithm=sgd", "model=four_layers", "rounds=15", "eval_every=15", "lr=0.05"]
FEDASYNC = ["algorithm=fedasync", "model=four_layers",
            "strategy.pushes=100", "strategy.record_every=100", "eval_every=100"]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words",
    [FEW, SHORT, ["algorithm=adacomp", *PUSHES], [*BATCHNORM, "partition=dirichlet"],
     [*FEDASYNC, "partition=dirichlet"]],
)  # fmt: skip
def test_screening_does_not_change_an_honest_run(words, tmp_path):
    off = ["screen.refuse=null", "screen.weight=null", "screen.statistics=null"]
    (with_it, one), (_, other) = trained(tmp_path, *words), trained(tmp_path / "off", *words, *off)
    assert with_it["failures"] == 0
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())


def expect_unspoiled(folder, result, weights):
    assert result["ended"] == "finished"
    assert not result["diverged"]
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert result["accuracy"] > history_of(folder)[0]["accuracy"] + 0.2


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", IN_TURN)
def test_all_attacks_in_turn_neither_end_a_run_nor_spoil_its_model(strategy, tmp_path):
    rounds = len(ATTACKS) + 5
    words = [*IN_TURN[strategy], f"rounds={rounds}", f"eval_every={rounds}"]
    result, weights = trained(tmp_path, *words, client_app=all_in_turn())
    expect_unspoiled(tmp_path, result, weights)
    assert result["failures"] > len(ATTACKS) / 2


LONE = "screen.statistics=null"  # a robust mean resists without screening too


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "attack"),
    [*[(BATCHNORM, attack) for attack in ("a mean of 5", "a variance of 0", "a variance of 1e6")],
     ([*SGD, "strategy.mean=median", LONE], "a mean of 2"),
     ([*BATCHNORM, "strategy=fedmedian", LONE], "a mean of 5"),
     (FEDASYNC, "a mean of 5")],
    ids=str,
)  # fmt: skip
def test_false_statistics_do_not_spoil_a_model(words, attack, tmp_path, caplog):
    result, weights = trained(tmp_path, *words, client_app=app_with(STATISTICS[attack]))
    expect_unspoiled(tmp_path, result, weights)
    assert result["accuracy"] > 0.6
    assert LONE in words or "its running statistics are" in caplog.text
    # The attack changes only tensors that the server asked for.
    assert "other exact tensors" not in caplog.text


TOPK = ["strategy=sparse_averaging", "strategy.update=delta", "compression=topk", "rounds=12"]
DEADLINE = ["strategy=sparse_averaging", "strategy.update=delta", "strategy.deadline=1",
            "compression=none", "rounds=8"]  # fmt: skip
TURNED = {name: LIES[name] for name in ("turned round, times 90",)}
HASTY = {name: STEPS[name] for name in list(STEPS)[::2]}
SCAFFOLD = ["algorithm=fedavg", "local=scaffold", "rounds=10"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "attacks", "least"),
    [([*TOPK, "strategy.mean=median", "strategy.absent=left_out"], TURNED, 0.75),
     ([*DEADLINE, "screen.clip=1"], HASTY, 0.91),
     ([*DEADLINE, "screen.clip=1", "strategy.weighted_by_key=num-steps"], HASTY, 0.85),
     ([*SCAFFOLD, "screen.clip=1"], CONTROLS, 0.9)],
    ids=["sparse", "deadline", "steps as weights", "scaffold"],
)  # fmt: skip
def test_a_defence_limits_lies_about_all_that_a_node_adds(words, attacks, least, tmp_path):
    found = {}
    for name, attack in attacks.items():
        folder = tmp_path / name
        words = [*words, "eval_every=99"]
        result, _ = trained(folder, *words, client_app=app_with(attack))
        found[name] = result["accuracy"]
        nodes = json.loads((folder / "nodes.json").read_text())["nodes"]
        assert not any("Error" in (each["reason"] or "") for each in nodes), nodes
    assert min(found.values()) > least, found


# The model's statistics are means over all batches so far.
COUNTING = ["model=mlp", "model.name=zoo_cumulative"]


@pytest.mark.few(1)
@pytest.mark.parametrize("attack", ["a counter below 0", "a counter of 2^62"])
@pytest.mark.parametrize(
    "words",
    [["rounds=4", "eval_every=4"], ["algorithm=sgd", "rounds=15", "eval_every=15"],
     ["algorithm=fedasync", *PUSHES]],
    ids=["fedavg", "sgd", "fedasync"],
)  # fmt: skip
def test_false_counters_fail_no_honest_node(words, attack, tmp_path, monkeypatch):
    """A false counter makes no honest node fail, although PyTorch divides by the counter."""
    for name, make in makers().items():
        monkeypatch.setitem(MODELS, name, make)
    honest, _ = trained(tmp_path / "honest", *COUNTING, *words)
    words = [*COUNTING, *words]
    result, weights = trained(tmp_path, *words, client_app=app_with(STATISTICS[attack]))
    expect_unspoiled(tmp_path, result, weights)
    assert result["accuracy"] > honest["accuracy"] - 0.05
    most = 100 * 90  # the most mini-batches of all messages together
    assert all(0 < c <= most for name, c in weights.items() if own_name(name) == COUNT)
    if attack == "a counter below 0":
        assert 0 < result["failures"] <= 15  # the bad node's failures: at most one a round


@pytest.mark.few(2)
@pytest.mark.parametrize("attack", ONE_BY_ONE)
@pytest.mark.parametrize("algorithm", ["adacomp", "fedbuff"])
def test_no_attack_spoils_an_asynchronous_model(algorithm, attack, tmp_path):
    words = [f"algorithm={algorithm}", *PUSHES, "lr=0.3"]
    result, weights = trained(tmp_path, *words, client_app=app_with(ATTACKS[attack]))
    expect_unspoiled(tmp_path, result, weights)
    assert 0 < result["failures"] < 40  # the server asks this node less and less often


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("attack", "bad"),
    [("raises", 0), ("a flipped byte", 1), ("3e38 everywhere", 0), ("3e38 everywhere", 3),
     ("its first reply for ever", 2), ("gradients refused", 3), ("another method's payload", 1)],
)  # fmt: skip
@pytest.mark.parametrize("algorithm", ["synthetic_gradients", "split_backprop"])
def test_a_malicious_node_of_a_cut_model_can_be_replaced(algorithm, attack, bad, tmp_path, caplog):
    words = [f"algorithm={algorithm}", "strategy.segments=4", "rounds=12", "eval_every=12"]
    app = app_with(ATTACKS[attack], bad)
    result, weights = trained(tmp_path, *words, "batch_size=48", client_app=app)
    expect_unspoiled(tmp_path, result, weights)
    if attack == "gradients refused":  # it accuses its neighbour falsely
        assert caplog.text.count("takes over") <= 2
    else:
        assert result["failures"] > 0


@pytest.mark.parametrize("algorithm", ["adacomp", "fedasync"])
def test_a_node_that_replies_at_once_does_not_dominate_the_model(algorithm, tmp_path):
    words = [f"algorithm={algorithm}", *PUSHES, "lr=0.3", "strategy.most=3"]
    result, weights = trained(tmp_path, *words, client_app=app_with(at_once))
    expect_unspoiled(tmp_path, result, weights)


def test_a_log_entry_from_a_node_is_one_short_line(tmp_path, caplog):
    said = {"\x1b[31m": "x\n" * 10**6, "y" * 10**6: 1.0}
    for name, value in said.items():
        attack = header(**{name: value})
        trained(tmp_path, "rounds=2", client_app=app_with(attack))
    lines = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(lines) == 2  # one a run: a node that fails again for the same reason is not logged
    assert all(len(line) < 500 and line.isprintable() for line in lines)
