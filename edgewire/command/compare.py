"""`python run.py compare`: what compression costs on a task, in accuracy, bytes and time.

The same task is trained without compression, with int8 values in both directions, and with few
bytes, with several seeds each. With `goal=` it searches (`edgewire.command.search`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean

from rich.console import Console
from rich.table import Table

from edgewire.command.methods import NAMES, UNCOMPRESSED, Asked, Method, Runs
from edgewire.command.python_api import RunFailed
from edgewire.command.run_result import RunResult
from edgewire.conf.network import network_named
from edgewire.conf.schema import ConfigError
from edgewire.report.estimate import Estimate, estimate, paired
from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.link_time import seconds_over
from edgewire.report.metric import ACCURACY, MainMetric, main_of
from edgewire.report.reader import ResultsError
from edgewire.report.runs import read_settings

LINK = "lora"  # of the column of times, if the words name no network
# with these options of a strategy the link decides which replies are used
DECIDED_BY_LINK = ("strategy.deadline", "strategy.quorum")
WIDTH = 110  # characters of a line, if no terminal says it
MOST = 1.0  # points, or thirds of a percent: an interval that reaches further says too little
PERCENT = 3.0  # of an error or a perplexity are as much as one point of a share
USAGE = """python run.py compare [OVERRIDES]

Trains the same task without compression, with int8 values in both directions, and with few bytes,
with three seeds each. OVERRIDES choose the task, as for python run.py: task=keywords rounds=10
network=NAME   takes another link than lora: a name, or Mbit/s down and up, as in network=10/1
algorithm=A,B  compares other presets with the uncompressed one
seed=0,1       takes other seeds
--config-dir   names the folder with your own choices, as for python run.py

goal=accuracy:0.9 network=lora  searches the method that reaches it soonest; minutes=5: in less time
goal=within:1                   searches the fewest bytes within 1 point (or 3 % of an error or a
                                perplexity) of uncompressed; bytes=up: the fewest bytes up"""
OWN_DATA = "python run.py compare task=table dataset.root=FILE.csv dataset.target=COLUMN"


def compare(words: Sequence[str]) -> int:
    """Make the runs and print what they say; return the exit code.

    `words`: as in `USAGE`.
    """
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return 0
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    try:
        asked = Asked(words)
        if "goal" in asked.given:
            from edgewire.command.search import search  # it imports this module

            return search(asked, console)
        return _compare(asked, console)
    except (RunFailed, ConfigError, ResultsError) as error:
        console.print(f"error: {error}", markup=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def _compare(asked: Asked, console: Console) -> int:
    if beside := [key for key in ("minutes", "bytes") if key in asked.given]:
        raise ConfigError(f"{beside[0]}= goes with goal=, as in goal=accuracy:0.9 network=lora")
    methods, seeds = asked.methods(NAMES), asked.seeds
    title = f", {methods[0].rounds} rounds · {len(methods)} methods x {len(seeds)} seeds"
    runs = Runs(asked, console, title)
    methods = methods if asked.is_known else runs.with_best_rates(methods)
    done = runs.make("runs", methods, seeds, every=0)
    found = {each: done.get(each, []) for each in methods}
    runs.print(comparison(found, asked.link), *notes(list(chain(*done.values())), asked))
    runs.print(*runs.failed)
    network, plain = asked.network or [f"network={LINK}"], found[methods[0]]
    goal = ["python", "run.py", "compare", *asked.options, *asked.task, easy_goal(plain), *network]
    own = [] if asked.task else [(OWN_DATA, "your own data")]
    report = f"python -m edgewire.report {shlex.quote(str(runs.folder / 'runs'))}"
    nexts = [(report, "one page with all pictures"), *own, (shlex.join(goal), "more methods")]
    for number, (command, what) in enumerate(nexts):
        runs.print(f"{'' if number else 'next':10} {command:70} # {what}")
    return 1 if runs.failed or any(run.diverged for run in chain(*done.values())) else 0


def main_metric(runs: Sequence[RunResult]) -> MainMetric:
    """Return the main metric of the first run; the accuracy without one."""
    return main_of(runs[0].values) if runs else ACCURACY


def table_of(*heads: str) -> Table:
    """Return an empty table: a column of names, and columns of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, justify="right" if table.columns else "left", no_wrap=True)
    return table


