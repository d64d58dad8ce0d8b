"""The rungs of a search among presets by successive halving (Jamieson and Talwalkar 2016).

A rung is a sweep of presets with equally many rounds on a simulated link. `judge` orders its runs.
The better half then begins again with twice as many rounds.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewire.command.job import ROOT
from edgewire.conf.load import compose_config
from edgewire.conf.network import Network
from edgewire.report.metric import MainMetric
from edgewire.report.reader import ResultsError
from edgewire.report.runs import Row, Run, first_at, read_runs

EVALUATIONS = 20  # of a run
SHARE = 0.98  # without a goal: of the best value of a rung


@dataclass(frozen=True)
class Trial:
    """A run of a preset: its name, and when it reached a level of the metric on the link.

    `seconds`: virtual seconds until then; None if it has not reached the level. `best`: the best
    value of the metric, None without one. `folder`: the run's folder.
    """

    name: str
    seconds: float | None
    best: float | None
    row: Row
    folder: Path


def run_rung(
    tried: Sequence[str],
    own: Sequence[str],
    network: Network,
    rounds: int,
    nodes: int,
    folder: Path,
) -> list[Run]:
    """Run the presets as one sweep; return the finished runs. Raises `ResultsError`."""
    cases = [" ".join(preset_overrides(name, network, rounds, nodes)) for name in tried]
    place = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    command = [
        sys.executable, str(ROOT / "run.py"), "-m", "hydra/sweeper=cases",
        f"hydra.sweep.dir='{place}'", f"hydra.sweeper.cases={json.dumps(cases)}", *own,
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    try:
        with log.open("w") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT)
    except KeyboardInterrupt as error:  # the sweep has got the signal, too
        raise ResultsError(f"interrupted; the finished runs are in {folder}") from error
    try:
        return read_runs([folder])[0]
    except ResultsError as error:
        last = (log.read_text().strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ResultsError(f"no run has finished ({last.strip()}); the log is {log}") from error


def preset_overrides(name: str, network: Network, rounds: int, nodes: int) -> list[str]:
    """Return the overrides of one preset's run."""
    asynchronous = "pushes" in compose_config([f"algorithm={name}"]).strategy
    unit = nodes if asynchronous else 1
    every = max(1, rounds // EVALUATIONS) * unit
    link = {
        key: value
        for key in ("up_mbps", "down_mbps", "server_mbps", "latency_ms", "seconds_per_step")
        if (value := getattr(network, key)) is not None
    }
    length = f"strategy.pushes={rounds * unit}" if asynchronous else f"rounds={rounds}"
    return [
        f"algorithm={name}", "network=ideal",
        *(f"network.{key}={value:g}" for key, value in link.items()),
        length, f"eval_every={every}",
    ]  # fmt: skip


def judge(
    runs: Sequence[Run], metric: MainMetric, goal: float | None = None
) -> tuple[list[Trial], float]:
    """Return the trials, the soonest at a common level of the metric first, and the level.

    The level is the goal, if at least half of the runs reach it. Otherwise three quarters of the
    runs reach the level, so that a preset must be accurate and fast to stay. Runs that have
    diverged come last. Raises `ResultsError` if no run was evaluated, and for a goal that the
    untrained model reaches.
    """
    bests = [metric.best(_values(run, metric)) for run in runs if not run.diverged]
    known = [best for best in bests if best is not None]
    if not known:
        raise ResultsError(f"no run has a value of the {metric.name}: all have diverged, or none "
                           "was evaluated")  # fmt: skip
    ordered = sorted(known, reverse=metric.higher)
    top = ordered[0]
    level = top - abs(top) * (1 - SHARE) * (1 if metric.higher else -1)
    if goal is not None:
        level = goal
    if sum(metric.reaches(best, level) for best in known) * 2 < len(runs):
        level = ordered[max(1, int(0.75 * len(ordered))) - 1]
    trials = [_trial(run, metric, level) for run in runs]

    def order(each: Trial) -> tuple[bool, float, float]:
        worth = math.inf if each.best is None else each.best * (-1 if metric.higher else 1)
        return each.seconds is None, each.seconds or 0.0, worth

    trials.sort(key=order)
    if level == goal and trials[0].seconds is not None and trials[0].row.get("round") == 0:
        text = f"{metric.name} {metric.text(goal)}"
        raise ResultsError(
            f"the untrained model already reaches the goal, {text}: give a harder one"
        )
    return trials, level


def _values(run: Run, metric: MainMetric) -> list[float]:
    return [row[metric.name] for row in run.history() if row.get(metric.name) is not None]


def _trial(run: Run, metric: MainMetric, level: float) -> Trial:
    assert run.folder is not None  # `read_runs` has read it from a folder
    rows = [row for row in run.history() if row.get(metric.name) is not None]
    found = None if run.diverged else first_at(rows, level, metric)
    best = None if run.diverged else metric.best([row[metric.name] for row in rows])
    name = run.overrides.get("algorithm", "")
    seconds = None if found is None else found.get("virtual_seconds")
    row = found or (rows[-1] if rows else {})
    return Trial(name, seconds, best, row, run.folder)
