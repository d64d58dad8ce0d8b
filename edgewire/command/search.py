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
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from omegaconf import OmegaConf
from rich.console import Console

from edgewire.command import compare as shared
from edgewire.command.compare import Asked, Method, Runs
from edgewire.command.from_data import from_data
from edgewire.command.run_result import RunResult
from edgewire.conf.load import typed
from edgewire.conf.own_packages import look_in
from edgewire.conf.schema import ConfigError
from edgewire.report.comparison import PERCENT, table_of
from edgewire.report.format import NOTHING, decimals, human_bytes, human_seconds
from edgewire.report.metric import MainMetric, main_of
from edgewire.report.reader import ResultsError
from edgewire.report.runs import by_seed, first_at
from edgewire.strategy.run.whole_files import replace_file

# methods that train whole models in rounds of several local steps; `minutes=` takes the first ones
TRIED = (
    *(shared.UNCOMPRESSED, shared.FEW_BYTES, "fedavg_f2i_both", "fedavg_dgc", "stc"),
    *("fedavg_topk", "edgewire_async", "sparseloco", "fedavg_f2i", "fedadam_topk", "fedbuff"),
)
FIDELITIES = ("low", "0.2", "medium", "0.5", "high", "3")  # of the few bytes
FINALISTS = 3  # beside the uncompressed method
EVALUATIONS = 20  # of a run
LARGE = ("dataset.validate=0.3",)  # a part of the training set that decides about a point
NEW_SEEDS = 8  # they decide whether a method is within the limit
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


def search(asked: Asked, console: Console) -> int:
    """Search for what `goal=` asks, print the answer and the commands; return the exit code.

    Raises `ConfigError` for a goal that the task cannot have.
    """
    if any(word.startswith("engine=") and word != "engine=local" for word in asked.task):
        raise ConfigError("leave engine= out: the search needs the virtual clock of engine=local")
    name, _, value = asked.given["goal"].partition(":")
    try:
        bound, minutes = float(value), float(asked.given.get("minutes", "inf"))
    except ValueError:
        bound = minutes = math.nan
    if not math.isfinite(bound) or not minutes > 0:
        example = "goal=accuracy:0.9 network=lora minutes=5, or goal=within:1"
        raise ConfigError(f"goal= takes METRIC:VALUE, and minutes= a number, as in {example}")
    if name != "within":
        metric = _metric(asked, name, bound)
        return _soonest(asked, metric, bound, minutes, Runs(asked, console))
    if bound <= 0 or asked.given.get("bytes", "up") != "up" or minutes < math.inf:
        raise ConfigError("goal=within: takes points above 0, and beside it bytes=up alone")
    return _fewest(asked, bound, Runs(asked, console))


def _metric(asked: Asked, name: str, bound: float) -> MainMetric:
    from edgewire.conf.build import objective_of  # it imports torch

    folder = asked.folders.get("config_dir")
    look_in([*([Path(folder).absolute().parent] if folder else []), Path.cwd()])
    metrics = {each.name: each for each in objective_of(typed(from_data(asked.base))).metrics}
    text = f"goal={asked.given['goal']}"
    if name not in metrics:
        why = "a loss is no goal" if name == "loss" else f"the task has no metric {name}"
        raise ConfigError(f"{text}: {why}; it has {', '.join(metrics) or 'a loss alone'}")
    if metrics[name].share and not 0 < bound <= 1:
        hint = f": give {name}:{bound / 100:g}" if 1 < bound <= 100 else ""
        raise ConfigError(f"{text}: {name} is a share from 0 to 1{hint}")
    if not asked.network or "bytes" in asked.given:
        link = "network=lora, or Mbit/s down and up as in network=10/1; bytes= goes with within:"
        raise ConfigError(f"{text} needs a link: give {link}")
    return MainMetric(*metrics[name])


# The soonest


class Reached(NamedTuple):
    """When a run has reached a value: virtual seconds, infinity for never; the least is best.

    `worth`: the run's best value; its negative if higher values are better; infinity without one.
    """

    seconds: float
    worth: float

    @classmethod
    def of(cls, run: RunResult, metric: MainMetric, level: float) -> Reached:
        """Return when a run has reached a level of a metric."""
        rows = [row for row in run.as_run().history() if row.get(metric.name) is not None]
        if run.diverged or not rows:
            return cls(math.inf, math.inf)
        best = metric.best([row[metric.name] for row in rows]) or 0.0
        found = first_at(rows, level, metric)
        seconds = math.inf if found is None else found["virtual_seconds"]
        return cls(seconds, best * (-1 if metric.higher else 1))

    def texts(self, metric: MainMetric) -> tuple[str, str]:
        """Return the time and the best value as texts."""
        time = human_seconds(self.seconds) if self.seconds < math.inf else "not reached"
        best = self.worth * (-1 if metric.higher else 1)
        return time, metric.text(best) if math.isfinite(best) else NOTHING


