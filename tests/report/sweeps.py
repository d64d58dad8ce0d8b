"""Makes folders like those that sweeps write."""

import json

RESULT = {
    "accuracy": 0.98,
    "best_accuracy": 0.99,
    "loss": 0.1,
    "uplink_bytes": 1_000_000,
    "downlink_bytes": 4_000_000,
    "uplink_bytes_float32": 4_000_000,
    "downlink_bytes_float32": 4_000_000,
    "client_updates": 50,
    "failures": 0,
    "seconds": 12.0,
    "seed": 0,
}


def add_job(folder, overrides, history=(), finished=True, **result):
    """Write the files of a job; its seed is taken from its overrides `overrides`."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(json.dumps(overrides.split()))
    seeds = [int(word[5:]) for word in overrides.split() if word.startswith("seed=")]
    if finished:
        full = RESULT | {"seed": seeds[0] if seeds else 0} | result
        (folder / "result.json").write_text(json.dumps(full))
    lines = [json.dumps(row) + "\n" for row in history]
    (folder / "history.jsonl").write_text("".join(lines))
