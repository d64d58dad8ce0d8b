"""`python run.py compare`: what compression costs on a task, in accuracy, bytes and time.

The same task is trained without compression, with int8 values in both directions, and with few
bytes, with several seeds each. With `goal=` it searches (`edgewire.command.search`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean

from rich.console import Console
from rich.table import Table

from edgewire.command.methods import (
    NAMES,
    UNCOMPRESSED,
    Asked,
    Case,
    Method,
    Runs,
    asked_for,
    is_known,
    methods_of,
    with_best_rates,
)
from edgewire.command.python_api import RunFailed
from edgewire.command.run_result import RunResult
from edgewire.conf.network import network_named
from edgewire.conf.schema import ConfigError
from edgewire.report.estimate import Estimate, estimate, paired
from edgewire.report.format import NOTHING, decimals, human_bytes, human_seconds
from edgewire.report.link_time import seconds_over
from edgewire.report.metric import MainMetric
from edgewire.report.reader import ResultsError
from edgewire.report.runs import read_settings

LINK = "lora"  # of the column of times, if the words name no network
# with these options of a strategy the link decides which replies are used
DECIDED_BY_LINK = ("strategy.deadline", "strategy.quorum")
WIDTH = 110  # characters of a line, if no terminal says it
POINTS, PERCENT = 1.0, 3.0  # an interval that reaches further into losses says too little
USAGE = """python run.py compare [OVERRIDES]

Trains the same task without compression, with int8 values in both directions, and with few bytes,
with three seeds each. OVERRIDES choose the task, as for python run.py: task=keywords rounds=10
network=NAME   takes another link than lora: a name, or Mbit/s down and up, as in network=10/1
algorithm=A,B  compares other presets with the uncompressed one
seed=0,1       takes other seeds
--config-dir   names a folder with your own choices, as for python run.py

