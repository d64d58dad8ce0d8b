"""Compares the adviser's choice with the best of all settings, on six links and three tasks.

    python -m papers.benchmarks.advice     # JSON on stdout; about ten minutes on one core

The runs are those of `experiment=advise`. For each seed the advice comes from the runs with the
other seeds, and the time of the advised settings is that of their run with this seed. The mean of
these times over the seeds is compared with the smallest mean of any settings.

The bytes and the accuracy of synchronous settings do not depend on the link, so their time is
computed from the stored run. Some of these times are compared with real runs on the virtual clock
(`checked_runs`). Asynchronous settings are run on each link, if their estimated time is at most
`NEAR` times the best one. `python -m papers.make.measured advice advice` stores the output for
docs/which-method.md.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from edgewire.conf.classes import HERE
from edgewire.conf.load import compose_config, run_config, to_config
from edgewire.conf.network import Network
from edgewire.machine.job import Job
from edgewire.report.advise.candidates import Measured
from edgewire.report.advise.page import LINKS, SHARES, TASKS, task_runs
from edgewire.report.advise.ranking import Goal, default_goal, rank, reached
from edgewire.report.learning_curve import first_at
from edgewire.report.link_time import link_seconds, parse_link
from edgewire.report.runs import Row, read_history
from edgewire.simulation.local import run_local
from edgewire.task.process import configure_process

ROOT = HERE.parent
TOLERANCE = 0.1
NEAR = 1.5
CHECKED = 2  # synchronous runs on each link, whose computed time is compared with a real one


def on_link(run: Measured, link: str) -> list[Row]:
    """Make a run with the settings and the seed of another one on a link; return its history."""
    words = [f"{key}={value}" for key, value in run.overrides.items()]
    words = [word for word in words if not word.startswith(("network", "engine"))]
    with tempfile.TemporaryDirectory() as folder:
        composed = compose_config([*words, f"seed={run.run.seed}", f"network={link}"])
        config = to_config(composed)
        values = {**run_config(composed, folder), "resume": False}
        network = Network(**vars(config.network))
        job = Job(ROOT, values, config.nodes, Path(folder), config.seed, network)
        run_local(job, workers=1)
        return read_history(Path(folder) / "history.jsonl", run.run.metric.name)


def error(run: Measured, link: str) -> float:
    """Return the relative error of the computed time of a whole run on a link."""
    real = on_link(run, link)[-1]["virtual_seconds"]
    computed = link_seconds(run.progress, parse_link(link), run.replies, run.asynchronous)[-1]
    return float(abs(computed / real - 1))


class AsynchronousRuns:
    """The histories of asynchronous runs on links, each made once."""

    def __init__(self) -> None:
        self._histories: dict[tuple[str, int, str], list[Row]] = {}

    def __len__(self) -> int:
        return len(self._histories)

    def seconds(self, run: Measured, goal: Goal, link: str) -> float | None:
        """Return the seconds until the goal, or None if the run on the link does not reach it."""
        key = run.settings, run.run.seed, link
        if key not in self._histories:
            print(f"{link}: {run.settings} seed={run.run.seed}", file=sys.stderr, flush=True)
            self._histories[key] = on_link(run, link)
        name = goal.metric.name
        rows = [row for row in self._histories[key] if row.get(name) is not None]
        found = first_at(rows, goal.bound, goal.metric)
        return float(found["virtual_seconds"]) if found else None


def case(
    task: str, link: str, share: float, runs: Sequence[Measured], real: AsynchronousRuns
) -> dict[str, Any]:
    """Return the advised and the best settings of one task on one link, and their mean times."""
    goal, network = default_goal(runs, share), parse_link(link)
    estimated = rank(runs, goal, network)
    seconds: dict[str, dict[int, float | None]] = {}
    for each in estimated:
        near = each.seconds <= NEAR * estimated[0].seconds
        for run in each.runs:
            hit = reached(run, goal, network)
            value = hit.seconds if hit else None
            if run.asynchronous and near:
                value = real.seconds(run, goal, link)
            seconds.setdefault(each.settings, {})[run.run.seed] = value
    names = {each.settings: each.name for each in estimated}
    seeds = sorted({run.run.seed for run in runs})
    advised = {
        seed: rank([run for run in runs if run.run.seed != seed], goal, network)[0].settings
        for seed in seeds
    }
    mine = [seconds[settings][seed] for seed, settings in advised.items()]
    means = {
        settings: fmean(value for value in values.values() if value is not None)
        for settings, values in seconds.items()
        if None not in values.values()
    }
    best = min(means, key=lambda settings: means[settings])
    known = [value for value in mine if value is not None]
    mean = fmean(known) if len(known) == len(mine) else None
    return {
        "link": link,
        "task": task,
        "share": share,
        "goal": goal.bound,
        "advised": list(dict.fromkeys(names[settings] for settings in advised.values())),
        "advised_seconds": mean,
        "best": names[best],
        "best_seconds": means[best],
        "ratio": None if mean is None else mean / means[best],
        "settings": len(seconds),
    }


def main() -> None:
    """Compare the choices, and print them as JSON."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=LINKS)
    asked = parser.parse_args()
    configure_process()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = {task: task_runs(ROOT, task) for task in asked.tasks}
    real = AsynchronousRuns()
    cases = [
        case(task, link, share, runs[task], real)
        for share in SHARES
        for task in asked.tasks
        for link in asked.links
    ]
    errors = []
    for number, link in enumerate(asked.links):
        same = runs[asked.tasks[number % len(asked.tasks)]]
        fit = [run for run in same if not run.asynchronous]
        chosen = [fit[(5 * number + 7 * each) % len(fit)] for each in range(CHECKED)]
        errors += [error(run, link) for run in chosen]
    ratios = [each["ratio"] for each in cases]
    print(
        json.dumps(
            {
                "tolerance": TOLERANCE,
                "count": len(cases),
                "within": sum(ratio is not None and ratio <= 1 + TOLERANCE for ratio in ratios),
                "largest_ratio": max((r for r in ratios if r is not None), default=None),
                "missed": sum(ratio is None for ratio in ratios),
                "asynchronous_runs": len(real),
                "checked_runs": len(errors),
                "largest_error": max(errors),
                "cases": cases,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
