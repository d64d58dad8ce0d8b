"""A made run whose history grows, for tests of loggers."""

import json
import time

from edgewire.report.loggers import LoggedRun


def row(number, **more):
    """Return a row of a history."""
    counts = {"uplink_bytes": 100 * number, "client_updates": number, "lr": 0.1}
    found = {"accuracy": number / 10, "loss": 1.0, "top5": None, "virtual_seconds": 2.0 * number}
    return {"round": number, "rounds": 9, **found, **counts, "seconds": number / 100, **more}


def write(folder, rows, mode="a"):
    with (folder / "history.jsonl").open(mode) as file:
        file.writelines(f"{json.dumps(each)}\n" for each in rows)


def finish(folder, rows, **more):
    """Write the rows and the result of a run."""
    write(folder, rows)
    result = {**rows[-1], "best_accuracy": 0.9, "diverged": False, "stopped": None, "seed": 0}
    (folder / "result.json").write_text(json.dumps({**result, **more}))


def made_run(folder, *, resumed=False, **more):
    config = {"lr": 0.1, "model": {"name": "mlp", "file": None}, "packages": ["a", "b"]}
    values = {"name": "run", "group": "sweep", "saved": {}, **more}
    return LoggedRun(folder, config=config, resumed=resumed, began=time.time(), **values)
