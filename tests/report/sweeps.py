"""Makes folders like those that sweeps write."""

import json

from edgewire.report.runs import Run

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


ACCURACIES = [0.1, 0.5, 0.9, 0.7, 0.8]


def made(accuracies=ACCURACIES, seed=0, curve=(), **result):
    """Return a run with an evaluation every 10 rounds; a round takes 1 MB up and 3 MB down."""
    rounds = [10.0 * at for at in range(len(accuracies))]
    columns = {
        "round": rounds,
        "accuracy": list(accuracies),
        "uplink_bytes": [1e6 * at for at in rounds],
        "downlink_bytes": [3e6 * at for at in rounds],
        **dict(curve),
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    measured = {
        "seed": seed,
        "accuracy": accuracies[-1],
        "best_accuracy": max(filter(None, accuracies), default=None),
        "evaluations": len(accuracies),
    }
    return Run({"lr": "1"}, RESULT | measured | result, lambda: rows)


def finals(*accuracies):
    """Return runs with the seeds 0, 1, ... and these accuracies at their ends."""
    return [made([accuracy], seed) for seed, accuracy in enumerate(accuracies)]
