"""`--try`: a short search among presets, with real runs of the user's task on a simulated link.

It runs each preset for few rounds and stops the worse half. The others begin again with twice as
many rounds, and so on (successive halving, Jamieson and Talwalkar 2016). The winner's configuration
is written to `advised.yaml`.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from edgewire.conf.network import Network
from edgewire.report.advise.options import share_of
from edgewire.report.advise.presets import effective, names
from edgewire.report.errors import ResultsError
from edgewire.report.files.reader import read_yaml
from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.learning_curve import first_at
from edgewire.report.metric import LOSS, MainMetric
from edgewire.report.runs import CONFIG, Row, Run, read_overrides, read_runs, split_overrides
from papers.make.run_archive import ROOT

# presets for training whole models in rounds of several local steps
TRIED = (
    *("fedavg", "fedavg_f2i", "fedavg_f2i_both", "fedavg_topk", "fedavg_dgc", "stc"),
    *("edgewire", "fedadam_topk", "sparseloco", "fedbuff", "edgewire_async"),
)
ROUNDS = 40  # of the longest runs
LEAST_ROUNDS = 2
RUNGS = 3  # a run has a quarter, a half, and all of the rounds
EVALUATIONS = 20  # of a run
SHARE = 0.98  # without a goal: of the best value of a rung
FILE = "advised.yaml"
# a configuration that Hydra saves lacks these settings of its own
HEAD = """\
# Chosen by `python -m edgewire.report.advise --try`: {name}
# python run.py --config-path {folder} --config-name advised
defaults:
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none

hydra:
  callbacks:
    sweep_end:
      _target_: edgewire.command.sweep.SweepEnd

