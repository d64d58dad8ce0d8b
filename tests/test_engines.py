"""The same configuration and seed give the same model on every engine."""

import signal

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import ROOT, result_of, told_to_end


@pytest.fixture
def run(command, monkeypatch, left_over):
    """Return a function that runs the command; it returns the weights and the result."""
    monkeypatch.chdir(ROOT)  # Ray looks for the app's modules in the working folder

    def call(*words):
        code, printed, folder = command(*words)
        assert (code, printed.err) == (0, "")
        assert left_over() == []
        assert (folder / "ray.log").exists() == ("engine=ray" in words)
        result = result_of(folder)
        assert result["failures"] == 0
        return load_file(folder / "model.safetensors"), result

    return call


@pytest.mark.system
def test_local_and_ray_give_the_same_weights(run):
    """Weights are equal although Ray moves residuals and replicas between processes."""
    overrides = [
        "compression=topk",
        "compression.quantizer=int8",
        "compression.feedback=true",
        "downlink=f2i",
        "strategy.fraction_train=0.5",
        "partition=dirichlet",
        "optimizer.momentum=0.5",
        "rounds=4",
    ]
    local, here = run(*overrides, "engine=local", "engine.workers=1")
    ray, there = run(*overrides, "engine=ray", "engine.actors=1")
    assert local.keys() == ray.keys()
    for name in local:  # the order of addition may differ, and so may single roundings
        torch.testing.assert_close(local[name], ray[name], rtol=1e-3, atol=1e-3)
    assert here["client_updates"] == there["client_updates"] == 20
    assert here["downlink_bytes"] == pytest.approx(there["downlink_bytes"], rel=0.02)
    assert here["virtual_seconds"] > 0
    assert there["virtual_seconds"] is None


@pytest.mark.system
def test_a_stopped_asynchronous_run_on_ray_can_be_resumed(
    command, monkeypatch, left_over, tmp_path
):
    """On Ray the ServerApp is a thread that gets no signals; a new run resumes its checkpoint."""
    monkeypatch.chdir(ROOT)
    words = ["algorithm=adacomp", "network=ideal", "nodes=4", "strategy.pushes=100000"]
    with told_to_end(tmp_path, rows=3):
        code, printed, folder = command(*words, "eval_every=8", "engine=ray", "engine.actors=1")
    assert code == 128 + signal.SIGTERM
    assert "ends after the round in hand" in printed.out
    result = result_of(folder)
    assert (result["ended"], result["failures"]) == ("interrupted", 0)
    assert result["client_updates"] >= 16
    assert all(w.isfinite().all() for w in load_file(folder / "model.safetensors").values())
    assert (folder / "checkpoint").exists()
    assert not (folder / "stop").exists()
    assert left_over() == []
