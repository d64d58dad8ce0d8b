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
from pathlib import Path
from statistics import fmean, stdev

from omegaconf import OmegaConf
from rich.console import Console

from edgewire.command.compare import PERCENT, main_metric, table_of
from edgewire.command.from_data import from_data
from edgewire.command.methods import (
    FEW_BYTES,
    NAMES,
    UNCOMPRESSED,
    VALIDATE,
    Asked,
    Method,
    Runs,
    trained,
)
from edgewire.command.run_result import RunResult
from edgewire.conf.load import typed
from edgewire.conf.own_packages import look_in
from edgewire.conf.schema import ConfigError
from edgewire.report.format import NOTHING, decimals, human_bytes, human_seconds
from edgewire.report.metric import MainMetric
from edgewire.report.reader import ResultsError
from edgewire.report.runs import first_at
from edgewire.strategy.run.whole_files import replace_file

# methods that train whole models in rounds of several local steps; `minutes=` takes the first ones
TRIED = (
    *(UNCOMPRESSED, FEW_BYTES, "fedavg_f2i_both", "fedavg_dgc", "stc", "fedavg_topk"),
    *("edgewire_async", "sparseloco", "fedavg_f2i", "fedadam_topk", "fedbuff"),
)
FIDELITIES = ("low", "0.2", "medium", "0.5", "high", "3")  # of the few bytes
FINALISTS = 3  # beside the uncompressed method
EVALUATIONS = 20  # of a run
LARGE = ("dataset.validate=0.3",)  # a part of the training set that decides about a point
FRESH = 8  # seeds that decide whether a method is within the limit
CONFIDENCE = 0.9  # with which a further seed is within the limit
NOT_REACHED = 3  # exit code
# what a configuration that is run by its file needs of Hydra
HEAD = """\
defaults: [_self_, override hydra/job_logging: none, override hydra/hydra_logging: none]
hydra:
  output_subdir: null
  run: {dir: "${new_folder:outputs}"}
  sweep: {dir: "${new_folder:multirun}"}
  callbacks: {sweep_end: {_target_: edgewire.command.sweep.SweepEnd}}
"""


@dataclass(frozen=True)
class Trial:
    """A run of a method, and when it reached a level of a metric on the link.

    `seconds`: virtual seconds until then, `round`: its round; None if it has not reached the level.
    `best`: the best value of the metric, None without one. `seeds`: runs of which it is the middle
    one. `why`: when the method left the search.
    """

    method: Method
    run: RunResult
    seconds: float | None
    best: float | None
    round: int | None = None
    seeds: int = 1
    why: str = ""

    @classmethod
    def of(cls, method: Method, run: RunResult, metric: MainMetric, level: float) -> Trial:
        """Return the trial of a run."""
        rows = [row for row in run.as_run().history() if row.get(metric.name) is not None]
        if run.diverged or not rows:
            return cls(method, run, None, None)
        at = first_at(rows, level, metric) or {}
        best = metric.best([row[metric.name] for row in rows])
        return cls(method, run, at.get("virtual_seconds"), best, at.get("round"))

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
    text, minutes = asked.given["goal"], asked.given.get("minutes", "inf")
    name, _, value = text.partition(":")
    try:
        bound, most = float(value), float(minutes)
    except ValueError:
        bound = most = math.nan
    if not math.isfinite(bound) or not most > 0:
        raise ConfigError("give goal=METRIC:VALUE as in goal=accuracy:0.9, or goal=within:1; "
                          "minutes= and bytes=up are for one of them each")  # fmt: skip
    if name == "within":
        if bound <= 0 or asked.given.get("bytes", "up") != "up" or most < math.inf:
            raise ConfigError("goal=within: takes points above 0, and beside it bytes=up alone")
        return _within(asked, bound, Runs(asked, console))
    metric = _metric(asked, name, bound)
    return _soonest(asked, metric, bound, most, Runs(asked, console))


def _metric(asked: Asked, name: str, bound: float) -> MainMetric:
    from edgewire.conf.build import objective_of  # it imports torch

    given = zip(asked.options[::2], asked.options[1::2], strict=True)
    look_in([*(Path(each).parent for key, each in given if key == "--config-dir"), Path.cwd()])
    metrics = {each.name: each for each in objective_of(typed(from_data(asked.base))).metrics}
    text, metric = f"goal={asked.given['goal']}", MainMetric(*metrics.get(name, ("",)))
    if name not in metrics:
        why = "a loss is no goal" if name == "loss" else f"the task has no metric {name}"
        raise ConfigError(f"{text}: {why}; it has {', '.join(metrics) or 'a loss alone'}")
    if metric.share and not 0 < bound <= 1:
        hint = f": give {name}:{bound / 100:g}" if 1 < bound <= 100 else ""
        raise ConfigError(f"{text}: {name} is a share from 0 to 1{hint}")
    if not asked.network or "bytes" in asked.given:
        link = "network=lora, or Mbit/s down and up as in network=10/1; bytes= goes with within:"
        raise ConfigError(f"{text} needs a link: give {link}")
    return metric


# The soonest at a goal


