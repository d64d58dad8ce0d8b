"""`compare goal=`: the method that reaches a goal soonest over a link, or with the fewest bytes.

The first search halves (Jamieson and Talwalkar 2016): all methods run for a quarter of the rounds,
the better half of them for half of the rounds, and the best three for all rounds, with several
seeds. The second one takes the fewest bytes with which a method is about as good as uncompressed.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from edgewire.command.compare import main_metric
from edgewire.command.methods import (
    BETWEEN,
    FEW_BYTES,
    LEAST_ROUNDS,
    NAMES,
    UNCOMPRESSED,
    VALIDATE,
    Asked,
    Case,
    Method,
    Runs,
    at_rates,
    methods_of,
    trained,
    with_best_rates,
)
from edgewire.command.run_result import RunResult
from edgewire.conf.load import typed
from edgewire.conf.own_packages import look_in
from edgewire.conf.schema import ConfigError
from edgewire.report.format import NOTHING, decimals, human_bytes, human_seconds
from edgewire.report.metric import MainMetric
from edgewire.report.reader import ResultsError
from edgewire.report.runs import Run, first_at
from edgewire.strategy.run.whole_files import replace_file

# methods that train whole models in rounds of several local steps; `minutes=` takes the first ones
TRIED = (
    *(UNCOMPRESSED, FEW_BYTES, "fedavg_f2i_both", "fedavg_dgc", "stc", "fedavg_topk"),
    *("edgewire_async", "sparseloco", "fedavg_f2i", "fedadam_topk", "fedbuff"),
)
FIDELITIES = (
    "low",
    "0.2",
    "medium",
    "0.5",
    "high",
    "3",
)  # of the few bytes; "high" is the preset's
FINALISTS = 3  # beside the uncompressed method
EVALUATIONS = 20  # of a run
SHARE = 0.98  # of the best value of a rung: the level without a goal
HALF = "dataset.validate=0.2"
FRESH = 5  # seeds that decide whether a method is within the limit
CONFIDENCE = 0.9  # with which a further seed is within the limit
PERCENT = 3.0  # of an error or a perplexity: what one point is of a share
NOT_REACHED = 3  # exit code
# a configuration that Hydra saves lacks these settings of its own
HEAD = """\
defaults:
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none

hydra:
  output_subdir: null
  run: {dir: "${new_folder:outputs}"}
  sweep: {dir: "${new_folder:multirun}"}
  callbacks: {sweep_end: {_target_: edgewire.command.sweep.SweepEnd}}

