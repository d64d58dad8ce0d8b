"""Local algorithms in whole runs: their vectors travel and are counted, their state is stored."""

from itertools import product

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from edgewire.client.node import Node
from edgewire.client.training import LOCAL, Trainer
from edgewire.compression.flower.headers import TrainConfig
from edgewire.compression.flower.node.state import stored_arrays
from edgewire.task.errors import TaskError
from edgewire.task.local import LocalAlgorithm
from edgewire.task.local.scaffold import Scaffold
from tests.local_runs import expect_resumed, local_run
from tests.runs import configured, history_of, model_bytes, result_of

WORDS = ["dataset=digits", "model=mlp", "nodes=3", "rounds=3", "local_steps=4", "eval_every=3"]
ALGORITHMS = {
    "fedprox": ["local=fedprox", "local.mu=0.1"],
    "scaffold": ["local=scaffold"],
    "scaffold, int8": ["local=scaffold", "local.quantizer=int8"],
    "kept": ["local=kept_optimizer", "optimizer=adam", "lr=0.001"],
    "scaffold, float16": ["local=scaffold", "local.autocast=float16"],
    "float16": ["local.autocast=float16", "local.accumulate=2"],
}
STRATEGIES = {
    "flower": ["algorithm=fedavg_f2i_both", "strategy.fraction_train=0.7"],
    "own": ["algorithm=fedavg_topk", "strategy=sparse_averaging", "strategy.update=delta"],
}


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_number_of_workers_changes_no_bit(name, strategy, tmp_path):
    words = [*STRATEGIES[strategy], *WORDS, *ALGORITHMS[name]]
    for workers in (1, 2):
        local_run(tmp_path / str(workers), *words, workers=workers)
    assert result_of(tmp_path / "1")["failures"] == 0
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "2")
    assert history_of(tmp_path / "1") == history_of(tmp_path / "2")


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["scaffold", "kept"])
def test_a_resumed_run_has_the_nodes_states(name, strategy, tmp_path, monkeypatch):
    words = [*STRATEGIES[strategy], *WORDS, *ALGORITHMS[name], "eval_every=1"]
    expect_resumed(monkeypatch, tmp_path, words, row=3)


UNEVEN = ["partition=dirichlet", "partition.alpha=1"]
LOSSY = {
    "lost": ["network.loss=0.3", "timeout=9"],
    "late": ["network=waits", "strategy.quorum=0.5"],
    "refused": ["screen.refuse=1.15"],
}
CODED = {"float32": 1e-5, "float16": 2e-3, "int8": 0.06}  # the largest error of the mean


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("strategy", "case", "quantizer"),
    [("flower", "lost", "float32"), *product(["own"], LOSSY, ["float32"]),
     *product(STRATEGIES, [""], ["float16", "int8"])],
)  # fmt: skip
def test_c_is_the_mean_of_what_the_nodes_have(strategy, case, quantizer, tmp_path, monkeypatch):
    messages, train = {}, Trainer.train

    def noting(self, node, start, orders, natives, state):
        server = natives["local:control"].copy()
        own = stored_arrays(state, LOCAL).get("control", np.zeros_like(server)).copy()
        trained, metrics = train(self, node, start, orders, natives, state)
        there = messages.setdefault(server.tobytes(), (server, {}))[1]
        there[node.index] = own, metrics["num-examples"]
        return trained, metrics

    monkeypatch.setattr(Trainer, "train", noting)
    words = [*STRATEGIES[strategy], *WORDS, "nodes=4", "rounds=12", *LOSSY.get(case, ()), *UNEVEN]
    words += ["strategy.fraction_train=1", "local=scaffold", f"local.quantizer={quantizer}"]
    local_run(tmp_path, *words)
    assert (result_of(tmp_path)["client_updates"] < 4 * 12) == (case in LOSSY)
    rounds = [(server, own.values()) for server, own in messages.values() if len(own) == 4]
    # The server knows all nodes' weights once it has used a report of each.
    rounds = [(server, own) for server, own in rounds if all(c.any() for c, _ in own)]
    assert len(rounds) > 1
    for server, own in rounds:
        expected = np.average([c for c, _ in own], axis=0, weights=[n for _, n in own])
        most = CODED[quantizer] * np.abs(expected).max()
        np.testing.assert_allclose(server, expected, rtol=0, atol=most)


