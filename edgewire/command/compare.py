"""`python run.py compare`: what compression costs on a task, in accuracy, bytes and time.

The same task is trained without compression, with int8 values in both directions, and with few
bytes, with several seeds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

from edgewire.command.python_api import RunFailed, sweep
from edgewire.conf.network import network_named
from edgewire.report.estimate import paired
from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.link_time import seconds_over
from edgewire.report.run_result import RunResult, SweepResult
from edgewire.report.runs import read_settings

# Of each method: what the table calls it. The first one is the uncompressed one.
METHODS = {
    "fedavg": "fedavg (uncompressed)",
    "fedavg_f2i_both": "fedavg_f2i_both (int8)",
    "edgewire": "edgewire (few bytes)",
}
SEEDS = 3
# The task of a command without overrides: seconds a run, and 1,500 test samples.
TASK = ("task=activity", "dataset.samples=6000", "rounds=15", "eval_every=5")
LINK = "lora"
# with these options of a strategy the link decides which replies are used
DECIDED_BY_LINK = ("strategy.deadline", "strategy.quorum")
PICTURE = "comparison.png"
WIDTH = 100  # characters of a line, if no terminal says it
USAGE = """python run.py compare [OVERRIDES]

Trains the same task without compression, with int8 values in both directions, and with few bytes,
with three seeds each. OVERRIDES choose the task, as for python run.py: task=keywords rounds=10
network=NAME   takes another link than lora
algorithm=A,B  compares other presets with the uncompressed one
seed=0,1       takes other seeds"""


def compare(words: Sequence[str]) -> int:
    """Make the runs, print their table, and draw their curves; return the exit code.

    `words`: as in `USAGE`.
    """
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return 0
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    given = [word for word in words if not word.startswith(("algorithm=", "seed="))]
    methods = _choices(words, "algorithm=") or list(METHODS)[1:]
    methods = list(dict.fromkeys([next(iter(METHODS)), *methods]))
    seeds = _choices(words, "seed=") or [str(seed) for seed in range(SEEDS)]
    task = given or TASK
    console.print(f"{len(methods) * len(seeds)} runs: {' '.join(task)}")
    try:
        found = sweep(*task, f"algorithm={','.join(methods)}", f"seed={','.join(seeds)}")
    except RunFailed as error:
        console.print(f"error: {error}", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130
    folder, link = _short(found.folder), network_named(LINK)
    own = next((word for word in given if word.startswith("network")), "")
    console.print("", comparison(found, methods, own), sep="\n")
    lora = f"{1000 * (link.up_mbps or 0):g} kbit/s and {link.latency_ms / 1000:g} s of latency"
    console.print(
        f"\nSeeds: {', '.join(seeds)}. ± of a value: standard deviation; of a difference: 95 % "
        f"interval.\nBytes: all nodes, everything included. "
        + (f"Virtual time: over {own}." if own else f"{LINK}: {lora}.")
    )
    for failed, line in found.failed.items():
        console.print(f"{_short(failed)}: {line}", markup=False)
    if len(found):
        file = found.folder / PICTURE
        found.plot(x="uplink_bytes", log_x=True).savefig(file, dpi=100)
        console.print(f"picture  {_short(file)}")
    console.print(f"next     python -m edgewire.report {folder}    # one page with all pictures")
    if not given:
        console.print("         python run.py compare task=keywords    # another task")
    return 1 if found.failed else 0


def comparison(found: SweepResult, methods: Sequence[str], own: str = "") -> Table:
    """Return the table: for each method its accuracy, its bytes, and its time.

    `own`: the override with the user's network, which the virtual time is of; "": there is none,
    and the time is an estimate for a thin link.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    metric = found[0].as_run().metric.name if len(found) else "accuracy"
    heads = (metric, "difference", "up", "down", "virtual time" if own else f"over {LINK}")
    table.add_column("method")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    plain = _values(found, methods[0])
    for method in methods:
        runs = [run for run in found if run.overrides.get("algorithm") == method]
        value, *others = _cells(runs, bool(own))
        difference = NOTHING if method == methods[0] else _difference(found, method, plain)
        table.add_row(METHODS.get(method, method), value, difference, *others)
    return table


def _values(found: SweepResult, method: str) -> dict[int, float]:
    """Return the main metric of a method's runs by seed, in percent if it is a share."""
    values = {}
    for run in found:
        metric = run.as_run().metric
        value = run.metrics[metric.name]
        if run.overrides.get("algorithm") == method and value is not None:
            values[int(run.values["seed"])] = value * metric.scale
    return values


def _difference(found: SweepResult, method: str, plain: dict[int, float]) -> str:
    """Return the mean difference to the uncompressed runs with the same seeds."""
    mean = paired(_values(found, method), plain)
    if mean is None:
        return NOTHING
    return f"{mean.mean:+.3g}" + ("" if mean.half is None else f" ± {mean.half:.3g}")


def _cells(runs: Sequence[RunResult], own: bool) -> list[str]:
    if not runs:
        return [NOTHING] * 4
    metric = runs[0].as_run().metric
    values = [run.metrics[metric.name] for run in runs]
    known = [value for value in values if value is not None]
    spread = f" ± {metric.text(stdev(known)).removesuffix(' %')}" if len(known) > 1 else ""
    shown = f"{metric.text(fmean(known))}{spread}" if known else NOTHING
    if any(run.diverged for run in runs):
        shown += " (diverged)"
    sizes = [fmean(sizes) for sizes in zip(*(run.traffic[:2] for run in runs), strict=True)]
    times = [run.values["virtual_seconds"] if own else _seconds(run) for run in runs]
    sure = [time for time in times if time is not None]
    return [
        shown,
        *map(human_bytes, sizes),
        human_seconds(fmean(sure)) if len(sure) == len(times) else NOTHING,
    ]


def _seconds(result: RunResult) -> float | None:
    """Return the estimated seconds of a run over the link; None if it cannot be estimated."""
    run, settings = result.as_run(), read_settings(result.folder)
    if any(settings.get(key, "null") not in ("null", "1", "1.0") for key in DECIDED_BY_LINK):
        return None
    seconds = seconds_over(network_named(LINK), run.history(), run.result, settings)
    return next(reversed(seconds), None)


def _choices(words: Sequence[str], key: str) -> list[str]:
    """Return the values that the words give for a key; [] if they do not."""
    given = [word.removeprefix(key) for word in words if word.startswith(key)]
    return given[-1].split(",") if given else []


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
