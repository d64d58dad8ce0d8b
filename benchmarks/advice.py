"""Compares the adviser's choice with the best of all settings, on six links and three tasks.

    python -m benchmarks.advice     # JSON on stdout; about ten minutes on one core

The advice is from the stored runs of `experiment=advise` with the seeds in `ADVICE`. The test is
how long the advised settings, and all other settings, need to the goal with the seed `TEST`.

The bytes and the accuracy of synchronous settings do not depend on the link, so their time is
computed from the stored run with this seed. Some of these times are compared with real runs on the
virtual clock (`checked_runs`). Asynchronous settings are run on each link. `python -m
report.measured advice advice` stores the output for docs/which-method.md.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conf.load import compose_config, run_config, to_config
from conf.targets import HERE
from report.advise.candidates import Measured
from report.advise.link_time import link_seconds, parse_link
from report.advise.page import LINKS, SHARES, TASKS, task_runs
from report.advise.ranking import Goal, default_goal, rank, reached
from report.learning_curve import first_at
from report.runs import Row, read_history
from simulation.job import Job
from simulation.local import run_local
from simulation.network import Network
from task.process import configure_process

ROOT = HERE.parent
ADVICE, TEST = (0, 1), 2  # seeds
TOLERANCE = 0.1
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


class Times:
    """The seconds that each settings need to a goal on a link with the seed `TEST`."""

    def __init__(self) -> None:
        self._histories: dict[tuple[str, str], list[Row]] = {}

    def seconds(self, run: Measured, goal: Goal, link: str) -> float | None:
        """Return the seconds until the goal, or None if the run does not reach it."""
        if not run.asynchronous:
            hit = reached(run, goal, parse_link(link), run.nodes)
            return hit.seconds if hit else None
        key = run.settings, link
        if key not in self._histories:
            self._histories[key] = on_link(run, link)
            print(f"{link}: {run.settings}", file=sys.stderr, flush=True)
        name = goal.metric.name
        rows = [row for row in self._histories[key] if row.get(name) is not None]
        found = first_at(rows, goal.bound, goal.metric)
        return float(found["virtual_seconds"]) if found else None


def case(
    task: str, link: str, share: float, runs: Sequence[Measured], times: Times
) -> dict[str, Any]:
    """Return the advised and the best settings of one task on one link, and their times."""
    known = [run for run in runs if run.run.seed in ADVICE]
    goal = default_goal(known, share)
    advised = rank(known, goal, parse_link(link))[0]
    found = {run.settings: times.seconds(run, goal, link) for run in runs if run.run.seed == TEST}
    reaching = {name: seconds for name, seconds in found.items() if seconds is not None}
    best = min(reaching, key=lambda name: reaching[name])
    names = {run.settings: run for run in runs}
    mine = found[advised.settings]
    return {
        "link": link,
        "task": task,
        "share": share,
        "goal": goal.bound,
        "advised": advised.name,
        "advised_seconds": mine,
        "best": rank([names[best]], goal, parse_link(link))[0].name,
        "best_seconds": reaching[best],
        "ratio": None if mine is None else mine / reaching[best],
        "settings": len(found),
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
    times = Times()
    cases = [
        case(task, link, share, runs[task], times)
        for share in SHARES
        for task in asked.tasks
        for link in asked.links
    ]
    errors = []
    for number, link in enumerate(asked.links):
        same = runs[asked.tasks[number % len(asked.tasks)]]
        fit = [run for run in same if run.run.seed == TEST and not run.asynchronous]
        errors += [error(run, link) for run in fit[number : number + CHECKED]]
    ratios = [each["ratio"] for each in cases]
    print(
        json.dumps(
            {
                "advice_seeds": ADVICE,
                "test_seed": TEST,
                "tolerance": TOLERANCE,
                "count": len(cases),
                "within": sum(ratio is not None and ratio <= 1 + TOLERANCE for ratio in ratios),
                "largest_ratio": max((r for r in ratios if r is not None), default=None),
                "missed": sum(ratio is None for ratio in ratios),
                "checked_runs": len(errors),
                "largest_error": max(errors),
                "cases": cases,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
