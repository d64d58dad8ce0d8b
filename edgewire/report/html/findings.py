"""The questions that a report answers at its top, each in a sentence or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from edgewire.report.estimate import Estimate, paired
from edgewire.report.format import human_bytes
from edgewire.report.html.run_data import (
    LESS,
    WAYS,
    ReportGroup,
    ReportRuns,
    reference_of,
    unlike,
)
from edgewire.report.node_table import NodeRecord
from edgewire.report.runs import by_seed, whole_bytes
from edgewire.report.summary import answers, node_rows, trained
from edgewire.report.table import plain, sent

TRAINED = "trained"  # the question whose answer is the first line
SEEDS = 3  # below this number of seeds the report asks for more
FEW = 3  # groups of which each gets a sentence of its own
NOISE, WORSE, BETTER, ONE_SEED, NO_SEED = "noise", "worse", "better", "one seed", "no common seed"
# what a sentence says about a group with this verdict, and the group that it is compared with
WORDS = {
    NOISE: "is within the noise of",
    WORSE: "is worse than",
    BETTER: "is better than",
    ONE_SEED: "has one seed in common with",
    NO_SEED: "has no seed in common with",
}
NARROW = 1.0  # half an interval that tells of no loss: points of a share, else % of the metric


class Finding(NamedTuple):
    """A question, its short answer, the sentences after it, and the section that tells more."""

    question: str
    answer: str
    sentences: list[str]
    section: str

    @property
    def row(self) -> tuple[str, str]:
        """A short name and the first sentences, for a terminal."""
        name, texts = self.section or self.question, [self.answer, *self.sentences[:1]]
        return name, " ".join([self.question, *texts] if name == "summary" else texts)


class Comparison(NamedTuple):
    """How a group's main metric differs from that of the group to compare with.

    `difference`: the mean over the seeds that both have; of a share in points. None: there is no
    such seed. `verdict`: one of the constants above.
    """

    group: ReportGroup
    reference: ReportGroup
    difference: Estimate | None
    verdict: str

    @property
    def narrow(self) -> bool:
        """Whether the interval of the difference is so small that a loss would show."""
        if self.difference is None or self.difference.half is None:
            return False
        value = 100.0 if self.group.metric.share else abs(self.reference.value or 0.0)
        return self.difference.half <= NARROW * value / 100

    @property
    def number(self) -> str:
        """The difference with its sign and its interval, without its unit."""
        if (found := self.difference) is None:
            return "unknown"
        places = self.group.metric.places(found.mean)
        return "+" * (round(found.mean, places) > 0) + found.text(places)

    @property
    def text(self) -> str:
        """The difference with its interval, such as "-0.3 ± 0.2 points"."""
        return self.number + " points" * self.group.metric.share

    @property
    def sentence(self) -> str:
        """What the runs say about the group."""
        metric, reference = self.group.metric, self.reference
        found = f"{self.group.label}, with {_times(self.group.whole_ratio)} fewer bytes than Flower"
        found += f": {metric.name} {WORDS[self.verdict]} {reference.label}"
        if self.difference is not None:
            found += f" ({self.text}; seeds: {self.difference.count})"
        other = unlike(self.group, reference)[:3]
        return f"{found}." + f" They also differ in {', '.join(other)}." * bool(other)


def compare(group: ReportGroup, groups: Sequence[ReportGroup]) -> Comparison | None:
    """Compare a compressed group with the least compressed one; None if there is none."""
    reference = reference_of(group, groups)
    if reference is None or group.value is None:
        return None
    metric = group.metric
    ours, theirs = (by_seed(g.runs, metric.name, metric.scale) for g in (group, reference))
    found = paired(ours, theirs)
    if found is None:
        verdict = NO_SEED
    elif found.half is None:
        verdict = ONE_SEED
    elif found.noise or not found.mean:
        verdict = NOISE
    else:
        verdict = BETTER if (found.mean > 0) == metric.higher else WORSE
    return Comparison(group, reference, found, verdict)


def findings(report: ReportRuns, nodes: Sequence[NodeRecord]) -> list[Finding]:
    """Return the answers that the runs allow, the most important first.

    Of one run they are those of its screen.
    """
    if (run := report.single) and run.folder is not None:
        told = _trained(report) | answers(run.result, run.folder)
        ended = [_runs(report)] * (not report.records[0].fine)
        return [*(Finding(name, text, [], "") for name, text in told.items()), *ended]
    found = [_runs(report)]
    if report.groups:
        found = [_compression(report), _bytes(report), _nodes(report, nodes), *found]
    return [*(Finding(name, text, [], "") for name, text in _trained(report).items()), *found]


def _trained(report: ReportRuns) -> dict[str, str]:
    """Return what the runs train, by the question's name; {} if their results do not say it."""
    run = report.groups[0].runs[0] if report.groups else None
    if run is None or run.folder is None or not run.result.get("model"):
        return {}
    line, several = trained(run.result, run.folder), not report.single
    tasks = {group.task for group in report.groups}
    if several:  # the last part is the method, in which the groups may differ
        line = f"{line.rpartition(' · ')[0]} · " if len(tasks) == 1 else ""
        line += f"{len(report.records)} runs with {len(report.groups)} different settings"
    return {TRAINED: line}


