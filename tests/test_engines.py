"""The same configuration and seed give the same model on every engine."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]


def test_local_and_ray_give_the_same_weights(tmp_path):
    overrides = [
        "algorithm=fedavg_f2i",
        "strategy.fraction_train=0.5",
        "partition=dirichlet",
        "optimizer.momentum=0.5",
        "rounds=2",
    ]
    for engine in ("local", "ray"):
        done = subprocess.run(
            [sys.executable, "run.py", *overrides, f"engine={engine}",
             f"hydra.run.dir={tmp_path / engine}"],
            cwd=ROOT, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    local, ray = (load_file(tmp_path / e / "model.safetensors") for e in ("local", "ray"))
    assert local.keys() == ray.keys()
    for name in local:  # the order of addition may differ, nothing else
        torch.testing.assert_close(local[name], ray[name], rtol=1e-5, atol=1e-6)
    results = [json.loads((tmp_path / e / "result.json").read_text()) for e in ("local", "ray")]
    assert results[0]["client_updates"] == results[1]["client_updates"] == 10
    assert results[0]["downlink_bytes"] == results[1]["downlink_bytes"]
    assert results[0]["virtual_seconds"] > 0
    assert results[1]["virtual_seconds"] is None
