"""The answers at the top of a report; of one run they are those of its screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from edgewire.report.comparison import GAIN, LOSS, NO_LOSS, ONE_SEED, UNCLEAR, judged, signed
from edgewire.report.estimate import Estimate, paired
from edgewire.report.format import human_bytes
from edgewire.report.html.run_data import WAYS, ReportGroup, ReportRuns, reference_of
from edgewire.report.node_table import NodeRecord
from edgewire.report.runs import by_seed, whole_bytes
from edgewire.report.summary import answers, bytes_told, node_rows, times, trained

TRAINED = "trained"  # the answer that is the first line
SEEDS = 3  # below this number of seeds the report asks for more
NO_SEED = "no common seed"
# verdict -> what a sentence says about a group with it, and the group that it is compared with
WORDS = {
    NO_LOSS: "shows no loss from",
    UNCLEAR: "may differ from",
    LOSS: "is worse than",
    GAIN: "is better than",
    ONE_SEED: "has one seed in common with",
    NO_SEED: "has no seed in common with",
}
NO_REFERENCE = (
    "No evaluated run has less compression to compare with: add one with compression=none "
    "downlink=full and the same seeds."
)


class Comparison(NamedTuple):
    """How a group's main metric differs from that of the group to compare with.

    `difference`: the mean over the seeds that both have; of a share in points. None: there is no
    such seed. `verdict`: a key of `WORDS`.
    """

    group: ReportGroup
    reference: ReportGroup
    difference: Estimate | None
    verdict: str

    @property
    def number(self) -> str:
        """The difference with its sign and its interval, without its unit; "" without one."""
        found = self.difference
        return "" if found is None else signed(found, self.group.metric.places(found.mean))

    @property
    def sentence(self) -> str:
        """What the runs say about the group."""
        metric, fewer, told = self.group.metric, times(self.group.whole_ratio or 0.0), ""
        if self.difference:
            told = f" ({self.number}{' points' * metric.share}; seeds: {self.difference.count})"
        return (
            f"{self.group.label}, with {fewer} times fewer bytes than Flower: {metric.name} "
            f"{WORDS[self.verdict]} {self.reference.label}{told}."
        )


def compare(group: ReportGroup, groups: Sequence[ReportGroup]) -> Comparison | None:
    """Compare a compressed group with the least compressed one; None if there is none."""
    reference = reference_of(group, groups)
    if reference is None or group.value is None:
        return None
    metric = group.metric
    ours, theirs = (by_seed(g.runs, metric.name, metric.scale) for g in (group, reference))
    found = paired(ours, theirs)
    verdict = NO_SEED if found is None else judged(found, metric, fmean(theirs.values()))
    return Comparison(group, reference, found, verdict)


def findings(report: ReportRuns, nodes: Sequence[NodeRecord]) -> dict[str, str]:
    """Return the answers that the runs allow, by short names, the most important first."""
    told, runs = _trained(report), {"runs": _runs(report)}
    if (run := report.single) and run.folder is not None:
        own = told | answers(run)
        return own if report.records[0].fine else own | runs
    if report.groups:
        told["compression"] = _compression(report)
        told["bytes"] = _bytes(report)
        told["nodes"] = _nodes(report, nodes)
    return told | runs


def _trained(report: ReportRuns) -> dict[str, str]:
    """Return what the runs train, by its name; {} if their results do not say it."""
    run = report.groups[0].runs[0] if report.groups else None
    if run is None or run.folder is None or not run.result.get("model"):
        return {}
    line = trained(run)
    if not report.single:  # the last part is the method, in which the groups may differ
        tasks = len({group.task for group in report.groups})
        line = f"{line.rpartition(' · ')[0]} · " if tasks == 1 else f"{tasks} tasks · "
        line += f"{len(report.records)} runs with {len(report.groups)} different settings"
    return {TRAINED: line}


def _compression(report: ReportRuns) -> str:
    """Return whether compression hurts, and the group without a loss that has the fewest bytes."""
    found = [c for group in report.groups if (c := compare(group, report.groups))]
    if not found:
        return NO_REFERENCE
    worse = sum(each.verdict == LOSS for each in found)
    wide = [each for each in found if each.verdict == UNCLEAR]
    best = max(
        found, key=lambda each: (each.verdict in (NO_LOSS, GAIN), each.group.whole_ratio or 0)
    )
    if worse == len(found):
        short = "It hurts the model."
    elif worse:
        short = f"It depends: {worse} of {len(found)} compressed groups are worse."
    elif wide:
        short, best = f"Not known: the difference is {wide[0].number}.", wide[0]
    elif best.verdict in (NO_LOSS, GAIN):
        short = "No loss is measurable."
    else:
        short = "Not known: one seed does not tell a difference from noise."
    few = any(each.difference is None or each.difference.count < SEEDS for each in found)
    more = " More seeds make the intervals narrower: give each setting seed=0,1,2." * few
    return f"{short} {best.sentence}{more}"


def _bytes(report: ReportRuns) -> str:
    runs = [run for group in report.groups for run in group.runs]
    both = [human_bytes(sum(whole_bytes(run.result, way)[0] for run in runs)) for way in WAYS]
    least = min(report.groups, key=lambda group: sum(map(group.sent_mean, WAYS)))
    few = f" {least.label} sends the fewest: {bytes_told(least.first)}."
    few *= least.whole_ratio is not None and len({group.task for group in report.groups}) == 1
    return f"{both[0]} up, {both[1]} down in all runs.{few}"


def _nodes(report: ReportRuns, nodes: Sequence[NodeRecord]) -> str:
    runs = [list(own) for _, own in groupby(nodes, key=lambda node: (id(node.group), node.seed))]
    told = []
    for own in runs:
        group, seed = own[0].group, own[0].seed
        result = next(run.result for run in group.runs if run.seed == seed)
        rows = node_rows(result, own, group.metric)
        kinds = [f"{kind}: {text}" for kind, text in rows.items() if kind != "nodes"]
        told += [f"{group.label}, seed {seed}: {'; '.join(kinds)}."] * bool(kinds)
    if not nodes:
        return "Not recorded: the runs hold no file nodes.json."
    if not told:
        return "None is slow, weak or silent, and none failed."
    return f"In {len(told)} of {len(runs)} runs some are slow, weak or silent, or failed. {told[0]}"


def _runs(report: ReportRuns) -> str:
    bad = [record for record in report.records if not record.fine]
    counts = Counter(record.outcome.partition(":")[0] for record in bad)
    failed, updates = (
        sum(record.count(key) or 0 for record in report.records)
        for key in ("failures", "client_updates")
    )
    fine = "" if bad or failed else ", without a problem"
    told = [f"{len(report.records) - len(bad)} finished{fine}."]
    if bad:
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common(5))
        told.append(f"{len(bad)} of {len(report.records)} need a look: {kinds}.")
    if failed:
        told.append(f"{failed:,.0f} of {failed + updates:,.0f} updates failed.")
    return " ".join(told)
