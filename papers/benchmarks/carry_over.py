"""Sums up each method of the page `carry_over` over the page's tasks.

    python -m papers.benchmarks.carry_over     # JSON on stdout, from the stored runs

A gain is the mean difference over pairs of runs with the same seed, and positive where a method is
better: in percentage points for a share, in percent of the other method's mean over these seeds for
a perplexity or an error. `fedavg`: gains over FedAvg; `best`: over the better of FedAvg and DiLoCo
on each task. `half`: half of the 95 % interval of a mean gain, by Student's t over the tasks.
Ratios are FedAvg's bytes over the method's, all bytes counted; `up` and `down` are geometric means
over the tasks.
"""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean

from edgewire.report.estimate import estimate, paired
from edgewire.report.runs import Run, by_seed
from edgewire.report.table import sent
from papers.make.definitions import TableDefinition, read_definition
from papers.make.run_archive import ROOT, archive_file, read_archive
from papers.make.tables import FilledTable

UNCOMPRESSED = ("fedavg", "diloco")


def gain(ours: Sequence[Run], theirs: Sequence[Run]) -> tuple[bool, float]:
    """Return whether the main metric is a share, and by how much `ours` is better."""
    metric = theirs[0].metric
    values, others = (by_seed(runs, metric.name, metric.scale) for runs in (ours, theirs))
    found = paired(values, others)
    assert found is not None, "no seed in common"
    both = values.keys() & others.keys()
    scale = 1 if metric.share else 100 / fmean(others[seed] for seed in both)
    return metric.share, (1 if metric.higher else -1) * scale * found.mean + 0.0  # not -0


def ratio(ours: Sequence[Run], theirs: Sequence[Run], way: str) -> float:
    """Return how many times fewer bytes `ours` send; `way`: "uplink" or "downlink"."""
    mine, others = (fmean(by_seed(runs, sent(way)).values()) for runs in (ours, theirs))
    return others / mine


def summary(tasks: Sequence[Mapping[str, Sequence[Run]]], method: str) -> dict[str, float]:
    """Return a method's worst and mean gains, with intervals, and its ratios.

    `tasks`: runs by method.
    """
    result = {}
    for against in ("fedavg", "best"):
        gains: dict[bool, list[float]] = {True: [], False: []}
        for runs in tasks:
            found = [gain(runs[method], runs[other]) for other in UNCOMPRESSED]
            share, value = found[0] if against == "fedavg" else min(found)
            gains[share].append(value)
        for share, name in ((True, "points"), (False, "percent")):
            result[f"{against}, worst {name}"] = min(gains[share])
            mean = estimate(gains[share])
            assert mean is not None, "no task"
            result[f"{against}, mean {name}"] = mean.mean
            result[f"{against}, half {name}"] = mean.half or 0.0
    for way in ("uplink", "downlink"):
        ratios = [ratio(runs[method], runs["fedavg"], way) for runs in tasks]
        name = way.removesuffix("link")
        result |= {name: geometric_mean(ratios), f"{name}, least": min(ratios)}
    return result


def main() -> None:
    """Print the JSON."""
    page = read_definition(ROOT, ROOT / "papers" / "pages" / "carry_over.yaml")
    stored = read_archive(archive_file(ROOT, page.name))
    found = [each for each in page.tables if isinstance(each, TableDefinition)]
    tables = [FilledTable(each, stored) for each in found]
    rows = [{row.id: table.runs_of(row) for row in table.definition.rows} for table in tables]
    tasks = [each for each in rows if each.keys() >= {*UNCOMPRESSED}]
    methods = [name for name in tasks[0] if all(runs.get(name) for runs in tasks)]
    print(json.dumps({name: summary(tasks, name) for name in methods}, indent=1))


if __name__ == "__main__":
    main()
