"""Trains each preset of `task=` with float32, int8 and top-k updates, at searched learning rates.

    python -m papers.benchmarks.presets [TASK ...]     # JSON on stdout; two hours for all tasks

`--methods` chooses among `METHODS`. `--rates FILE` takes the learning rates from an earlier output
in place of the search. `coded` is float32 with lossless coding. It trains the same model as
float32, so it gets the rate of float32. The adapters of `task=lora` adapt the weights of a run of
`task=characters_transformer` (seed 0), which is made first.

For each task and method, the learning rate is searched on a fifth of the training set
(`dataset.validate`), in factors of 2 around the model's own: the best rate has a worse one on both
sides. The search has three seeds, and one for the tasks in `LONG`. Rates are compared by the loss,
which is less noisy than an accuracy, and which anomaly detection can compute without anomalies.
The runs that are reported train on the whole training set, with the seeds in `SEEDS`, and are
evaluated on the test set after their last round. If one of them diverges, the rate is halved. All
other options are equal for all methods of a task.

Finished runs are stored in a file (`--runs`), so an interrupted benchmark continues. Remove the
file after a change of a preset. `python -m papers.make.measured presets presets` stores the output
for papers/results/presets.md.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from edgewire.compression.base import PayloadError
from edgewire.conf.build import objective_of
from edgewire.conf.classes import HERE
from edgewire.conf.load import compose_config, run_config, to_config
from edgewire.machine.job import Job
from edgewire.report.runs import read_result
from edgewire.simulation.local import run_local
from edgewire.task.metric import LOSS, Metric
from edgewire.task.process import configure_process

ROOT = HERE.parent
RUNS = ROOT / "outputs" / "presets.json"
METHODS = {
    "float32": ("compression=none", "downlink=full"),
    "coded": ("compression=none", "compression.coder=entropy", "downlink=full"),
    "f2i": ("compression=f2i",),
    "topk": ("compression=topk",),
    "int4": ("compression=int4",),
}
USUAL = ("float32", "f2i", "topk")
SAME = {"coded": "float32"}  # the method whose learning rate another method gets
BASES = {"lora": "characters_transformer"}  # the preset that trains the base of another one
SEEDS = (0, 1, 2)
LONG = ("characters_transformer", "keywords", "lora")  # tasks that are searched with one seed
VALIDATE = "dataset.validate=0.2"
STEP = 2.0  # the factor between two learning rates
MOST = {True: 0.005, False: 0.01}  # the loss of a share, or of another metric, that is allowed
AVERAGED = ("loss", "uplink_ratio", "downlink_ratio", "seconds")
Run = dict[str, Any]
Rates = dict[str, dict[str, Run]]  # an earlier output: task, method, values


class Runs:
    """The finished runs by their command, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, Run] = json.loads(path.read_text()) if path.exists() else {}

    def run(self, *words: str) -> Run:
        """Return the result of a run, from the file if it has been made before."""
        key = " ".join(words)
        if key not in self.done:
            with tempfile.TemporaryDirectory() as folder:
                self.done[key] = made(Path(folder), *words)
            print(f"{key}: {self.done[key]['value']}", file=sys.stderr, flush=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.done, indent=1) + "\n")
        return self.done[key]

    def base(self, task: str) -> tuple[str, ...]:
        """Return the options for the weights that a task adapts, from a run made when missing."""
        if task not in BASES:
            return ()
        folder = self.path.parent.absolute() / BASES[task]
        file = folder / "model.safetensors"
        if not file.exists() and made(folder, f"task={BASES[task]}")["value"] is None:
            raise SystemExit(f"the base of task={task} has diverged: lower its learning rate")
        return (f"model.file={file}",)

    def seeds(self, seeds: tuple[int, ...], *words: str) -> list[Run]:
        """Return the results of runs that differ in their seed."""
        return [self.run(*words, f"seed={seed}") for seed in seeds]


def made(folder: Path, *words: str) -> Run:
    """Make a run in this process, stored in `folder`; return its last evaluation and its bytes.

    The value of a run that has diverged is None.
    """
    composed = compose_config(list(words))
    config = to_config(composed)
    metric = objective_of(config).main
    values = {**run_config(composed, str(folder)), "resume": False}
    job = Job(ROOT, values, config.nodes, folder, seed=config.seed)
    try:
        run_local(job, workers=1)
    except PayloadError:  # no update could be used
        return {"metric": metric._asdict(), "value": None}
    result = read_result(folder)
    return {
        "metric": metric._asdict(),
        "value": None if result["diverged"] else result[metric.name],
        "loss": result["loss"],
        "failures": result["failures"],
        "uplink_ratio": round(result["uplink_ratio"], 2),
        "downlink_ratio": round(result["downlink_ratio"], 2),
        "parameters": result["parameters"],
        "seconds": round(result["seconds"], 1),
    }