"""


@dataclass(frozen=True)
class Goal:
    """A value of a metric that a run is to reach."""

    metric: MainMetric
    bound: float

    def __str__(self) -> str:
        return f"{self.metric.name} {self.metric.text(self.bound)}"


@dataclass(frozen=True)
class Trial:
    """A run of a method: when it reached a level of the metric on the link.

    `seconds`: virtual seconds until then; None if it has not reached the level. `best`: the best
    value of the metric, None without one. `round`: when it reached the level, or None.
    """

    method: Method
    seconds: float | None
    best: float | None
    round: int | None = None

    def order(self, metric: MainMetric) -> tuple[bool, float, float]:
        """Return the key by which the soonest trial is first, then the best one."""
        worth = math.inf if self.best is None else self.best * (-1 if metric.higher else 1)
        return self.seconds is None, self.seconds or 0.0, worth


def search(asked: Asked, console: Console) -> int:
    """Search for what `goal=` asks, print the answer and the commands; return the exit code.

    Raises `ConfigError` for a goal that the task cannot have.
    """
    if any(word.startswith("engine=") and word != "engine=local" for word in asked.task):
        raise ConfigError("leave engine= out: the search needs the virtual clock of engine=local")
    text = asked.given["goal"]
    name, _, value = text.partition(":")
    try:
        bound = float(value)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ConfigError(f"goal={text}: give METRIC:VALUE as in goal=accuracy:0.9, or within:1")
    if name == "within":
        if bound <= 0 or asked.given.get("bytes", "up") != "up" or "minutes" in asked.given:
            raise ConfigError(
                "goal=within: takes points above 0, and beside it bytes=up or nothing"
            )
        return _within(asked, bound, console)
    return _soonest(asked, _goal(asked, name, bound), _minutes(asked), console)


def _goal(asked: Asked, name: str, bound: float) -> Goal:
    from edgewire.conf.build import objective_of  # it imports torch

    folder = asked.options.get("config_dir")
    look_in([*([Path(folder).absolute().parent] if folder else []), Path.cwd()])
    metrics = {each.name: each for each in objective_of(typed(asked.base)).metrics}
    text = f"goal={asked.given['goal']}"
    if name not in metrics:
        why = "a loss is no goal" if name == "loss" else f"the task has no metric {name}"
        raise ConfigError(f"{text}: {why}; it has {', '.join(metrics) or 'a loss alone'}")
    metric = MainMetric(*metrics[name])
    if metric.share and not 0 < bound <= 1:
        hint = f": give {name}:{bound / 100:g}" if 1 < bound <= 100 else ""
        raise ConfigError(f"{text}: {name} is a share from 0 to 1{hint}")
    if not asked.network:
        raise ConfigError(
            f"{text} needs a link: give network=lora, or Mbit/s down and up: network=10/1"
        )
    return Goal(metric, bound)


def _minutes(asked: Asked) -> float:
    text = asked.given.get("minutes", "inf")
    if not text.replace(".", "", 1).isdecimal() and text != "inf":
        raise ConfigError(f"minutes={text}: give a number, as in minutes=5")
    if "bytes" in asked.given:
        raise ConfigError("bytes= goes with goal=within:1")
    return float(text)


def judge(runs: Mapping[Method, Run], metric: MainMetric, goal: float | None = None) -> list[Trial]:
    """Return a trial of each preset with its best rate, the soonest at a common level first.

    The level is the goal, if at least half of the presets reach it. Otherwise three quarters of
    them reach the level, so that a preset must be accurate and fast to stay. Runs that have
    diverged come last. Raises `ResultsError` if no run was evaluated, and for a goal that the
    untrained model reaches.
    """
    first = [_trial(method, run, metric, goal) for method, run in runs.items()]
    first.sort(key=lambda each: each.order(metric))
    if first and first[0].round == 0 and goal is not None:
        text = f"{metric.name} {metric.text(goal)}"
        raise ResultsError(
            f"the untrained model already reaches the goal, {text}: give a harder one"
        )
    chosen = {(each.method.name, each.method.words): each.method for each in reversed(first)}
    bests = [each.best for each in first if each.method in chosen.values()]
    known = sorted([best for best in bests if best is not None], reverse=metric.higher)
    if not known:
        raise ResultsError(
            f"no run has a value of the {metric.name}: all have diverged, or none was evaluated"
        )
    level = known[0] - abs(known[0]) * (1 - SHARE) * (1 if metric.higher else -1)
    level = level if goal is None else goal
    if sum(metric.reaches(best, level) for best in known) * 2 < len(chosen):
        level = known[max(1, int(0.75 * len(known))) - 1]
    trials = [_trial(method, runs[method], metric, level) for method in chosen.values()]
    return sorted(trials, key=lambda each: each.order(metric))


def _trial(method: Method, run: Run, metric: MainMetric, level: float | None) -> Trial:
    if run.diverged:
        return Trial(method, None, None)
    rows = [row for row in run.history() if row.get(metric.name) is not None]
    found = None if level is None else first_at(rows, level, metric)
    best = metric.best([row[metric.name] for row in rows])
    if found is None:
        return Trial(method, None, best)
    return Trial(method, found.get("virtual_seconds"), best, found.get("round"))


def _soonest(asked: Asked, goal: Goal, minutes: float, console: Console) -> int:
    methods, seeds, metric = methods_of(asked, asked.names(TRIED)), asked.seeds, goal.metric
    runs, left = Runs(asked, console, ""), dict[Trial, tuple[str, RunResult]]()
    for rung, share in enumerate((4, 2), 1):
        if rung == 2 and len(methods) <= FINALISTS + 1:
            continue
        rounds = max(LEAST_ROUNDS, asked.rounds // share)
        tried = at_rates(asked, methods) if rung == 1 else methods
        cases = [_case(each, seeds[0], rounds, VALIDATE) for each in tried]
        if rung == 1 and minutes < math.inf:
            began = time.monotonic()
            runs.make("first", cases[:1])
            whole = share * (time.monotonic() - began)
            count = max(2, int(minutes * 60 / whole) - (FINALISTS + 1) * len(seeds))
            methods = methods[:count]
            cases = [case for case in cases if case.method.name in {m.name for m in methods}]
        console.print(f"rung {rung}: {len(methods)} methods, {len(cases)} runs of {rounds} rounds")
        done = runs.make(f"rung{rung}", cases, BETWEEN)
        found = {case.method: run.as_run() for case, run in done.items()}
        trials = judge(found, metric, goal.bound)
        keep = math.ceil(len(trials) / 2) if rung == 1 else FINALISTS
        kept = [each.method for each in trials[: max(keep, FINALISTS)]]
        kept += [t.method for t in trials if t.method.name == UNCOMPRESSED and t.method not in kept]
        rates = f", {sum(m.name == methods[0].name for m in tried)} rates" * (rung == 1)
        by_method = {case.method: run for case, run in done.items()}
        for each in trials:
            if each.method not in kept:
                why = f"after rung {rung}: {rounds} rounds{rates}"
                reached = _trial(each.method, found[each.method], metric, goal.bound)
                left[reached] = why, by_method[each.method]
        methods = kept
    console.print(f"rung 3: {len(methods)} methods, {len(seeds)} seeds, {asked.rounds} rounds")
    cases = [_case(each, seed, asked.rounds) for seed, each in product(seeds, methods)]
    done = runs.make("rung3", cases, BETWEEN)
    finals = _finals(done, goal)
    head = trained(next(iter(done.values())).values) if done else ""
    console.print(f"goal: {goal} over {asked.link}, the soonest first · {head}", markup=False)
    console.print(_table(finals, left, metric))
    for case, line in runs.failed.items():
        console.print(f"{case.method}: {line}", markup=False)
    first = next(iter(finals), None)
    if first is not None and first.trial.seconds is not None:
        _print_commands(runs, first.case, console)
        return 0
    known = [each.trial for each in finals if each.trial.best is not None]
    best = min(known, key=lambda each: each.order(metric)[2], default=None)
    shown = "no run has a value"
    if best is not None:
        shown = f"the best is {metric.text(best.best)} ({NAMES.get(best.method.name, best.method)})"
    console.print(f"the goal is not reached: {shown}", markup=False)
    return NOT_REACHED


@dataclass(frozen=True)
class Final:
    """A method's run with all rounds, of which the time is in the middle of its `seeds`."""

    trial: Trial
    case: Case
    run: RunResult
    seeds: int