def _compression(report: ReportRuns) -> Finding:
    question = "Does compression hurt the model?"
    found = [c for group in report.groups if (c := compare(group, report.groups))]
    if not found:
        return Finding(question, "Not known from these runs.", [_no_reference(report)], "summary")
    counts = Counter(c.verdict for c in found)
    told, sentences = found, []
    if len(found) > FEW:
        good = [c for c in found if c.verdict in (NOISE, BETTER)]
        told = sorted(good, key=lambda c: -(c.group.whole_ratio or 0))[:1]
        parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        sentences.append(f"{len(found)} compressed groups against the least compressed: {parts}.")
        sentences += ["The fewest bytes without a measurable loss:"] * len(told)
    sentences += [comparison.sentence for comparison in told]
    if any(each.difference is None or each.difference.count < SEEDS for each in found):
        sentences.append("More seeds make the intervals narrower: give each setting seed=0,1,2.")
    return Finding(question, _short(found, counts), sentences, "summary")


def _no_reference(report: ReportRuns) -> str:
    if all(group.value is None for group in report.groups):
        return "No run has evaluated its model."
    if all((group.whole_ratio or 1.0) < LESS for group in report.groups):
        return "These runs are not compressed."
    return (
        "There is no run with less compression to compare with: add one with "
        "compression=none downlink=full and the same seeds."
    )


def _short(found: Sequence[Comparison], counts: Counter[str]) -> str:
    total = len(found)
    if counts[WORSE] == total:
        return "Yes."
    if counts[WORSE]:
        return f"It depends: {counts[WORSE]} of {total} compressed groups are worse."
    if wide := [c for c in found if c.verdict == NOISE and not c.narrow]:
        which = f" of {wide[0].group.label}" * (total > 1)
        return f"Not known: the difference{which} is {wide[0].text}; more seeds would tell."
    if counts[NOISE] + counts[BETTER]:
        seeds = min(c.difference.count for c in found if c.difference is not None)
        return f"No loss is measurable{' with so few seeds' * (seeds < SEEDS)}."
    return "Not known: one seed does not tell a difference from noise."


def _times(ratio: float | None) -> str:
    return "an unknown factor" if ratio is None else f"{ratio:.3g} times"


def _bytes(report: ReportRuns) -> Finding:
    runs = [run for group in report.groups for run in group.runs]
    all_runs = [human_bytes(sum(whole_bytes(run.result, way)[0] for run in runs)) for way in WAYS]
    sentences = []
    if known := [group for group in report.groups if group.whole_ratio is not None]:
        least = min(known, key=lambda group: sum(map(group.sent_mean, WAYS)))
        up, down = (human_bytes(least.sent_mean(way)) for way in WAYS)
        fewer = " and ".join(_times(least.ratio(plain(way), sent(way))) for way in WAYS)
        sentences.append(
            f"{least.label} sends the fewest: {up} up and {down} down a run, {fewer} fewer than "
            "Flower without compression."
        )
    answer = f"{all_runs[0]} up and {all_runs[1]} down in all runs."
    return Finding("How many bytes?", answer, sentences, "bytes")


def _nodes(report: ReportRuns, nodes: Sequence[NodeRecord]) -> Finding:
    question, sentences = "What about the nodes?", []
    runs = [list(own) for _, own in groupby(nodes, key=lambda node: (id(node.group), node.seed))]
    for own in runs:
        group, seed = own[0].group, own[0].seed
        result = next(run.result for run in group.runs if run.seed == seed)
        rows = node_rows(result, own, group.metric)
        told = [f"{kind}: {text}" for kind, text in rows.items() if kind != "nodes"]
        sentences += [f"{group.label}, seed {seed}: {'; '.join(told)}."] * bool(told)
    if not nodes:
        return Finding(question, "Not recorded: the runs hold no file nodes.json.", [], "nodes")
    answer = f"In {len(sentences)} of {len(runs)} runs some are slow, weak or silent, or failed."
    answer = answer if sentences else "None is slow, weak or silent, and none failed."
    return Finding(question, answer, sentences[:FEW], "nodes")


def _runs(report: ReportRuns) -> Finding:
    bad = [record for record in report.records if not record.fine]
    fine = len(report.records) - len(bad)
    sentences = []
    if bad:
        kinds = Counter(record.outcome.partition(":")[0] for record in bad)
        text = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5))
        sentences = [f"{len(bad)} of {len(report.records)} need a look: {text}."]
    failed, updates = (
        sum(record.count(key) or 0 for record in report.records)
        for key in ("failures", "client_updates")
    )
    if failed:
        sentences.append(f"{failed:,.0f} of {failed + updates:,.0f} updates failed.")
    answer = f"{fine} finished" + (", without a problem." if not bad and not failed else ".")
    return Finding("Did all runs finish?", answer, sentences, "runs")
