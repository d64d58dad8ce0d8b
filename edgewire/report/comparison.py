"""The table that compares methods on one task: values, differences in words, bytes, and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean

from rich.table import Table

from edgewire.conf.network import network_named
from edgewire.report.estimate import Estimate, estimate, paired
from edgewire.report.format import NOTHING, human_bytes, human_seconds
from edgewire.report.link_time import RADIOS, joules, own_links, seconds_over, spent
from edgewire.report.runs import Run, by_seed, number, whole_bytes
from edgewire.task.metric import Metric, main_of

LINK = "lora"  # of the columns of times and energy, if the runs have no network
PERCENT = 3.0  # of an error or a perplexity are as much as one point of a share
LOSS, GAIN, NO_LOSS, UNCLEAR, ONE_SEED = "a loss", "a gain", "no loss seen", "unclear", "one seed"
FORMS = (human_bytes, human_bytes, human_seconds, "{:.3g} J".format)  # of `costs`


def table_of(*heads: str) -> Table:
    """Return an empty table: a column of names, and columns of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, justify="right" if table.columns else "left", no_wrap=True)
    return table


def comparison(found: Mapping[str, Sequence[Run]], plain: str | None, link: str = "") -> Table:
    """Return the table of methods by their names, with the seeds of each.

    `plain`: the name of the uncompressed one; None: there is none. `link`: the name of the runs'
    own link, of which the times are; "": times are estimates for a thin link.
    """
    metric = main_of(next(chain(*found.values())).result)
    heads = ["against uncompressed"] * (plain is not None)
    forms = FORMS if (link or LINK) in RADIOS else FORMS[:-1]
    energy = ["energy"] * (len(forms) == len(FORMS))
    lengths = {name: {rounds_of(run) for run in runs} for name, runs in found.items()}
    several = len(set().union(*lengths.values())) > 1
    last = [f"over {link or LINK}", *energy, *["rounds"] * several]
    table = table_of("method", metric.name, *heads, "up", "down", *last)
    base = by_seed(found.get(plain or "", ()), metric.name, metric.scale)
    for name, runs in found.items():
        values = by_seed(runs, metric.name, metric.scale)
        mean = estimate(values.values())
        shown = NOTHING if mean is None else f"{mean.text(metric.places(mean.mean))}{metric.unit}"
        shown = "diverged" if any(run.diverged for run in runs) else shown
        difference = paired(values, base) if name != plain else None
        said = NOTHING if difference is None else verdict(difference, metric, fmean(base.values()))
        numbers = zip(*(costs(run, link) for run in runs), strict=True)
        means = [None if None in each else fmean(each) for each in numbers]
        cells = (NOTHING if n is None else f(n) for f, n in zip(forms, means, strict=False))
        rounds = [", ".join(f"{count:g}" for count in sorted(lengths[name]))] * several
        table.add_row(name, shown, *[said] * len(heads), *cells, *rounds)
    return table


def rounds_of(run: Run) -> float:
    """Return a run's planned rounds; of an asynchronous run the updates of an average node."""
    rounds, nodes = (number(run.result.get(key)) or 0 for key in ("rounds", "nodes"))
    return rounds / max(nodes, 1) if "staleness" in run.result else rounds


def costs(run: Run, link: str) -> tuple[float, float, float | None, float | None]:
    """Return a run's bytes up and down, and a node's seconds and joules over a link.

    `link`: as in `comparison`. None: there is no estimate, or the link's radio is not known.
    """
    network = own_links(run.configuration) if link else network_named(LINK)
    told = run.history(), run.result, run.configuration
    seconds = run.result["virtual_seconds"] if link else [None, *seconds_over(network, *told)][-1]
    progress, _ = spent(*told)
    radio, energy = RADIOS.get(link or LINK), None
    if radio and progress and seconds is not None:
        energy = joules(radio, network, progress[-1], seconds)
    return *sizes(run), seconds, energy


def sizes(run: Run) -> tuple[float, float]:
    """Return all bytes of a run, up and down."""
    return whole_bytes(run.result, "uplink")[0], whole_bytes(run.result, "downlink")[0]


def one_point(metric: Metric, base: float) -> float:
    """Return what counts as one point, as tables show values; `base`: the uncompressed mean."""
    return 1.0 if metric.share else abs(base) * PERCENT / 100


def verdict(difference: Estimate, metric: Metric, base: float) -> str:
    """Return a difference to the uncompressed runs, and what it says; the arguments of `judged`."""
    places, unit = (1, " points") if metric.share else (metric.places(base), "")
    text = signed(difference, places) + unit if difference.mean or difference.half else "0"
    return f"{text}: {judged(difference, metric, base)}"


def judged(difference: Estimate, metric: Metric, base: float) -> str:
    """Return what a difference to uncompressed runs says: one of the texts above.

    `base`: the mean of the uncompressed runs; both are in percent if the metric is a share.
    """
    loss, half = -difference.mean if metric.higher else difference.mean, difference.half
    if half is None:
        return ONE_SEED if loss else NO_LOSS
    if not difference.noise and loss:
        return LOSS if loss > 0 else GAIN
    return NO_LOSS if loss + half <= one_point(metric, base) else UNCLEAR


def signed(difference: Estimate, places: int) -> str:
    """Return a difference with its sign and its interval, with `places` decimals."""
    return "+" * (round(difference.mean, places) > 0) + difference.text(places)