def judge(runs: Mapping[Method, RunResult], metric: MainMetric, goal: float) -> list[Method]:
    """Return each preset with its best rate, the soonest at a common level first.

    The level is the goal, if at least half of the presets reach it. Otherwise three quarters of
    them reach the level, so that a preset must be accurate and fast to stay. Runs that have
    diverged come last. Raises `ResultsError` if no run was evaluated, and for a goal that the
    untrained model reaches.
    """
    found = {method: Reached.of(run, metric, goal) for method, run in runs.items()}
    if any(each.seconds == 0 for each in found.values()):
        text = f"{metric.name} {metric.text(goal)}"
        raise ResultsError(f"the untrained model already reaches {text}: give a harder goal")
    ordered = sorted(found, key=lambda each: found[each])
    chosen = {each.name: each for each in reversed(ordered)}.values()
    worths = sorted(w for each in chosen if (w := found[each].worth) < math.inf)
    if not worths:
        raise ResultsError(f"no run has a value of {metric.name}: all diverged, or none had one")
    if sum(found[each].seconds < math.inf for each in chosen) * 2 < len(chosen):
        level = worths[max(1, int(0.75 * len(worths))) - 1] * (-1 if metric.higher else 1)
        found = {each: Reached.of(runs[each], metric, level) for each in chosen}
    return sorted(chosen, key=lambda each: found[each])