def judge(runs: Mapping[Method, RunResult], metric: MainMetric, goal: float) -> list[Trial]:
    """Return a trial of each preset with its best rate, the soonest at a common level first.

    The level is the goal, if at least half of the presets reach it. Otherwise three quarters of
    them reach the level, so that a preset must be accurate and fast to stay. Runs that have
    diverged come last. Raises `ResultsError` if no run was evaluated, and for a goal that the
    untrained model reaches.
    """
    trials = [Trial.of(method, run, metric, goal) for method, run in runs.items()]
    trials.sort(key=lambda each: each.order(metric))
    if trials and trials[0].round == 0:
        text = f"{metric.name} {metric.text(goal)}"
        raise ResultsError(f"the untrained model already reaches {text}: give a harder goal")
    chosen = {each.method.name: each for each in reversed(trials)}.values()
    bests = [each.best for each in chosen if each.best is not None]
    if not bests:
        raise ResultsError(f"no run has a value of {metric.name}: all have diverged, or none was "
                           "evaluated")  # fmt: skip
    level, ordered = goal, sorted(bests, reverse=metric.higher)
    if sum(metric.reaches(best, goal) for best in bests) * 2 < len(chosen):
        level = ordered[max(1, int(0.75 * len(ordered))) - 1]
    found = {each: Trial.of(each.method, each.run, metric, level) for each in chosen}
    return sorted(found, key=lambda each: found[each].order(metric))


