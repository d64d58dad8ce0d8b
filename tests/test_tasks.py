"""Each preset of `task=` trains with every compression method, and learns."""

import math
from itertools import cycle

import pytest
import torch
from safetensors.torch import load_file

from edgewire.conf.build import objective_of
from tests.local_runs import local_run
from tests.runs import anywhere, choices, configured, history_of, model_bytes, result_of

TINY = ["dataset.samples=120", "nodes=2", "batch_size=4"]
SMALLER = {"keywords": ["dataset.seconds=0.25"], "shapes": ["dataset.side=12"]}
COMPRESSIONS = anywhere("compression")
# A table has columns that a command finishes: tests/command/test_from_data.py trains with one.
TASKS = [task for task in choices("task") if task != "table"]


def paired(tasks, others):
    """Return cases of two names; PEFT, which the task `lora` needs, takes seconds to import."""
    return [
        pytest.param(task, other, marks=[pytest.mark.system] * (task == "lora"))
        for task, other in zip(tasks, others, strict=False)
    ]


def words_of(task, *more):
    words = [f"task={task}", *TINY, *more]
    return [*words, *SMALLER.get(configured(*words).dataset.name, [])]


# The other methods see a tensor as a list of numbers: each trains one task.
SHAPED = paired(TASKS, cycle(["lowrank"]))
OTHERS = paired(cycle(TASKS), [name for name in COMPRESSIONS if name != "lowrank"])


@pytest.mark.few(4)
@pytest.mark.parametrize(("task", "method"), SHAPED + OTHERS)
def test_a_task_trains_with_a_compression_method(task, method, tmp_path):
    words = words_of(task, *COMPRESSIONS[method], "rounds=1", "local_steps=1", "eval_every=1")
    words += ["schedule=constant"]  # the first rates of one_cycle are too small for one round
    local_run(tmp_path, *words)
    result, (before, after) = result_of(tmp_path), history_of(tmp_path)
    assert (result["failures"], result["client_updates"]) == (0, 2)
    assert method == "none" or 0 < result["uplink_bytes"] < result["uplink_bytes_float32"]
    assert after["loss"] != before["loss"]
    for name in objective_of(configured(*words)).names:
        assert math.isfinite(after[name])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("task", "algorithm"), paired(TASKS, cycle(["fedavg_f2i_steps", "esgd", "fedasync"]))
)
def test_a_task_runs_with_other_algorithms_and_any_number_of_workers(task, algorithm, tmp_path):
    length = "strategy.pushes=4" if algorithm == "fedasync" else "rounds=4"
    words = words_of(task, f"algorithm={algorithm}", length, "eval_every=4")
    for workers in (1, 2):
        local_run(tmp_path / str(workers), *words, workers=workers)
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "2")
    assert result_of(tmp_path / "1")["failures"] == 0


@pytest.mark.system
@pytest.mark.parametrize("task", TASKS)
def test_a_task_learns(task, tmp_path):
    rounds = 120 if task == "keywords" else 40
    local_run(tmp_path, f"task={task}", "nodes=2", f"rounds={rounds}", f"eval_every={rounds}")
    result, rows = result_of(tmp_path), history_of(tmp_path)
    assert result["loss"] < 0.9 * rows[0]["loss"]


def test_a_task_keeps_what_the_command_line_chooses():
    config = configured("task=keywords", "algorithm=fedavg_topk", "model.width=8", "rounds=7")
    assert config.dataset.name == "keywords"
    assert (config.algorithm, config.rounds, config.local_steps) == ("fedavg_topk", 7, None)
    assert config.model.own["width"] == 8


@pytest.mark.system
def test_lora_adapts_a_trained_base_to_other_text(tmp_path):
    base, own = tmp_path / "base", tmp_path / "adapted"
    more = ["rounds=2", "eval_every=2"]
    local_run(base, *words_of("characters_transformer", *more))
    file = f"model.file={base}/model.safetensors"
    local_run(own, *words_of("lora", *more, file, "dataset.seed=1"))
    before, after = load_file(base / "model.safetensors"), load_file(own / "model.safetensors")
    assert result_of(own)["uplink_bytes_float32"] < result_of(base)["uplink_bytes_float32"]
    assert history_of(own)[0]["loss"] != history_of(base)[0]["loss"]
    assert all(torch.equal(after[name], before[name]) for name in before.keys() & after.keys())