def _soonest(asked: Asked, metric: MainMetric, goal: float, minutes: float, runs: Runs) -> int:
    methods, seeds, left = asked.methods(TRIED), asked.seeds, list[tuple[Method, RunResult, str]]()
    rounds = methods[0].rounds
    for rung, share in enumerate((4, 2), 1):
        if rung == 2 and len(methods) <= FINALISTS + 1:
            break
        rates = chain(*map(asked.at_rates, methods)) if rung == 1 else methods
        tried = [_cut(each, max(2, rounds // share), shared.VALIDATE) for each in rates]
        if minutes < math.inf and rung == 1:
            began = time.monotonic()
            runs.make("first", tried[:1], seeds[:1])
            whole = share * (time.monotonic() - began)  # seconds of a run with all rounds
            count = int(60 * minutes / whole) - (FINALISTS + 1) * len(seeds)
            names = [each.name for each in methods[: max(2, count)]]
            tried = [each for each in tried if each.name in names]
        runs.print(f"rung {rung}: {len(tried)} runs of {tried[0].rounds} rounds")
        done = {m: found[0] for m, found in runs.make(f"rung{rung}", tried, seeds[:1]).items()}
        ordered = judge(done, metric, goal)
        keep = max(FINALISTS, math.ceil(len(ordered) / 2)) if rung == 1 else FINALISTS
        stay = [*ordered[:keep], *(m for m in ordered[keep:] if m.name == shared.UNCOMPRESSED)]
        why = f"after rung {rung}: {tried[0].rounds} rounds"
        left[:0] = [(each, done[each], why) for each in ordered if each not in stay]
        methods = stay
    methods = [_cut(each, rounds) for each in methods]
    runs.print(f"rung 3: {len(methods) * len(seeds)} runs of {rounds} rounds")
    finals = []
    for method, found in runs.make("rung3", methods, seeds).items():
        ordered_runs = sorted(found, key=lambda run: Reached.of(run, metric, goal))
        run = ordered_runs[len(found) // 2]  # in the middle: of this seed are all figures
        finals.append((Reached.of(run, metric, goal), method, run, len(found)))
    finals.sort(key=lambda each: each[0])
    table = table_of("method", "to the goal", "best", "up", "down", "seeds", "left")
    rows = [(method, run, str(count), "") for _, method, run, count in finals]
    for method, run, seen, why in [*rows, *((m, run, "1", why) for m, run, why in left)]:
        texts = Reached.of(run, metric, goal).texts(metric)
        table.add_row(str(method), *texts, *map(human_bytes, run.traffic[:2]), seen, why)
    reached, method, run, _ = finals[0]
    task, aim = shared.task_of(run.values, run.folder), f"{metric.name} {metric.text(goal)}"
    runs.print(f"goal: {aim} over {asked.link}, the soonest first · {task}", table, *runs.failed)
    if reached.seconds < math.inf:
        _print_commands(runs, method, run.values["seed"])
        return 0
    best, method, *_ = min(finals, key=lambda each: each[0].worth)
    name = shared.NAMES.get(method.name, method.name)
    runs.print(f"the goal is not reached: the best is {best.texts(metric)[1]} ({name})")
    return NOT_REACHED


def _cut(method: Method, rounds: int, words: tuple[str, ...] = ()) -> Method:
    return replace(method, rounds=rounds, words=words, every=max(1, rounds // EVALUATIONS))


def _print_commands(runs: Runs, method: Method, seed: int) -> None:
    """Write `chosen.yaml`, and print the commands that make the chosen run here and on devices."""
    asked, own = runs.asked, method.overrides(int(runs.asked.base.nodes), seed)
    content = OmegaConf.to_yaml(asked.compose(*own))
    replace_file(runs.folder / "chosen.yaml", f"# {method}\n{HEAD}{content}")
    file = ["--config-path", str(runs.folder), "--config-name", "chosen"]
    file += [f"--config-dir={asked.folders['config_dir']}"] if "config_dir" in asked.folders else []
    words = [*asked.options, *asked.task]
    kept = [word for word in words if not word.startswith("engine")]
    devices = [*kept, "engine=superlink", "network=ideal", *own[:-1]]
    runs.print(
        f"run it      python run.py {shlex.join(file)}",
        f"or          python run.py {shlex.join([*words, *asked.network, *own])}",
        f"on devices  python run.py {shlex.join(devices)}",
    )


# The fewest bytes


def _fewest(asked: Asked, limit: float, runs: Runs) -> int:
    """Search the fewest bytes within `limit` points of the uncompressed method.

    All methods run once. Of those within the limit, the two with the fewest bytes run with new
    seeds, and so on, until one is within the limit by the prediction for a further seed.
    """
    knob = [(*LARGE, f"fidelity={each}") for each in FIDELITIES]
    best = runs.with_best_rates(asked.methods(TRIED))
    words = {each: knob if each.name == shared.FEW_BYTES else [LARGE] for each in best}
    methods = [replace(each, words=own) for each in best for own in words[each]]
    plain, first = methods[0], max(asked.seeds) + 1
    runs.print(f"{len(methods)} runs of {plain.rounds} rounds")
    done = runs.make("once", methods, asked.seeds[:1])
    if plain not in done:
        raise ResultsError(runs.failed[0])
    ways = 1 if "bytes" in asked.given else 2
    size = {each: sum(found[0].traffic[:ways]) for each, found in done.items()}
    ordered = sorted(done, key=lambda each: size[each])
    few = [m for m in ordered if size[m] < size[plain] and losses(done[m], done[plain])[0] <= limit]
    chosen: Method | None = None
    most = {plain: math.inf}  # of methods: what a new seed loses at most
    while few and chosen is None:
        pair, few = few[:2], few[2:]
        tried = pair if len(done[plain]) > 1 else [plain, *pair]
        runs.print(f"{len(tried) * NEW_SEEDS} runs with new seeds: {' and '.join(map(str, pair))}")
        seeds = range(first, first + NEW_SEEDS)
        for method, found in runs.make(f"seeds-{len(few)}", tried, seeds).items():
            done[method] += found
        most |= {each: predicted(losses(done[each][1:], done[plain])) for each in pair}
        chosen = next((each for each in pair if most[each] <= limit), None)
    metric = main_of(done[plain][0].values)
    unit, scale = ("points", 1.0) if metric.share else ("%", PERCENT)
    table = table_of("method", f"loss, {unit}", "of a new seed", "up", "down", "seeds")
    for each in ordered:
        lost = losses(done[each][len(done[each]) > 1 :], done[plain])
        shown = [scale * value for value in (fmean(lost), predicted(lost))]
        texts = [decimals(value, 2) if value < math.inf else NOTHING for value in shown]
        sizes = map(human_bytes, done[each][0].traffic[:2])
        table.add_row(str(each), *texts, *sizes, str(len(lost)))
    aim = f"fewest bytes{' up' * (ways == 1)} within {limit * scale:g} {unit} of uncompressed"
    task = shared.task_of(done[plain][0].values, done[plain][0].folder)
    runs.print(f"goal: the {aim}, {metric.name} · {task}", table, *runs.failed)
    runs.print("on a part of the training set; of a new seed: the loss that 9 of 10 stay below")
    if chosen is None:
        near = min(most, key=lambda each: most[each])
        more = f", or allow more: {near} is within {most[near] * scale:.2g} {unit}"
        more = more if most[near] < math.inf else ""
        runs.print(f"no method is surely within the limit: stay uncompressed{more}")
        return NOT_REACHED
    final = replace(chosen, words=chosen.words[len(LARGE) :])
    runs.print(f"chosen: {final}")
    _print_commands(runs, final, asked.seeds[0])
    return 0


def losses(ours: Sequence[RunResult], theirs: Sequence[RunResult]) -> list[float]:
    """Return what each of `ours` loses against the run of `theirs` with the same seed.

    In points for a share, else in thirds of a percent of the other value, so that 1 is the limit of
    `within:1`. It is one infinity if a run has no value.
    """
    metric = main_of(theirs[0].values)
    values, others = (
        by_seed([run.as_run() for run in runs if not run.diverged], metric.name, metric.scale)
        for runs in (ours, theirs)
    )
    if len(values) < len(ours) or values.keys() - others.keys() or not ours:
        return [math.inf]
    sign, share = 1 if metric.higher else -1, PERCENT / 100
    points = {s: 1.0 if metric.share else abs(others[s]) * share or math.inf for s in values}
    return [sign * (others[seed] - value) / points[seed] for seed, value in values.items()]


def predicted(values: Sequence[float]) -> float:
    """Return what a further value is below in 9 of 10 cases, by Student's t; infinity for one."""
    if len(values) < 2 or math.inf in values:
        return math.inf
    from scipy.special import stdtrit  # as in `edgewire.report.estimate`

    spread = stdev(values) * math.sqrt(1 + 1 / len(values))
    return fmean(values) + float(stdtrit(len(values) - 1, CONFIDENCE)) * spread