def _finals(done: Mapping[Case, RunResult], goal: Goal) -> list[Final]:
    """Return the methods by the time in the middle of their seeds, the soonest first."""

    def key(each: Final) -> tuple[bool, float, float]:
        return each.trial.order(goal.metric)

    found: dict[Method, list[Final]] = {}
    for case, run in done.items():
        trial = _trial(case.method, run.as_run(), goal.metric, goal.bound)
        found.setdefault(case.method, []).append(Final(trial, case, run, 1))
    middle = [(sorted(runs, key=key)[len(runs) // 2], len(runs)) for runs in found.values()]
    return sorted((replace(each, seeds=seeds) for each, seeds in middle), key=key)


def _table(
    finals: Sequence[Final], left: Mapping[Trial, tuple[str, RunResult]], metric: MainMetric
) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("method", no_wrap=True)
    for head in ("to the goal", "best", "up, down at the end", "seeds"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("left the search", no_wrap=True)
    rows = [(each.trial, each.run, str(each.seeds), "") for each in finals]
    for trial, run, seeds, why in [*rows, *((t, run, "1", why) for t, (why, run) in left.items())]:
        time = "not reached" if trial.seconds is None else human_seconds(trial.seconds)
        sizes = ", ".join(map(human_bytes, run.traffic[:2]))
        best = "diverged" if run.diverged else metric.text(trial.best)
        table.add_row(str(trial.method), time, best, sizes, seeds, why)
    return table


def _print_commands(runs: Runs, case: Case, console: Console) -> None:
    """Write `chosen.yaml`, and print the commands that make the chosen run here and on devices."""
    asked, own = runs.asked, runs.words(case)
    composed = asked.compose(*own)
    content = OmegaConf.to_yaml(composed)
    replace_file(runs.folder / "chosen.yaml", f"# {case.method}\n{HEAD}{content}")
    folder = ["--config-dir", asked.options["config_dir"]] if "config_dir" in asked.options else []
    chosen = ["--config-path", str(runs.folder), "--config-name", "chosen", *folder]
    here = [*asked.words, *asked.network, *own]
    devices = ["engine=superlink", *asked.words, "network=ideal", *own[:-1]]
    console.print(f"run it      python run.py {shlex.join(chosen)}", markup=False)
    console.print(f"the same    python run.py {shlex.join(here)}", markup=False)
    console.print(f"on devices  python run.py {shlex.join(devices)}", markup=False)


def _case(method: Method, seed: int, rounds: int, *words: str) -> Case:
    return Case(method, seed, rounds, words, max(1, rounds // EVALUATIONS))


# The fewest bytes


def _within(asked: Asked, limit: float, console: Console) -> int:
    """Search the fewest bytes within `limit` points of the uncompressed method.

    All methods run once. Of those within the limit, the two with the fewest bytes run again with
    fresh seeds, until one is within the limit by its prediction for a further seed.
    """
    names = asked.names(TRIED)
    runs = Runs(asked, console, "")
    console.print("the learning rates are searched first, in short runs")
    methods = with_best_rates(asked, methods_of(asked, names), runs)
    for each in [each for each in methods if each.name == FEW_BYTES]:
        methods += [replace(each, words=(f"fidelity={fidelity}",)) for fidelity in FIDELITIES]
        methods.remove(each)
    plain = methods[0]
    cases = [Case(each, asked.seeds[0], asked.rounds, (HALF,)) for each in methods]
    console.print(f"{len(cases)} runs of {asked.rounds} rounds")
    once = {case.method: [run] for case, run in runs.make("once", cases, BETWEEN).items()}
    if plain not in once:
        raise ResultsError(next(iter(runs.failed.values()), "no run without compression"))
    ways = slice(0, 1 if "bytes" in asked.given else 2)

    def size(method: Method) -> float:
        return sum(once[method][0].traffic[ways])

    def within(method: Method) -> bool:
        return size(method) < size(plain) and losses(once, method, plain)[0] <= limit

    few = sorted(filter(within, once), key=size)
    start = max(asked.seeds) + 1
    fresh: dict[Method, list[RunResult]] = {}
    chosen: Method | None = None
    while few and chosen is None:
        pair, few = few[:2], few[2:]
        tried = pair if plain in fresh else [plain, *pair]
        seeds = range(start, start + FRESH)
        cases = [Case(each, seed, asked.rounds, (HALF,)) for seed, each in product(seeds, tried)]
        console.print(f"{len(cases)} runs with new seeds: {' and '.join(map(str, pair))}")
        for case, run in runs.make(f"fresh{len(fresh)}", cases, BETWEEN).items():
            fresh.setdefault(case.method, []).append(run)
        chosen = next((m for m in pair if predicted(losses(fresh, m, plain)) <= limit), None)
    metric = main_metric(once[plain])
    unit = "points" if metric.share else "%"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("method", no_wrap=True)
    for head in (f"loss, {unit}", "a new seed's, up to", "up", "down", "seeds"):
        table.add_column(head, justify="right", no_wrap=True)
    for method in sorted(once, key=size):
        found = losses(fresh if method in fresh else once, method, plain)
        most = predicted(found)
        table.add_row(
            str(method),
            NOTHING if not found or math.isinf(sum(found)) else decimals(fmean(found), 2),
            NOTHING if math.isinf(most) else decimals(most, 2),
            *map(human_bytes, once[method][0].traffic[:2]),
            str(len(found)),
        )
    head = trained(once[plain][0].values)
    bound = f"{limit:g} points" if metric.share else f"{limit * PERCENT:g} %"
    what = f"the fewest bytes{' up' * (ways.stop == 1)} within {bound} of uncompressed in {metric.name}"
    console.print(f"goal: {what} · {head}", markup=False)
    console.print(table)
    for case, line in runs.failed.items():
        console.print(f"{case.method}: {line}", markup=False)
    if chosen is None:
        console.print(f"no method is surely within {bound}: stay uncompressed, or allow more")
        return NOT_REACHED
    console.print(f"chosen: {chosen}, on a part of the training set as the test set")
    _print_commands(runs, Case(chosen, asked.seeds[0], asked.rounds), console)
    return 0


def losses(
    runs: Mapping[Method, Sequence[RunResult]], method: Method, plain: Method
) -> list[float]:
    """Return what a method loses against the uncompressed one, for each seed that both have.

    In points for a share, else in thirds of a percent of the uncompressed value, so that `within:1`
    is 1 point or 3 %. Infinity for a run that has diverged.
    """
    metric = main_metric(runs[plain])
    theirs = {run.values["seed"]: run for run in runs[plain]}
    found = []
    for run in runs.get(method, ()):
        other = theirs.get(run.values["seed"])
        if other is None:
            continue
        value, base = (each.values.get(metric.name) for each in (run, other))
        if value is None or base is None or run.diverged:
            found.append(math.inf)
            continue
        loss = (base - value) * (1 if metric.higher else -1)
        scale = 100.0 if metric.share else 100 / PERCENT / (abs(base) or math.inf)
        found.append(loss * scale)
    return found


def predicted(values: Sequence[float]) -> float:
    """Return what a further value stays below with 90 %, by Student's t; infinity for one value."""
    if len(values) < 2 or math.isinf(sum(values)):
        return math.inf
    from scipy.special import stdtrit

    spread = stdev(values) * math.sqrt(1 + 1 / len(values))
    return fmean(values) + float(stdtrit(len(values) - 1, CONFIDENCE)) * spread