WRONG = {
    "a loss that is no number": ("return [x for x in batches]", "must return the mean loss"),
    "no step": ("return 0.5", "took no step"),
    "a vector less": ("run.vectors.clear(); run.steps = 1; return 0.5", "reports the vectors {}"),
    "a state that is no tensor": (
        "run.state['count'] = 3; run.steps = 1; return 0.5",
        "must be a dense tensor of float16, float32, float64, integers or bools, not 3",
    ),
    "a state of another type": (
        "run.state['half'] = torch.zeros(3).bfloat16(); run.steps = 1; return 0.5",
        "integers or bools, not torch.bfloat16",
    ),
    "a vector that is not finite": (
        "run.vectors['pull'][3] = float('nan'); run.steps = 1; return 0.5",
        r"reports NaN or infinity in run.vectors\['pull'\]",
    ),
    "a parameter's memory": (
        "for p in run.flat.module.parameters(): p.data = p.data - 1\n    run.steps = 1; return 0.5",
        "weight has been replaced: change parameters in place",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_algorithm_is_one_line(name):
    code, said = WRONG[name]
    made = {}
    exec(f"def train(self, run, batches):\n    {code}", {"torch": torch}, made)
    algorithm = type("Mine", (LocalAlgorithm,), {"vectors": ("pull",), "train": made["train"]})
    trainer = Trainer(configured("dataset=digits", "model=mlp", "nodes=3"))
    trainer.local = algorithm()
    start = trainer.flat.state.detach().numpy().copy()
    natives = {"local:pull": np.zeros(trainer.flat.num_parameters, np.float32)}
    with pytest.raises(TaskError, match=said) as caught:
        trainer.train(Node(0, 3), start, TrainConfig(0.1, 1), natives)
    assert "\n" not in str(caught.value)
    trainer.local = LocalAlgorithm()  # the error has left the trainer as it was
    fresh = Trainer(configured("dataset=digits", "model=mlp", "nodes=3"))
    trained, expected = (
        each.train(Node(0, 3), start, TrainConfig(0.1, 2))[0].copy() for each in (trainer, fresh)
    )
    assert np.array_equal(trained, expected)


def test_a_state_is_what_the_algorithm_has_left(monkeypatch):
    class Mine(LocalAlgorithm):
        def end(self, run):
            if "before" in run.state:
                seen.append(run.state.pop("before"))
            else:
                run.state["before"] = run.flat.parameters  # shares the trainer's memory

    trainer, state, seen = Trainer(configured("dataset=digits", "model=mlp")), RecordDict(), []
    trainer.local = Mine()
    start = trainer.flat.state.detach().numpy().copy()
    first, _ = trainer.train(Node(0, 10), start, TrainConfig(0.1, 1), state=state)
    first = first.copy()
    for number in (2, 3):
        trainer.train(Node(0, 10), start, TrainConfig(0.1, number), state=state)
    assert np.array_equal(seen[0].numpy(), first)
    assert len(seen) == 1  # the second message deleted it, and the third stored it anew


def test_vectors_are_counted_and_compressed_if_asked(tmp_path):
    found = {}
    for name in ("fedavg", "scaffold", "scaffold, int8"):
        local_run(tmp_path / name, *STRATEGIES["flower"], *WORDS, *ALGORITHMS.get(name, ()))
        found[name] = result_of(tmp_path / name)
    plain, exact, coded = found.values()
    for way in ("uplink", "downlink"):
        vectors = exact[f"{way}_bytes_float32"] - plain[f"{way}_bytes_float32"]
        assert vectors == pytest.approx(plain[f"{way}_bytes_float32"], rel=0.02)
        sent = [each[f"{way}_bytes"] - plain[f"{way}_bytes"] for each in (exact, coded)]
        assert 3 * sent[1] < sent[0] < vectors


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words",
    [
        *STRATEGIES.values(),
        ["algorithm=fedbuff", "strategy.pushes=40"],
        ["algorithm=fedasync", "strategy.pushes=12", "strategy.proximal_mu=0"],
    ],
    ids=[*STRATEGIES, "buffered", "asynchronous"],
)
def test_every_strategy_averages_the_nodes_vectors(words, tmp_path, monkeypatch):
    received = []

    def begin(self, run):
        received.append(float(run.vectors["control"].mean()))

    def end(self, run):
        run.vectors["control"] = run.vectors["control"] * 0.5 + 1

    monkeypatch.setattr(Scaffold, "begin", begin)
    monkeypatch.setattr(Scaffold, "correct", lambda self, run: None)
    monkeypatch.setattr(Scaffold, "end", end)
    monkeypatch.setattr(Scaffold, "over_all_nodes", False)
    local_run(tmp_path, *words, *[word for word in WORDS if "rounds" not in word], "local=scaffold")
    if words[0] != "algorithm=fedasync":  # there a stale report may replace a newer one
        assert received == sorted(received)  # each report is nearer to 2 than what its node got
    assert (received[0], max(received) < 2) == (0, True)
    assert received[-1] >= 1