def comparison(found: Mapping[Method, Sequence[RunResult]], link: str = "") -> Table:
    """Return the table of methods; the first one is the uncompressed one.

    `link`: the name of the runs' own link, of which the times are; "": times are estimates for a
    thin link.
    """
    metric = main_metric(list(chain(*found.values())))
    time = f"over {link or LINK}"
    table = table_of("method", metric.name, "against uncompressed", "up", "down", time)
    plain = by_seed(next(iter(found.values())), metric)
    for method, runs in found.items():
        values = by_seed(runs, metric)
        mean = estimate(values.values())
        shown = NOTHING if mean is None else f"{mean.text(metric.places(mean.mean))}{metric.unit}"
        shown = "diverged" if any(run.diverged for run in runs) else shown
        difference = paired(values, plain) if method.name != UNCOMPRESSED else None
        times = [run.values["virtual_seconds"] if link else _seconds(run) for run in runs]
        sure = [time for time in times if time is not None]
        table.add_row(
            str(method),
            shown,
            NOTHING if difference is None else verdict(difference, metric, fmean(plain.values())),
            *(
                human_bytes(fmean(run.traffic[way] for run in runs)) if runs else NOTHING
                for way in (0, 1)
            ),
            human_seconds(fmean(sure)) if sure and len(sure) == len(times) else NOTHING,
        )
    return table


def by_seed(runs: Sequence[RunResult], metric: MainMetric) -> dict[int, float]:
    """Return a metric of runs by seed, in percent if it is a share."""
    values = {int(run.values["seed"]): run.values.get(metric.name) for run in runs}
    return {seed: value * metric.scale for seed, value in values.items() if value is not None}


def verdict(difference: Estimate, metric: MainMetric, base: float) -> str:
    """Return a difference to the uncompressed runs, and what it says: a loss, a gain, no loss.

    `base`: the mean of the uncompressed runs; both are in percent if the metric is a share.
    """
    half = difference.half
    if difference.mean == 0 and not half:
        return "0: no loss seen"
    places, unit = (1, " points") if metric.share else (metric.places(base), "")
    loss = -difference.mean if metric.higher else difference.mean
    most = MOST if metric.share else MOST * abs(base) * PERCENT / 100
    if half is None:
        word = "one seed"
    elif not difference.noise:
        word = "a loss" if loss > 0 else "a gain"
    elif loss > most:
        word = "likely a loss"
    else:
        word = "no loss seen" if loss + half <= most else "more seeds can tell"
    sign = "+" if difference.mean > 0 else ""
    return f"{sign}{difference.text(places)}{unit}: {word}"


def notes(runs: Sequence[RunResult], asked: Asked) -> list[str]:
    """Return lines that say what ± means, what the bytes are of, and whether updates failed."""
    metric, one = main_metric(runs), ""
    test = next((run.values.get("data", {}).get("test") for run in runs), None)
    if test and metric.name == ACCURACY.name:
        one = f"; one test sample is {100 / test:.2g} points"
    seeds = len(asked.seeds)
    lines = f"±: 95 % interval over {seeds} seeds{one}. " if seeds > 1 else ""
    link = f"{asked.link}: by the virtual clock."
    if not asked.link:
        lora = network_named(LINK)
        link = f"{LINK}: {1000 * (lora.up_mbps or 0):g} kbit/s, {lora.latency_ms / 1000:g} s."
    failed, used = (sum(run.values[k] for run in runs) for k in ("failures", "client_updates"))
    updates = f"{failed:,} of {used + failed:,} updates failed: the report says at which nodes"
    if not failed:
        updates = f"no update failed in all runs: {used:,} were used"
    nodes = int(asked.base.nodes)
    return [f"{lines}All bytes of {nodes} nodes. {link}", f"{'nodes':10} {updates}"]


def easy_goal(runs: Sequence[RunResult]) -> str:
    """Return a goal that is a little easier than the mean of the runs, as a word."""
    metric = main_metric(runs)
    values = by_seed(runs, metric).values()
    if not values or metric.name == "loss":
        return "goal=within:1"
    mean = fmean(values) / metric.scale
    return f"goal={metric.name}:{mean - 0.02 * abs(mean) * (1 if metric.higher else -1):.2g}"


def _seconds(result: RunResult) -> float | None:
    """Return the estimated seconds of a run over the link; None if it cannot be estimated."""
    run, settings = result.as_run(), read_settings(result.folder)
    if any(settings.get(key, "null") not in ("null", "1", "1.0") for key in DECIDED_BY_LINK):
        return None
    seconds = seconds_over(network_named(LINK), run.history(), run.result, settings)
    return next(reversed(seconds), None)
