"""A stopped run continues from its checkpoint and writes the same files as an uninterrupted one."""

import math
import shutil

import pytest

from strategy.run import checkpoint_file
from tests.local_runs import at_row, local_run, raising
from tests.runs import REAL, choices, composed, history_of, model_bytes, result_of

OURS = {"asynchronous", "sparse_averaging", "split_backprop", "synthetic_gradients"}
SMALL = ["dataset=digits", "batch_size=16", "eval_every=3"]
ROUNDS = ["rounds=8", "nodes=6", "local_steps=2"]
PUSHES = ["strategy.pushes=48", "strategy.record_every=3", "nodes=6", "eval_every=6"]
CUT = ["rounds=10", "network.seconds_per_step=0.04", "batch_size=32"]


class Stopped(Exception):
    """Raised to end a run suddenly."""


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Write every checkpoint that is due, however long the writing takes."""
    monkeypatch.setattr(checkpoint_file, "SHARE", math.inf)


def left(folder):
    """Return the contents of a run's files, without values in real seconds."""
    result = {key: value for key, value in result_of(folder).items() if key not in REAL}
    return history_of(folder), result, model_bytes(folder)


def goes_on(monkeypatch, tmp_path, words, workers=None):
    """Assert that a run resumed halfway leaves the same files as an uninterrupted run.

    `workers` holds the numbers of workers before and after the stop. If it is None, no run is
    stopped: a copy of the first run's folder is used in place of the files of a killed run.
    """
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    row = 8 if any("pushes=" in word for word in words) else 5
    if workers is None:
        at_row(monkeypatch, row, lambda: shutil.copytree(whole, stopped))
        local_run(whole, *words)
        assert not (stopped / "result.json").exists()
    else:
        local_run(whole, *words)
        at_row(monkeypatch, row, raising(Stopped))
        with pytest.raises(Stopped):
            local_run(stopped, *words, workers=workers[0])
    assert (stopped / checkpoint_file.FILE).exists()
    local_run(stopped, *words, workers=workers[1] if workers else 1, resume=True)
    assert left(stopped) == left(whole)
    assert not (stopped / checkpoint_file.FILE).exists()


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


@pytest.mark.few(7)
@pytest.mark.parametrize("preset", choices("algorithm"))
def test_every_preset_resumes_bit_for_bit(monkeypatch, tmp_path, preset):
    goes_on(monkeypatch, tmp_path, words_of(preset))


@pytest.mark.few(3)
@pytest.mark.parametrize("strategy", sorted({*choices("strategy")} - OURS))
def test_every_flower_strategy_resumes_bit_for_bit(monkeypatch, tmp_path, strategy):
    words = ["algorithm=fedavg", f"strategy={strategy}", *SMALL, *ROUNDS, "downlink=f2i"]
    goes_on(monkeypatch, tmp_path, words)


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
        "algorithm=fedavg", *SMALL, *ROUNDS, "compression=dgc", "network=lte", "network.loss=0.2",
        "timeout=2",
    ],
    "a plateau's rate": ["algorithm=fedavg_topk", *SMALL, *ROUNDS, "schedule=plateau",
                         "schedule.patience=0", "schedule.threshold=0.9"],
    "crashes and joins": [
        "algorithm=adacomp", *SMALL, *PUSHES, "network=classes", "network.crash=0.03",
        "network.rejoin_seconds=2", "network.join_seconds=5",
        "network.loss=0.05", "timeout=30",
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


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "workers"), list(zip(HARD, WORKERS * 3, strict=False)))
def test_faulty_networks_resume_for_any_number_of_workers(monkeypatch, tmp_path, name, workers):
    goes_on(monkeypatch, tmp_path, HARD[name], workers)
