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
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from statistics import covariance, fmean, variance

from edgewire.command import compare as shared
from edgewire.command.compare import Comparison, Method, say
from edgewire.conf.schema import ConfigError
from edgewire.report.comparison import PERCENT, comparison, one_point, sizes, table_of
from edgewire.report.estimate import estimate
from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.reader import ResultsError
from edgewire.report.runs import Run, by_seed, first_at
from edgewire.task.errors import listed
from edgewire.task.metric import Metric

# methods that train whole models in rounds of several local steps; `minutes=` takes the first ones
TRIED = (
    *(shared.UNCOMPRESSED, shared.FEW_BYTES, "fedavg_f2i_both", "fedavg_dgc", "stc"),
    *("fedavg_topk", "edgewire_async", "sparseloco", "fedavg_f2i", "fedadam_topk", "fedbuff"),
)
FIDELITIES = ("low", "0.2", "medium", "0.5", "high", "3")  # of the few bytes
FINALISTS = 3  # beside the uncompressed method
LARGE = "dataset.validate=0.3"  # a part of the training set that decides about a point
# Each seed holds back another tenth, so that ten seeds measure with all of the training set.
FOLDS = (shared.VALIDATE, "dataset.fold=${seed}")
HOPELESS = 3.0  # times the limit: more than one seed alone may lose
NEW_SEEDS = 9  # with the first one ten, which decide whether a method is within the limit
SURE = 1.45  # deviations above the mean of ten values: 9 of 10 further ones are below (Student's t)
NOT_REACHED = 3  # exit code


def search(asked: Comparison) -> int:
    """Search for what `goal=` asks, print the answer and the commands; return the exit code.

    Raises `ConfigError` for a goal that the task cannot have.
    """
    if any(word.startswith("engine=") and word != "engine=local" for word in asked.task):
        raise ConfigError("leave engine= out: the search needs the virtual clock of engine=local")
    name, _, value = asked.given["goal"].partition(":")
    bound = minutes = math.nan
    with suppress(ValueError):
        bound, minutes = float(value), float(asked.given.get("minutes", "inf"))
    if not math.isfinite(bound) or not minutes > 0:
        example = "goal=accuracy:0.9 network=lora minutes=5, or goal=within:1"
        raise ConfigError(f"goal= takes METRIC:VALUE, and minutes= a number, as in {example}")
    if name != "within":
        return _soonest(asked, _metric(asked, name, bound), bound, minutes)
    if bound <= 0 or asked.given.get("bytes", "up") != "up" or minutes < math.inf:
        raise ConfigError("goal=within:POINTS takes points above 0, and bytes=up; no minutes=")
    return _fewest(asked, bound)


def _metric(asked: Comparison, name: str, bound: float) -> Metric:
    from edgewire.conf.build import objective_of  # it imports torch

    metrics = {each.name: each for each in objective_of(asked.config).metrics}
    text = f"goal={asked.given['goal']}"
    if name not in metrics:
        raise ConfigError(f"{text}: the task has no metric {name}; it has {', '.join(metrics)}")
    if metrics[name].share and not 0 < bound <= 1:
        raise ConfigError(f"{text}: {name} is a share from 0 to 1, as in {name}:0.95")
    if not asked.link or "bytes" in asked.given:
        raise ConfigError(f"{text} takes network=lora, or Mbit/s as in network=10/1, and no bytes=")
    return metrics[name]


# The soonest


def reached(run: Run, metric: Metric, level: float) -> tuple[float, float]:
    """Return when a run has reached a level of a metric, and its best value; the least is best.

    The time is in virtual seconds, infinity for never. The value is negative if higher ones are
    better, and infinity if the run has none or has diverged.
    """
    rows = [row for row in run.history() if row.get(metric.name) is not None]
    best = metric.best([row[metric.name] for row in rows])
    if run.diverged or best is None:
        return math.inf, math.inf
    found = first_at(rows, level, metric)
    seconds = found["virtual_seconds"] if found else math.inf
    return seconds, -best if metric.higher else best