goal=accuracy:0.9 network=NAME   searches the method that reaches it soonest; minutes=5: in less time
goal=within:1  searches the fewest bytes within 1 point (or 3 %) of uncompressed; bytes=up: of those
               up alone"""
OWN_DATA = "python run.py compare task=table dataset.root=FILE.csv dataset.target=COLUMN"


def compare(words: Sequence[str]) -> int:
    """Make the runs and print what they say; return the exit code.

    `words`: as in `USAGE`.
    """
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return 0
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    try:
        asked = asked_for(words)
        if "goal" in asked.given:
            from edgewire.command.search import search  # it imports this module

            return search(asked, console)
        return _compare(asked, console)
    except (RunFailed, ConfigError, ResultsError) as error:
        console.print(f"error: {error}", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130


def _compare(asked: Asked, console: Console) -> int:
    if beside := [key for key in ("minutes", "bytes") if key in asked.given]:
        raise ConfigError(f"{beside[0]}= goes with goal=, as in goal=accuracy:0.9 network=lora")
    methods, seeds = methods_of(asked, asked.names(NAMES)), asked.seeds
    title = f", {asked.rounds} rounds · {len(methods)} methods x {len(seeds)} seeds"
    runs = Runs(asked, console, title)
    if not is_known(asked):
        console.print("a task of your own: the learning rates are searched first, in short runs")
        methods = with_best_rates(asked, methods, runs)
    cases = [Case(method, seed, asked.rounds) for seed, method in product(seeds, methods)]
    done = runs.make("runs", cases)
    found = {each: [run for case, run in done.items() if case.method == each] for each in methods}
    console.print(comparison(found, asked.link), footnote(done.values(), asked), sep="\n")
    for line in [
        *nodes_lines(done.values()),
        *(f"{case.method}: {line}" for case, line in runs.failed.items()),
    ]:
        console.print(line, markup=False)
    own = shlex.join(asked.words)
    network = asked.network or ("network=lora",)
    goal = shlex.join([f"goal={goal_like(found[methods[0]])}", *network])
    folder = shlex.quote(str(runs.folder / "runs"))
    nexts = {
        f"python -m edgewire.report {folder}": "one page with all pictures",
        OWN_DATA: "your own data",
        f"python run.py compare {own}{' ' * bool(own)}{goal}": "eleven methods, the soonest first",
    }
    if asked.task:
        del nexts[OWN_DATA]
    print_next(console, nexts)
    return 1 if runs.failed else 0


def print_next(console: Console, commands: Mapping[str, str]) -> None:
    """Print commands, each with what it is for."""
    head = "next"
    for command, what in commands.items():
        console.print(f"{head:10} {command}    # {what}", markup=False)
        head = ""


def comparison(found: Mapping[Method, Sequence[RunResult]], link: str = "") -> Table:
    """Return the table of methods; the first one is the uncompressed one.

    `link`: the name of the runs' own link, of which the times are; "": times are estimates for a
    thin link.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    metric = main_metric([run for runs in found.values() for run in runs])
    heads = (metric.name, "against uncompressed", "up", "down", f"over {link or LINK}")
    table.add_column("method", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    plain = by_seed(next(iter(found.values())), metric)
    for method, runs in found.items():
        values = by_seed(runs, metric)
        difference = NOTHING
        if method.name != UNCOMPRESSED:
            base = fmean(plain.values()) if plain else 0.0
            difference = verdict(paired(values, plain), metric, base)
        shown = with_interval(estimate(values.values()), metric)
        if any(run.diverged for run in runs):
            shown = "diverged"
        sizes = [fmean(ways) for ways in zip(*(run.traffic[:2] for run in runs), strict=True)]
        times = [run.values["virtual_seconds"] if link else _seconds(run) for run in runs]
        sure = [time for time in times if time is not None]
        time = human_seconds(fmean(sure)) if sure and len(sure) == len(times) else NOTHING
        row = [shown, difference, *map(human_bytes, sizes or []), *([] if sizes else [NOTHING] * 2)]
        table.add_row(str(method), *row, time)
    return table


def main_metric(runs: Sequence[RunResult]) -> MainMetric:
    """Return the main metric of the first run; the accuracy without one."""
    return runs[0].as_run().metric if runs else MainMetric("accuracy", True, True)


def by_seed(runs: Sequence[RunResult], metric: MainMetric) -> dict[int, float]:
    """Return a metric of runs by seed, in percent if it is a share."""
    values = {int(run.values["seed"]): run.values.get(metric.name) for run in runs}
    return {seed: value * metric.scale for seed, value in values.items() if value is not None}


def with_interval(found: Estimate | None, metric: MainMetric) -> str:
    """Return a mean with its interval and unit as text."""
    if found is None:
        return NOTHING
    return f"{found.text(metric.places(found.mean))}{metric.unit}"


def verdict(difference: Estimate | None, metric: MainMetric, base: float) -> str:
    """Return a difference to the uncompressed runs, and what it says: a loss, a gain, no loss.

    `base`: the mean of the uncompressed runs; both are in percent if the metric is a share.
    """
    if difference is None:
        return NOTHING
    if difference.mean == 0 and not difference.half:
        return "0: no loss seen"
    places = 1 if metric.share else metric.places(base)
    mean, unit = decimals(difference.mean, places), " points" if metric.share else ""
    sign = "" if mean.startswith("-") or float(mean) == 0 else "+"
    loss = -difference.mean if metric.higher else difference.mean
    if difference.half is None:
        return f"{sign}{mean}{unit}: one seed"
    most = POINTS if metric.share else abs(base) * PERCENT / 100
    if not difference.noise:
        word = "a loss" if loss > 0 else "a gain"
    else:
        word = "no loss seen" if loss + difference.half <= most else "more seeds can tell"
        word = "likely a loss" if loss > most else word
    return f"{sign}{mean} ± {decimals(difference.half, places)}{unit}: {word}"


def footnote(runs: Sequence[RunResult], asked: Asked) -> str:
    """Return the lines that say what ± means, what the bytes are of, and what the link is."""
    metric, one = main_metric(list(runs)), ""
    test = next((run.values.get("data", {}).get("test") for run in runs), None)
    if test and metric.name == "accuracy":
        one = f"; one test sample is {100 / test:.2g} points"
    link = f" {asked.link}: of the virtual clock."
    if not asked.link:
        lora = network_named(LINK)
        rate = f"{1000 * (lora.up_mbps or 0):g} kbit/s, {lora.latency_ms / 1000:g} s"
        link = f" {LINK}: {rate}, without duty cycles."
    seeds = f"±: 95 % interval over {len(asked.seeds)} seeds{one}. "
    nodes = f"All bytes of {int(asked.base.nodes)} nodes."
    return f"{seeds if len(asked.seeds) > 1 else ''}{nodes}{link}"


def nodes_lines(runs: Sequence[RunResult]) -> list[str]:
    """Return a line that says whether updates have failed."""
    failed = sum(run.values["failures"] for run in runs)
    used = sum(run.values["client_updates"] for run in runs)
    if not runs:
        return []
    line = f"all {used:,} updates of all nodes were used, in all runs"
    if failed:
        line = f"{failed:,} of {used + failed:,} updates failed; the report says at which nodes"
    return [f"{'nodes':10} {line}"]


def goal_like(runs: Sequence[RunResult]) -> str:
    """Return a goal that is a little easier than the mean of the runs, for a command."""
    metric = main_metric(runs)
    values = [v for run in runs if (v := run.values.get(metric.name)) is not None]
    if not values or metric.name == "loss":
        return "within:1"
    middle = fmean(values)
    return f"{metric.name}:{middle - 0.02 * abs(middle) * (1 if metric.higher else -1):.2g}"


def _seconds(result: RunResult) -> float | None:
    """Return the estimated seconds of a run over the link; None if it cannot be estimated."""
    run, settings = result.as_run(), read_settings(result.folder)
    if any(settings.get(key, "null") not in ("null", "1", "1.0") for key in DECIDED_BY_LINK):
        return None
    seconds = seconds_over(network_named(LINK), run.history(), run.result, settings)
    return next(reversed(seconds), None)
