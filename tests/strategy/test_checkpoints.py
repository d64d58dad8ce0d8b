"""A stopped run continues from its checkpoint and writes the same files as an uninterrupted one."""

import pytest

from tests.local_runs import expect_resumed
from tests.runs import choices, composed

OURS = {"asynchronous", "sparse_averaging", "split_backprop", "synthetic_gradients"}
SMALL = ["dataset=digits", "batch_size=16", "eval_every=3"]
ROUNDS = ["rounds=8", "nodes=6", "local_steps=2"]
PUSHES = ["strategy.pushes=48", "strategy.record_every=3", "nodes=6", "eval_every=6"]
CUT = ["rounds=10", "network.seconds_per_step=0.04", "batch_size=32"]


@pytest.fixture
def goes_on(monkeypatch, tmp_path):
    """Return a function that asserts that a run resumed halfway ends like an uninterrupted one."""

    def check(words, workers=None):
        row = 8 if any("pushes=" in word for word in words) else 5
        expect_resumed(monkeypatch, tmp_path, words, row, workers)

    return check


def words_of(preset):
    words = [f"algorithm={preset}", *SMALL]
    strategy = composed(*words).strategy
    if "pushes" in strategy:
        delta = ["local_steps=2"] if strategy.update == "delta" else []
        return [*words, *PUSHES, *delta, "network.waiting_seconds=0.1"]
    if "cuts" in strategy:
        return [*words, *CUT]
    short = ROUNDS if strategy.get("update") != "gradient" else ROUNDS[:2]
    return [*words, *short]


@pytest.mark.few(2)
# A resumed run of `fedavg_secure` has new keys, so it has more bytes: tests/strategy/secure.
@pytest.mark.parametrize("preset", sorted({*choices("algorithm")} - {"fedavg_secure"}))
def test_every_preset_resumes_bit_for_bit(goes_on, preset):
    goes_on(words_of(preset))


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", sorted({*choices("strategy")} - OURS))
def test_every_flower_strategy_resumes_bit_for_bit(goes_on, strategy):
    words = ["algorithm=fedavg", f"strategy={strategy}", *SMALL, *ROUNDS, "downlink=f2i"]
    goes_on(words)


HARD = {
    "lost replies, crashes, late ones": [
        "algorithm=cesgd", *SMALL, "rounds=14", "nodes=6", "network=lte", "network.loss=0.2",
        "network.crash=0.05", "network.rejoin_seconds=1", "timeout=0.4", "strategy.quorum=0.75",
    ],
    "memories over a link, drawn nodes": [
        "algorithm=fedavg", "strategy=fedadam", *SMALL, *ROUNDS, "compression=esgd", "downlink=f2i",
        "strategy.fraction_train=0.5", "strategy.fraction_evaluate=1", "dataset.holdout=0.2",
    ],
    "losses over a link": [
        "algorithm=fedavg", *SMALL, *ROUNDS, "compression=dgc", "compression.momentum=0",
        "network=lte", "network.loss=0.2", "timeout=2",
    ],
    "a plateau's rate": ["algorithm=fedavg_topk", *SMALL, *ROUNDS, "schedule=plateau",
                         "schedule.patience=0", "schedule.threshold=0.9"],
    "crashes and joins": [
        "algorithm=adacomp", *SMALL, *PUSHES, "network=classes", "network.crash=0.03",
        "network.rejoin_seconds=2", "network.join_seconds=5",
        "network.loss=0.05", "timeout=30",
    ],
    "momenta": [
        "algorithm=one_bit_adam", *SMALL, "rounds=12", "nodes=6", "network=lte",
        "strategy.optimizer.warmup_steps=2", "network.loss=0.2", "timeout=9",
    ],
    "a deadline": ["algorithm=edgewire", *SMALL, *ROUNDS[:2], "local_epochs=3", "network=mixed",
                   "strategy.deadline=1"],
    "seldom nodes, differences": [
        "algorithm=edgewire", *SMALL, "rounds=8", "nodes=12", "strategy.fraction_train=0.3",
        "strategy.follow=differences",
    ],
    "a limited server": ["algorithm=fedasync", *SMALL, *PUSHES, "local_steps=2", "network=adsl",
                         "network.server_mbps=5"],
    "differences": ["algorithm=adacomp", *SMALL, *PUSHES, "downlink=topk", "downlink.density=0.1"],
    "a pipeline": [
        "algorithm=split_backprop", *SMALL, *CUT, "strategy.schedule=pipeline",
        "strategy.micro_batches=2", "compression=int4", "compression@gradients=int4",
        "strategy.feedback=true", "strategy.segment_every=3",
    ],
}  # fmt: skip


WORKERS = [(2, 2), (2, 1), (1, 3)]  # numbers before and after the stop


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "workers"), list(zip(HARD, WORKERS * 3, strict=False)))
def test_faulty_networks_resume_for_any_number_of_workers(goes_on, name, workers):
    goes_on(HARD[name], workers)
