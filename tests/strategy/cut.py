"""Makes short runs of cut models: models that are divided into segments on different nodes."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from conf.load import run_config, to_config
from simulation.job import Job
from simulation.local import run_local
from tests.runs import composed

ROOT = Path(__file__).parents[2]
QUICK = ("algorithm=synthetic_gradients", "rounds=8", "eval_every=4", "batch_size=64")
SPLIT = ("algorithm=split_backprop", "rounds=8", "eval_every=4", "batch_size=64")
AHEAD = (*QUICK, "strategy.schedule=async", "strategy.queue=4", "strategy.segment_every=0")
PIPED = (*SPLIT, "strategy.schedule=pipeline", "strategy.micro_batches=4")


def run(folder, *words, workers=1, app="client.app:app"):
    """Run a cut model on the local engine; return its result, history (no seconds) and weights."""
    made = composed(*words)
    config, values = to_config(made), run_config(made, output=str(folder))
    job = Job(ROOT, values, config.nodes, folder, config.seed, config.network, client_app=app)
    run_local(job, workers=workers)
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"], row["seconds_by_segment"]
    result = json.loads((folder / "result.json").read_text())
    return result, rows, load_file(folder / "model.safetensors")


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
