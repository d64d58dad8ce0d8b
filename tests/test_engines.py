"""The same configuration and seed give the same model on every engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]


def run(folders, *overrides):
    """Run once for each folder, at the same time, with what is its own; return the weights."""
    processes = [
        subprocess.Popen(
            [sys.executable, "run.py", *overrides, own, f"hydra.run.dir={folder}"],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for folder, own in folders.items()
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return [load_file(folder / "model.safetensors") for folder in folders]


def test_memories_and_replicas_do_not_care_who_serves_their_node(tmp_path):
    overrides = ["compression=esgd", "downlink=f2i", "strategy.fraction_train=0.5", "rounds=6"]
    one, two = run({tmp_path / w: f"engine.workers={w}" for w in ("1", "2")}, *overrides)
    for name in one:
        assert torch.equal(one[name], two[name])
    history = (tmp_path / "2" / "history.jsonl").read_text().splitlines()
    assert json.loads(history[-1])["failures"] == 0


def test_local_and_ray_give_the_same_weights(tmp_path):
    """With memories of nodes and replicas, which Ray moves between processes."""
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
    local, ray = run({tmp_path / e: f"engine={e}" for e in ("local", "ray")}, *overrides)
    assert local.keys() == ray.keys()
    for name in local:  # the order of addition may differ, and with it a rounding here and there
        torch.testing.assert_close(local[name], ray[name], rtol=1e-3, atol=1e-3)
    results = [json.loads((tmp_path / e / "result.json").read_text()) for e in ("local", "ray")]
    assert results[0]["client_updates"] == results[1]["client_updates"] == 20
    assert results[0]["failures"] == results[1]["failures"] == 0
    assert results[0]["downlink_bytes"] == pytest.approx(results[1]["downlink_bytes"], rel=0.02)
    assert results[0]["virtual_seconds"] > 0
    assert results[1]["virtual_seconds"] is None


def test_the_asynchronous_server_on_ray(tmp_path):
    words = ["algorithm=adacomp", "network=ideal", "nodes=4", "strategy.pushes=16", "eval_every=8"]
    run({tmp_path / "ray": "engine=ray"}, *words, "engine.actors=1")
    result = json.loads((tmp_path / "ray" / "result.json").read_text())
    assert result["client_updates"] == 16
    assert result["failures"] == 0


def test_steps_are_the_same_on_ray_and_for_any_number_of_workers(tmp_path):
    """Replicas, memories and index sets that stay, moved between processes or not."""
    own = {"1": "engine.workers=1", "2": "engine.workers=2", "ray": "engine=ray"}
    overrides = ["algorithm=esgd", "strategy/optimizer=momentum", "lr=0.01", "nodes=3", "rounds=9"]
    overrides += ["strategy.fraction_train=0.67", "strategy.verify_every=4"]
    models = run({tmp_path / name: word for name, word in own.items()}, *overrides)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in own]
    for model, result in zip(models, results, strict=True):
        for name, tensor in models[0].items():
            assert torch.equal(model[name], tensor)
        assert result["failures"] == 0
        for key in ("client_updates", "uplink_bytes", "downlink_bytes"):
            assert result[key] == results[0][key]