def _soonest(asked: Asked, metric: MainMetric, goal: float, minutes: float, runs: Runs) -> int:
    methods, left = asked.methods(TRIED), list[Trial]()
    rounds = methods[0].rounds
    for rung, share in enumerate((4, 2), 1):
        if rung == 2 and len(methods) <= FINALISTS + 1:
            break
        tried = asked.at_rates(methods) if rung == 1 else methods
        tried = [_cut(each, max(2, rounds // share), VALIDATE) for each in tried]
        if minutes < math.inf and rung == 1:
            began = time.monotonic()
            runs.make("first", tried[:1], asked.seeds[:1])
            whole = share * (time.monotonic() - began)  # of a run with all rounds
            count = int(60 * minutes / whole) - (FINALISTS + 1) * len(asked.seeds)
            names = [each.name for each in methods[: max(2, count)]]
            tried = [each for each in tried if each.name in names]
        runs.print(f"rung {rung}: {len(tried)} runs of {tried[0].rounds} rounds")
        done = runs.make(f"rung{rung}", tried, asked.seeds[:1])
        trials = judge({each: found[0] for each, found in done.items()}, metric, goal)
        keep = max(FINALISTS, math.ceil(len(trials) / 2)) if rung == 1 else FINALISTS
        methods = [each.method for each in trials[:keep]]
        for each in trials[keep:]:
            if each.method.name == UNCOMPRESSED:
                methods.append(each.method)
                continue
            rates = sum(other.name == each.method.name for other in tried)
            why = f"after rung {rung}: {tried[0].rounds} rounds, {rates} rate{'s' * (rates > 1)}"
            left.insert(0, replace(each, why=why))
    methods = [_cut(each, rounds) for each in methods]
    runs.print(f"rung 3: {len(methods) * len(asked.seeds)} runs of {rounds} rounds")
    finals = []
    for method, found in runs.make("rung3", methods, asked.seeds).items():
        ordered = [Trial.of(method, run, metric, goal) for run in found]
        ordered.sort(key=lambda each: each.order(metric))
        finals.append(replace(ordered[len(ordered) // 2], seeds=len(ordered)))
    finals.sort(key=lambda each: each.order(metric))
    table = table_of("method", "to the goal", "best", "up, down at the end", "seeds", "left")
    for each in (*finals, *left):
        seconds = "not reached" if each.seconds is None else human_seconds(each.seconds)
        best = "diverged" if each.run.diverged else metric.text(each.best)
        sizes = ", ".join(map(human_bytes, each.run.traffic[:2]))
        table.add_row(str(each.method), seconds, best, sizes, str(each.seeds), each.why)
    task = trained(finals[0].run.values) if finals else "no run has finished"
    aim = f"{metric.name} {metric.text(goal)} over {asked.link}, the soonest first"
    runs.print(f"goal: {aim} · {task}", table, *runs.failed)
    if finals and finals[0].seconds is not None:
        _print_commands(runs, finals[0].method, finals[0].run.values["seed"])
        return 0
    ranked = sorted(finals, key=lambda each: each.order(metric)[2])
    for each in ranked[:1]:
        name = NAMES.get(each.method.name, str(each.method))
        runs.print(f"the goal is not reached: the best is {metric.text(each.best)} ({name})")
    return NOT_REACHED


def _cut(method: Method, rounds: int, words: tuple[str, ...] = ()) -> Method:
    return replace(method, rounds=rounds, words=words, every=max(1, rounds // EVALUATIONS))


def _print_commands(runs: Runs, method: Method, seed: int) -> None:
    """Write `chosen.yaml`, and print the commands that make the chosen run here and on devices."""
    asked = runs.asked
    own = method.overrides(int(asked.base.nodes), seed)
    content = OmegaConf.to_yaml(asked.compose(*own))
    replace_file(runs.folder / "chosen.yaml", f"# {method}\n{HEAD}{content}")
    file = ["--config-path", str(runs.folder), "--config-name", "chosen"]
    given = zip(asked.options[::2], asked.options[1::2], strict=True)
    folder = [word for pair in given if pair[0] == "--config-dir" for word in pair]
    words = [*asked.options, *asked.task]
    runs.print(
        f"run it      python run.py {shlex.join([*file, *folder])}",
        f"or          python run.py {shlex.join([*words, *asked.network, *own])}",
        f"on devices  python run.py {shlex.join([*words, 'engine=superlink', *own[:-1]])}",
    )


# The fewest bytes


def _within(asked: Asked, limit: float, runs: Runs) -> int:
    """Search the fewest bytes within `limit` points of the uncompressed method.

    All methods run once. Of those within the limit, the two with the fewest bytes run with new
    seeds, and so on, until one is within the limit by the prediction for a further seed.
    """
    methods = runs.with_best_rates(asked.methods(TRIED))
    words = [(*LARGE, f"fidelity={each}") for each in FIDELITIES]
    methods = [
        replace(each, words=own)
        for each in methods
        for own in (words if each.name == FEW_BYTES else [LARGE])
    ]
    plain, seeds = methods[0], range(max(asked.seeds) + 1, max(asked.seeds) + 1 + FRESH)
    runs.print(f"{len(methods)} runs of {plain.rounds} rounds")
    done = runs.make("once", methods, asked.seeds[:1])
    if plain not in done:
        raise ResultsError(next(iter(runs.failed), "the uncompressed run has no result"))
    ways = 1 if "bytes" in asked.given else 2
    sizes = {each: sum(found[0].traffic[:ways]) for each, found in done.items()}
    ordered = sorted(done, key=lambda each: sizes[each])
    few = [each for each in ordered if sizes[each] < sizes[plain]]
    few = [each for each in few if losses(done[each], done[plain])[0] <= limit]
    chosen: Method | None = None
    while few and chosen is None:
        pair, few = few[:2], few[2:]
        tried = [*pair, *([plain] if len(done[plain]) == 1 else [])]
        runs.print(f"{len(tried) * FRESH} runs with new seeds: {' and '.join(map(str, pair))}")
        done |= runs.make(f"seeds-{sizes[pair[0]]}", tried, seeds)
        fit = [each for each in pair if predicted(losses(done[each], done[plain])) <= limit]
        chosen = next(iter(fit), None)
    metric = main_metric(done[plain])
    unit = "points" if metric.share else "%"
    table = table_of("method", f"loss, {unit}", "of a new seed up to", "up", "down", "seeds")
    for each in ordered:
        found = [
            loss * (1 if metric.share else PERCENT) for loss in losses(done[each], done[plain])
        ]
        shown = [
            decimals(x, 2) if x < math.inf else NOTHING
            for x in (fmean(found or [math.inf]), predicted(found))
        ]
        table.add_row(
            str(each), *shown, *map(human_bytes, done[each][0].traffic[:2]), str(len(found))
        )
    bound = f"{limit:g} points" if metric.share else f"{limit * PERCENT:g} %"
    aim = f"the fewest bytes{' up' * (ways == 1)} within {bound} of uncompressed, {metric.name}"
    runs.print(f"goal: {aim} · {trained(done[plain][0].values)}", table, *runs.failed)
    runs.print("a part of the training set is the test set here")
    if chosen is None:
        runs.print("no method is surely within the limit: stay uncompressed, or allow more")
        return NOT_REACHED
    final = replace(chosen, words=chosen.words[len(LARGE) :])
    runs.print(f"chosen: {final}")
    _print_commands(runs, final, asked.seeds[0])
    return 0


def losses(ours: Sequence[RunResult], theirs: Sequence[RunResult]) -> list[float]:
    """Return what `ours` lose against `theirs`, for each seed that both have.

    In points for a share, else in thirds of a percent of the other value, so that 1 is the limit of
    `within:1`. Infinity for a run without a value.
    """
    metric, found = main_metric(theirs), []
    others = {run.values["seed"]: run for run in theirs}
    for run in ours:
        if (other := others.get(run.values["seed"])) is None:
            continue
        value, base = (
            None if each.diverged else each.values.get(metric.name) for each in (run, other)
        )
        if value is None or base is None:
            found.append(math.inf)
            continue
        loss = (base - value) * (1 if metric.higher else -1)
        found.append(loss * 100 if metric.share else loss / (abs(base) or math.inf) * 100 / PERCENT)
    return found


def predicted(values: Sequence[float]) -> float:
    """Return what a further value is below in 9 of 10 cases, by Student's t; infinity for one."""
    if len(values) < 2 or math.inf in values:
        return math.inf
    from scipy.special import stdtrit  # as in `edgewire.report.estimate`

    spread = stdev(values) * math.sqrt(1 + 1 / len(values))
    return fmean(values) + float(stdtrit(len(values) - 1, CONFIDENCE)) * spread
