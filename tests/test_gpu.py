"""Every algorithm on a GPU: no failure, and nearly the model that a CPU trains."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.local_runs import local_run
from tests.runs import ROOT, composed, result_of

ALGORITHMS = sorted(file.stem for file in (ROOT / "conf" / "algorithm").glob("*.yaml"))
WORDS = ["nodes=4", "eval_every=3", "batch_size=16"]
MODULES = ["predicted_gradient", "gradient_of_loss"]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def expect_nearly_equal(folder, *words):
    for device in ("cpu", "cuda"):
        local_run(folder / device, *WORDS, *words, f"device={device}")
        assert result_of(folder / device)["failures"] == 0
    one, two = (load_file(folder / device / "model.safetensors") for device in ("cpu", "cuda"))
    assert set(one) == set(two)
    a, b = (np.concatenate([each[name].ravel() for name in one]) for each in (one, two))
    assert np.linalg.norm(a - b) <= 0.05 * np.linalg.norm(a)


@GPU
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_trains_nearly_the_same_model(algorithm, tmp_path):
    pushes = "pushes" in composed(f"algorithm={algorithm}").strategy
    words = ["strategy.pushes=12"] if pushes else ["rounds=3"]
    expect_nearly_equal(tmp_path, f"algorithm={algorithm}", *words)


@GPU
@pytest.mark.parametrize("module", MODULES)
def test_a_synthetic_gradient_module_trains_nearly_the_same_model(module, tmp_path):
    words = ["algorithm=synthetic_gradients", f"strategy.module={module}", "rounds=12"]
    expect_nearly_equal(tmp_path, *words)


@GPU
@pytest.mark.parametrize("local", ["scaffold", "kept_optimizer", "fedprox"])
def test_a_local_algorithm_trains_nearly_the_same_model(local, tmp_path):
    words = {"kept_optimizer": ["optimizer=adam", "lr=0.001"], "fedprox": ["local.mu=0.01"]}
    expect_nearly_equal(
        tmp_path, "algorithm=fedavg_f2i", f"local={local}", "rounds=3", *words.get(local, [])
    )