def by_loss(run: Run) -> Run:
    """Return a run whose metric is its loss."""
    value = None if run["value"] is None else run["loss"]
    return {**run, "metric": LOSS._asdict(), "value": value}


def judged(runs: list[Run]) -> list[Run]:
    """Return runs by what is compared: the main metric if it is a share, else the loss."""
    return runs if runs[0]["metric"]["share"] else [by_loss(run) for run in runs]


def losses(runs: list[Run], others: list[Run]) -> list[float]:
    """Return for each seed by how much a run is worse than another run.

    For a share this is the difference. For another metric it is the difference divided by the other
    run's value. A run that has diverged loses infinitely much.
    """
    found = []
    for run, other in zip(runs, others, strict=True):
        metric = Metric(**run["metric"])
        if run["value"] is None or other["value"] is None:
            found.append(inf if run["value"] is None else -inf)
            continue
        worse = (other["value"] - run["value"]) * (1 if metric.higher else -1)
        found.append(worse if metric.share else worse / abs(other["value"]))
    return found


def searched(runs: Runs, task: str, method: str, rates: Rates) -> float:
    """Return the best learning rate on the validation set, in steps of `STEP` from the model's.

    A rate in `rates` is not searched again.
    """
    method = SAME.get(method, method)
    if rate := rates.get(task, {}).get(method, {}).get("lr"):
        return float(rate)
    start = float(to_config(compose_config([f"task={task}"])).lr)

    def at(step: int) -> list[Run]:
        words = (
            f"task={task}",
            *runs.base(task),
            *METHODS[method],
            f"lr={start * STEP**step:g}",
            VALIDATE,
        )
        return [by_loss(run) for run in runs.seeds(SEEDS[:1] if task in LONG else SEEDS, *words)]

    best = 0
    for way in (1, -1):
        while mean(losses(at(best + way), at(best))) < 0:
            best += way
    return start * STEP**best


def measured(
    runs: Runs, task: str, methods: Sequence[str], rates: Rates | None = None
) -> dict[str, Run]:
    """Return each method's learning rate, values and losses; the first method is the baseline."""
    rows: dict[str, Run] = {}
    baseline: list[Run] = []
    for method in methods:
        lr = searched(runs, task, method, rates or {})
        words = (f"task={task}", *runs.base(task), *METHODS[method])
        while any(run["value"] is None for run in found_at(runs, lr, *words)):
            lr /= STEP
        found = found_at(runs, lr, *words)
        baseline = baseline or found
        metric = Metric(**found[0]["metric"])
        lost = losses(judged(found), judged(baseline))
        rows[method] = {
            "lr": f"{lr:g}",
            "metric": metric.name,
            "seeds": [run["value"] for run in found],
            "mean": metric.text(mean(run["value"] for run in found)),
            "lost": shown(mean(lost), metric),
            "worst": shown(max(lost), metric),
            "met": mean(lost) <= MOST[metric.share],
            "met_by_each_seed": max(lost) <= MOST[metric.share],
            "failures": sum(run.get("failures", 0) for run in found),
            "parameters": found[0].get("parameters"),
            **{key: averaged(found, key) for key in AVERAGED},
        }
    return rows


def averaged(runs: list[Run], key: str) -> float | None:
    """Return a value's mean over the runs that have it; a run that could not go on has none."""
    values = [run[key] for run in runs if key in run]
    return mean(values) if values else None


def found_at(runs: Runs, lr: float, *words: str) -> list[Run]:
    """Return the results of `SEEDS` at a learning rate, up to the first one that has diverged."""
    found: list[Run] = []
    for seed in SEEDS:
        found.append(runs.run(*words, f"lr={lr:g}", f"seed={seed}"))
        if found[-1]["value"] is None:
            break
    return found


def shown(lost: float, metric: Metric) -> str:
    """Return a loss as text: in points for a share, in percent for another metric."""
    return f"{round(100 * lost, 2) + 0.0:.2f} {'points' if metric.share else '%'}"


def main() -> None:
    """Measure the tasks that the command line names, or all, and print them as JSON."""
    tasks = sorted(path.stem for path in (HERE / "task").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(tasks)}")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=USUAL)
    parser.add_argument("--rates", type=Path, help="papers/runs/benchmarks/presets.json, say")
    parser.add_argument("--runs", type=Path, default=RUNS, help="the file of finished runs")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.tasks if name not in tasks]:
        parser.error(f"no task named {unknown[0]}: choose of {', '.join(tasks)}")
    configure_process()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = Runs(arguments.runs)
    rates: Rates = json.loads(arguments.rates.read_text())["result"] if arguments.rates else {}
    found = {
        task: measured(runs, task, arguments.methods, rates) for task in arguments.tasks or tasks
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
