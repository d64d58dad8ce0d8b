"""One bad node of ten: no attack ends a run or spoils its model. Every attack, on some strategy.

The whole matrix, with accuracies, is `python -m benchmarks.hostile_nodes`.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conf.load import compose_config, run_config
from simulation.job import Job
from simulation.local import run_local
from tests.hostile import ATTACKS, app_with

ROOT = Path(__file__).parents[1]
STRATEGIES = {
    "fedavg": ["compression=f2i", "rounds=4"],
    "esgd": ["algorithm=esgd", "rounds=30", "eval_every=30"],
    "fedadam": ["strategy=fedadam", "compression=topk", "rounds=4"],
    "adacomp": ["algorithm=adacomp", "strategy.pushes=150", "strategy.record_every=150",
                "eval_every=150"],
    "qfedavg": ["strategy=qfedavg", "compression=none", "rounds=4"],
    "dgc": ["algorithm=dgc", "rounds=25", "eval_every=25"],
    "krum": ["strategy=krum", "compression=f2i", "rounds=4"],
    "fedbuff": ["algorithm=fedbuff", "strategy.pushes=60", "strategy.record_every=60",
                "eval_every=60"],
}  # fmt: skip
NAMES = list(STRATEGIES)
CASES = [(attack, NAMES[number % len(NAMES)]) for number, attack in enumerate(ATTACKS)]


def trained(folder, *words, **options):
    """Run; return the result and the weights."""
    values = run_config(compose_config(["nodes=10", "dataset=digits", *words]), str(folder))
    run_local(Job(ROOT, values, 10, folder, **options), workers=1)
    result = json.loads((folder / "result.json").read_text())
    return result, load_file(folder / "model.safetensors")


@pytest.mark.parametrize("strategy", ["fedavg", "esgd", "adacomp", "fedbuff"])
def test_honest_runs_are_the_same_with_screening_or_without(strategy, tmp_path):
    off = ["screen.refuse=null", "screen.weight=null"]
    (tmp_path / "off").mkdir()
    words = STRATEGIES[strategy]
    (with_it, one), (_, other) = trained(tmp_path, *words), trained(tmp_path / "off", *words, *off)
    assert with_it["failures"] == 0
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())


@pytest.mark.parametrize(("attack", "strategy"), CASES)
def test_no_attack_ends_a_run_or_spoils_its_model(attack, strategy, tmp_path):
    app = app_with(ATTACKS[attack])
    result, weights = trained(tmp_path, *STRATEGIES[strategy], client_app=app)
    assert result["ended"] == "finished"
    assert not result["diverged"]
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    first = json.loads((tmp_path / "history.jsonl").read_text().splitlines()[0])
    assert result["accuracy"] > first["accuracy"] + 0.05