"""


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


def try_settings(asked: argparse.Namespace, network: Network, overrides: Sequence[str]) -> int:
    """Search, print the last runs, and write the chosen configuration; return the exit code.

    `overrides`: the user's own. Raises `ResultsError`.
    """
    given = _expect_overrides(overrides)
    if asked.accuracy is not None:
        share_of(asked.accuracy)  # a wrong goal is refused before the runs
    rounds = asked.rounds or _whole(given.get("rounds", ROUNDS), "rounds")
    nodes = _whole(given.get("nodes") or asked.devices or 10, "nodes")
    own = [word for word in overrides if not word.startswith(("rounds=", "nodes="))]
    own.append(f"nodes={nodes}")
    tried = _presets(asked.presets)
    out = asked.out or Path("outputs") / f"advise-{datetime.now():%Y-%m-%d-%H-%M-%S}"
    out = out.absolute()  # in the current folder, as `python run.py` does
    console = Console(stderr=asked.json)
    for rung in range(RUNGS):
        length = max(LEAST_ROUNDS, math.ceil(rounds / 2 ** (RUNGS - 1 - rung)))
        console.print(f"{len(tried)} presets, {length} rounds each, log: {out}/rung{rung}.log")
        runs = run_rung(tried, own, network, length, nodes, out / f"rung{rung}")
        trials, level = judge(runs, asked)
        if rung < RUNGS - 1:
            better = trials[: math.ceil(len(trials) / 2)]
            tried = list(dict.fromkeys(each.name for each in better))  # of several seeds
    file = write_config(out, trials[0])
    command = device_command(trials[0])
    if asked.json:
        print(json.dumps(_as_json(trials, level, file, command), indent=1))
        return 0
    console.print(_table(trials, level), soft_wrap=True)
    print(f"chosen: {trials[0].name}, written to {file}")
    print(f"in a simulation:  python run.py --config-path {shlex.quote(str(out))} "
          "--config-name advised")  # fmt: skip
    print(f"on your devices:  {command}")
    print("one seed for each preset, at its own learning rate: another seed can change the order")
    return 0


def _expect_overrides(overrides: Sequence[str]) -> dict[str, str]:
    if wrong := [word for word in overrides if "=" not in word or word.startswith("-")]:
        raise ResultsError(f"{wrong[0]} is not KEY=VALUE: the words after -- are overrides")
    given = split_overrides(overrides)
    for key, other in (("algorithm", "--presets"), ("experiment", "--presets")):
        if key in given:
            raise ResultsError(f"leave {key}= to --try, or choose among presets by {other}")
    if given.get("engine", "local") != "local":
        raise ResultsError("leave engine= out: --try needs the virtual clock of engine=local")
    if beside := [key for key in given if key.split(".")[0] == "network"]:
        raise ResultsError(f"{beside[0]}= is what --link and --latency say")
    return given


def _whole(value: object, name: str) -> int:
    if not str(value).isdecimal() or int(str(value)) < 1:
        raise ResultsError(f"{name}= must be a whole number above 0, not {value}")
    return int(str(value))


def _presets(text: str | None) -> list[str]:
    chosen = list(dict.fromkeys(text.split(","))) if text else list(TRIED)
    if wrong := [name for name in chosen if name not in names("algorithm")]:
        raise ResultsError(f"there is no algorithm={wrong[0]}: python run.py --help lists them")
    return chosen


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
    asynchronous = effective({"algorithm": name}).get("strategy") == "asynchronous"
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


def judge(runs: Sequence[Run], asked: argparse.Namespace) -> tuple[list[Trial], tuple[str, float]]:
    """Return the trials, the soonest at a common level first, and the level: its metric, value.

    The level is the goal, if at least half of the runs reach it. Otherwise three quarters of the
    runs reach the level, so that a preset must be accurate and fast to stay. Runs that have
    diverged come last. Raises `ResultsError` for a goal of another metric.
    """
    metric, goal = _goal(runs[0].metric, asked)
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
    return trials, (metric.name, level)


def _goal(main: MainMetric, asked: argparse.Namespace) -> tuple[MainMetric, float | None]:
    if asked.loss is not None:
        return LOSS, asked.loss
    if asked.accuracy is not None and main.name != "accuracy":
        raise ResultsError(f"these runs measure the {main.name}: give the goal by --reach")
    value = asked.accuracy if asked.accuracy is not None else asked.reach
    return main, share_of(value) if value is not None and main.share else value


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


def write_config(folder: Path, trial: Trial) -> Path:
    """Write the configuration of a run as `advised.yaml`; return the file."""
    content = read_yaml(trial.folder / CONFIG)
    file = folder / FILE
    text = yaml.safe_dump(content, sort_keys=False)
    file.write_text(HEAD.format(name=trial.name, folder=shlex.quote(str(folder))) + text)
    return file


def device_command(trial: Trial) -> str:
    """Return the command that makes the run on real devices, without the simulated link."""
    kept = [
        f"{key}={value}"
        for key, value in read_overrides(trial.folder).items()
        if key.split(".")[0] not in ("network", "engine", "hydra")
    ]
    place = ["engine=superlink", "engine.address=HOST:8000", "engine.certificate=keys/ca.crt"]
    return shlex.join(["python", "run.py", *kept, "network=ideal", *place])


def _table(trials: Sequence[Trial], level: tuple[str, float]) -> Table:
    name, value = level
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("preset", f"time to {name} {value:.4g}", "best", "sent up", "sent down"):
        table.add_column(head, justify="left" if head == "preset" else "right")
    for each in trials:
        table.add_row(
            each.name,
            "not reached" if each.seconds is None else human_seconds(each.seconds),
            NOTHING if each.best is None else f"{each.best:.4g}",
            human_bytes(each.row.get("uplink_bytes") or 0),
            human_bytes(each.row.get("downlink_bytes") or 0),
        )
    return table


def _as_json(
    trials: Sequence[Trial], level: tuple[str, float], file: Path, command: str
) -> dict[str, Any]:
    return {
        "metric": level[0],
        "level": level[1],
        "settings": [
            {"name": each.name, "seconds": each.seconds, "best": each.best,
             "up_bytes": each.row.get("uplink_bytes"),
             "down_bytes": each.row.get("downlink_bytes"),
             "overrides": read_overrides(each.folder)}
            for each in trials
        ],
        "config": str(file),
        "devices": command,
    }  # fmt: skip