def judge(runs: Mapping[Method, Run], metric: Metric, goal: float) -> list[Method]:
    """Return each preset with its best rate, the soonest at a common level first.

    The level is the goal, or the value that half of the presets reach if that is easier. Runs that
    have diverged come last. Raises `ResultsError` for a goal that the untrained model reaches.
    """
    best: dict[str, float] = {}
    for method, run in runs.items():
        seconds, value = reached(run, metric, goal)
        best[method.name] = min(value, best.get(method.name, math.inf))
        if seconds == 0:
            text = f"{metric.name} {metric.text(goal)}"
            raise ResultsError(f"the untrained model already reaches {text}: give a harder goal")
    half = sorted(best.values())[(len(best) - 1) // 2] * (-1 if metric.higher else 1)
    level = goal if metric.reaches(half, goal) else half
    chosen: dict[str, Method] = {}
    for method in sorted(runs, key=lambda each: reached(runs[each], metric, level)):
        chosen.setdefault(method.name, method)
    return [*chosen.values()]


def _soonest(asked: Comparison, metric: Metric, goal: float, minutes: float) -> int:
    methods, rows = asked.methods(TRIED), list[tuple[Method, Run, str, str]]()
    say(f"goal: {metric.name} {metric.text(goal)} over {asked.link} · {asked.title}")
    if minutes < math.inf:
        began = time.monotonic()
        asked.make(methods[:2], asked.seeds[:1])
        whole = (time.monotonic() - began) / 2  # seconds of a run, and of what a preset takes
        count = int(60 * minutes / whole) - (FINALISTS + 1) * len(asked.seeds)
        few, most = methods[: max(2, count)], len(methods)
        names = listed([each.name for each in few], most)
        say(f"in {minutes:g} minutes {len(few)} of {most} methods are tried: {names}")
        methods = few
    tried = [*chain(*map(asked.at_rates, methods))]
    for share in (4, 2):
        found = asked.make(tried, asked.seeds[:1], asked.rounds // share, shared.VALIDATE)
        ordered = judge({method: runs[0] for method, runs in found.items()}, metric, goal)
        others = [each for each in ordered if each.name != shared.UNCOMPRESSED]
        left = others[max(FINALISTS, math.ceil(len(others) / 2)) :]
        rows[:0] = [(each, found[each][0], "1", f"after 1/{share} of the rounds") for each in left]
        tried = [each for each in ordered if each not in left]
    finals = []
    for method, runs in asked.make(tried, asked.seeds).items():
        runs.sort(key=lambda run: reached(run, metric, goal))
        finals.append((method, runs[len(runs) // 2], str(len(runs)), ""))  # the seed in the middle
    finals.sort(key=lambda each: reached(each[1], metric, goal))
    heads = ("method", "to the goal", "best", "up", "down", "seeds", "left the search")
    table = table_of(*heads)
    for method, run, count_of_seeds, why in [*finals, *rows]:
        seconds, best = reached(run, metric, goal)
        time_text = human_seconds(seconds) if seconds < math.inf else "not reached"
        texts = (time_text, shown(best, metric), *map(human_bytes, sizes(run)))
        table.add_row(str(method), *texts, count_of_seeds, why)
    say(table, *asked.failed)
    method, run, *_ = finals[0]
    if reached(run, metric, goal)[0] < math.inf:
        print_commands(asked, method, run.seed)
        return 0
    best, name = min((reached(run, metric, goal)[1], method.name) for method, run, *_ in finals)
    name = shared.NAMES.get(name, name)
    say(f"the goal is not reached: the best is {shown(best, metric)} ({name})")
    return NOT_REACHED


def shown(best: float, metric: Metric) -> str:
    """Return a best value of `reached` as text."""
    return metric.text(-best if metric.higher else best) if best < math.inf else NOTHING


def print_commands(asked: Comparison, method: Method, seed: int) -> None:
    """Print the commands that make a method's run here, and on devices."""
    own = [*asked.overrides(method), f"nodes={asked.nodes}"]
    kept = [word for word in asked.task if not word.startswith(("engine", "network"))]
    here = [*asked.options, *asked.task, *own, f"seed={seed}"]
    devices = [*asked.options, *kept, "engine=superlink", "network=ideal", *own]
    say(f"run it      python run.py {shlex.join(here)}")
    say(f"on devices  python run.py {shlex.join(devices)}")


# The fewest bytes


def losses(ours: Sequence[Run], theirs: Sequence[Run]) -> list[float]:
    """Return what each of `ours` loses against the mean of `theirs`.

    In points for a share, else in thirds of a percent of the mean, so that 1 is the limit of
    `within:1`. It is one infinity if a run has no value.
    """
    metric = theirs[0].metric
    values, others = (by_seed(runs, metric.name, metric.scale).values() for runs in (ours, theirs))
    if not others or len(values) < len(ours) or any(run.diverged for run in (*ours, *theirs)):
        return [math.inf]
    mean, sign = fmean(others), 1 if metric.higher else -1
    point = one_point(metric, mean) or math.inf
    return [sign * (mean - value) / point for value in values]


def further(lost: Sequence[float]) -> float:
    """Return what a further seed loses at most in 9 of 10 cases; `lost`: by ten seeds."""
    found = estimate(lost)
    return math.inf if found is None or found.std is None else found.mean + SURE * found.std


def _on_folds(
    runs: Mapping[Method, Sequence[Run]], ours: Method, plain: Method, lost: Sequence[float]
) -> float:
    """Return what `further` does, by runs on the same folds; `lost`: by seeds on one fold.

    The losses on folds vary by the seed and by the samples, which are those of the uncompressed
    runs, too. So the covariance of both is the part of the samples. The rest is the variance of a
    further seed, if `lost` does not have more, and the error of the mean is added.
    """
    if not {ours, plain} <= runs.keys():
        return math.inf
    mine, theirs = (losses(runs[each], runs[plain]) for each in (ours, plain))
    if len(mine) != len(theirs) or len(mine) < 2:
        return math.inf
    differences = [a - b for a, b in zip(mine, theirs, strict=True)]
    seeds = max(variance(mine) - max(covariance(mine, theirs), 0), variance(lost))
    return fmean(differences) + SURE * math.sqrt(seeds + variance(differences) / len(mine))


def _fewest(asked: Comparison, limit: float) -> int:
    """Search the fewest bytes within `limit` points of the uncompressed method.

    All methods run once. Of those that are not hopeless, the two with the fewest bytes run with new
    seeds, and so on, until a further seed of one is surely within the limit. Its loss may grow with
    the number of samples, so it is measured with nine tenths of them, too, in ten folds.
    """
    say(f"goal: the fewest bytes within {limit:g} points of uncompressed · {asked.title}")
    ways = 1 if "bytes" in asked.given else 2
    methods: list[Method] = []
    for each in asked.with_best_rates(asked.methods(TRIED)):
        knob = FIDELITIES if each.name == shared.FEW_BYTES else ()
        methods += [replace(each, words=(f"fidelity={value}",)) for value in knob] or [each]
    plain = methods[0]
    began = time.monotonic()
    done = asked.make(methods, asked.seeds[:1], 0, LARGE)
    pace = human_seconds((time.monotonic() - began) / len(methods) * 6 * NEW_SEEDS)
    if plain not in done:
        raise ResultsError(next(iter(asked.failed)))
    size = {each: sum(sizes(runs[0])[:ways]) for each, runs in done.items()}
    ordered = sorted(done, key=lambda each: size[each])
    fewer = ordered[: ordered.index(plain)]
    few = [m for m in fewer if losses(done[m], done[plain])[0] <= HOPELESS * limit]
    say(f"{len(few)} methods may be good: {NEW_SEEDS} new seeds decide, {pace} at most for two")
    first, chosen, lost = max(asked.seeds) + 1, None, dict[Method, list[float]]()
    more: dict[Method, list[Run]] = {}
    while chosen is None and few:
        pair, few = few[:2], few[2:]
        new, seeds = pair if lost else [plain, *pair], range(first, first + NEW_SEEDS)
        for method, runs in asked.make(new, seeds, 0, LARGE).items():
            done[method] += runs
        lost |= {each: losses(done[each], done[plain]) for each in new}
        good = [each for each in pair if further(lost[each]) <= limit]
        if good:
            folds = range(first, first + NEW_SEEDS + 1)
            more |= asked.make([*({plain} - more.keys()), *good], folds, 0, *FOLDS)
        chosen = next((m for m in good if _on_folds(more, m, plain, lost[m]) <= limit), None)
    table = {str(each): done[each] for each in sorted(ordered, key=lambda each: each != plain)}
    say(comparison(table, str(plain), asked.link), *asked.failed)
    share = done[plain][0].metric.share
    aim = f"{limit:g} points" if share else f"{limit * PERCENT:g} %"
    for method, values in lost.items():
        count = sum(value <= limit for value in values)
        text = f"{count} of {len(values)} seeds lose at most {aim}"
        say(f"{method}: {text} against the mean of uncompressed, on training samples")
    if chosen is None:
        say("no method is surely within the limit: stay uncompressed")
        if limit < (own := further(lost.get(plain, []))) < math.inf:
            why = "seeds of uncompressed differ by more than the limit, so none can be"
            say(f"{why}: more rounds= may help, or goal=within:{math.ceil(own)}")
        return NOT_REACHED
    say(f"chosen: {chosen}")
    print_commands(asked, chosen, asked.seeds[0])
    return 0
