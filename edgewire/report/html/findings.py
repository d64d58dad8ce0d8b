"""The questions that a report answers at its top, each in a sentence or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from edgewire.report.estimate import Estimate, paired
from edgewire.report.format import decimals, human_bytes, human_seconds
from edgewire.report.html.node_table import SLOW, NodeRecord, notable
from edgewire.report.html.run_data import (
    NEARLY,
    WAYS,
    ReportGroup,
    ReportRuns,
    reference_of,
    unlike,
)
from edgewire.report.runs import by_seed, whole_bytes
from edgewire.report.table import plain, sent

SEEDS = 3  # below this number of seeds the report asks for more
FEW = 3  # groups of which each gets a sentence of its own
NOISE, WORSE, BETTER, ONE_SEED, NO_SEED = "noise", "worse", "better", "one seed", "no common seed"
NARROW = 1.0  # half an interval that tells of no loss: points of a share, else % of the metric


class Finding(NamedTuple):
    """A question, its short answer, the sentences after it, and the section that tells more."""

    question: str
    answer: str
    sentences: list[str]
    section: str


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
    def text(self) -> str:
        """The difference with its interval, such as "-0.3 ± 0.2 points"."""
        unit = " points" * self.group.metric.share
        return "unknown" if self.difference is None else f"{self.number}{unit}"

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
            return ""
        places = self.group.metric.places(found.mean)
        return "+" * (round(found.mean, places) > 0) + found.text(places)


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
    """Return the answers that the runs allow, the most important first."""
    found = [_runs(report)]
    if report.groups:
        found = [_compression(report), _bytes(report), _nodes(nodes), _settings(report), *found]
    return found


def _compression(report: ReportRuns) -> Finding:
    question = "Does compression hurt the model?"
    found = [c for group in report.groups if (c := compare(group, report.groups))]
    if not found:
        return Finding(question, "Not known from these runs.", [_no_reference(report)], "summary")
    counts = Counter(c.verdict for c in found)
    sentences = [_sentence(c) for c in found] if len(found) <= FEW else _counted(found, counts)
    sentences += [*_allowed(found if len(found) <= FEW else _best(found)), *_advice(found)]
    return Finding(question, _short(found, counts), sentences, "summary")


def _no_reference(report: ReportRuns) -> str:
    if all(group.value is None for group in report.groups):
        return "No run has evaluated its model."
    return (
        "There is no run with less compression to compare with: add one with "
        "`compression=none downlink=full` and the same seeds."
    )


def _short(found: Sequence[Comparison], counts: Counter[str]) -> str:
    total = len(found)
    if counts[WORSE] == total:
        return "Yes."
    if counts[WORSE]:
        return f"It depends: {counts[WORSE]} of {total} compressed groups are worse."
    if wide := [c for c in found if c.verdict == NOISE and not c.narrow]:
        worst = max(wide, key=lambda c: c.difference.half or 0.0 if c.difference else 0.0)
        seeds = worst.difference.count if worst.difference else 0
        which = f" of {worst.group.label}" * (total > 1)
        return (
            f"Not known with {seeds} seeds: the difference{which} is {worst.text}; more seeds "
            "would tell."
        )
    if counts[NOISE] + counts[BETTER]:
        seeds = min(c.difference.count for c in found if c.difference is not None)
        return f"No loss is measurable{' with so few seeds' * (seeds < SEEDS)}."
    return "Not known: one seed does not tell a difference from noise."


def _sentence(found: Comparison) -> str:
    group, metric = found.group, found.group.metric
    kind = "uncompressed" if (found.reference.whole_ratio or 0) < NEARLY else "less compressed"
    other = unlike(group, found.reference)[:3]
    also = f" They also differ in {', '.join(other)}." if other else ""
    saved = f"{_times(group.whole_ratio)} fewer bytes than Flower"
    start = f"{group.label}, with {saved}:"
    seeds = 0 if found.difference is None else found.difference.count
    if found.verdict == NO_SEED:
        return f"{start} no seed in common with the {kind} {found.reference.label}.{also}"
    if found.verdict == ONE_SEED:
        return f"{start} {metric.name} differs by {found.text} from the {kind} " + (
            f"{found.reference.label}, by one seed.{also}"
        )
    what = {NOISE: "is within the noise of", WORSE: "is worse than", BETTER: "is better than"}
    return f"{start} {metric.name} {what[found.verdict]} the {kind} {found.reference.label} " + (
        f"({found.text}, {seeds} seeds).{also}"
    )


def _counted(found: Sequence[Comparison], counts: Counter[str]) -> list[str]:
    words = {NOISE: "within the noise", WORSE: "worse", BETTER: "better",
             ONE_SEED: "with one seed", NO_SEED: "without a common seed"}  # fmt: skip
    parts = [f"{counts[kind]} {text}" for kind, text in words.items() if counts[kind]]
    sentences = [
        f"{len(found)} compressed groups against the least compressed ones: {', '.join(parts)}."
    ]
    start = "The fewest bytes without a measurable loss:"
    sentences += [f"{start} {_sentence(best)}" for best in _best(found)]
    if counts[WORSE]:
        bad = [c for c in found if c.verdict == WORSE]
        worst = max(bad, key=lambda c: abs(c.difference.mean) if c.difference else 0)
        sentences.append(f"The largest loss: {_sentence(worst)}")
    return sentences


def _best(found: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparison with the fewest bytes among those without a measurable loss."""
    good = [c for c in found if c.verdict in (NOISE, BETTER)]
    return sorted(good, key=lambda c: -(c.group.whole_ratio or 0))[:1]


def _allowed(found: Sequence[Comparison]) -> list[str]:
    """Return the largest loss that an interval around no measurable difference still contains."""
    worst: tuple[float, Comparison] | None = None
    for each in found:
        if each.verdict == NOISE and each.difference is not None:
            mean, half = each.difference.mean, each.difference.half or 0.0
            loss = half - mean if each.group.metric.higher else half + mean
            if worst is None or loss > worst[0]:
                worst = loss, each
    if worst is None:
        return []
    loss, each = worst
    metric = each.group.metric
    size = f"{decimals(loss, metric.places(loss))}{' points' * metric.share}"
    return [f"The 95 % interval of {each.group.label} does not exclude a loss of {size}."]


def _advice(found: Sequence[Comparison]) -> list[str]:
    if any(each.difference is None or each.difference.count < SEEDS for each in found):
        return ["More seeds make the intervals narrower: give each setting `seed=0,1,2`."]
    return []


def _times(ratio: float | None) -> str:
    return "an unknown factor" if ratio is None else f"{ratio:.3g} times"


def _bytes(report: ReportRuns) -> Finding:
    runs = [run for group in report.groups for run in group.runs]
    found = {way: [whole_bytes(run.result, way) for run in runs] for way in WAYS}
    total = {way: sum(size for size, _ in each) for way, each in found.items()}
    whole = sum(size for each in found.values() for _, size in each)
    answer = f"{human_bytes(total['uplink'])} up and {human_bytes(total['downlink'])} down"
    ratio = whole / sum(total.values()) if sum(total.values()) else None
    many = len(runs) > 1
    known = [g for g in report.groups if g.whole_ratio is not None]
    sentences = [f"Flower without compression would send {human_bytes(whole)}, {_times(ratio)} as "
                 "many."]  # fmt: skip
    if len(known) > 1:
        least = min(known, key=lambda g: sum(g.sent_mean(way) for way in total))
        up, down = (human_bytes(least.sent_mean(way)) for way in total)
        fewer = " and ".join(_times(least.ratio(plain(way), sent(way))) for way in total)
        sentences.append(
            f"{least.label} sends the fewest: {up} up and {down} down a run, {fewer} fewer than "
            "Flower."
        )
    return Finding("How many bytes?", f"{answer}{' in all runs' * many}.", sentences, "bytes")


def _nodes(nodes: Sequence[NodeRecord]) -> Finding:
    question = "Which node is slow?"
    if not any(node.lag is not None or node.unanswered for node in nodes):
        return Finding(
            question, "Not recorded.", ["The runs hold no file `nodes.json` with lags."], "nodes"
        )
    slow = [node for node in notable(nodes) if node.slow and not node.unanswered]
    lost = Counter(f"node {n.place}" for n in nodes if n.unanswered)
    failed = Counter[str]()
    for node in nodes:
        failed[f"node {node.place}"] += int(node.failures)
    sentences = []
    if slow:
        first = slow[0]
        sentences.append(
            f"In {first.group.label}, seed {first.seed}, the replies of node {first.place} take "
            f"{human_seconds(first.lag)} in the mean, {_times(first.times)} the lag of the "
            "fastest quarter."
        )
    if lost:
        sentences.append(f"Without an answer to the last message: {_listed(list(lost))}.")
    if failing := [(name, count) for name, count in failed.most_common(3) if count]:
        text = ", ".join(f"{name} ({count})" for name, count in failing)
        sentences.append(f"Most failures: {text}.")
    slowest = dict.fromkeys(f"node {node.place}" for node in slow)
    answer = f"{_listed(list(slowest)).capitalize()}." if slow else (
        f"None: no mean lag is above {SLOW:g} times the usual one."
    )  # fmt: skip
    if lost:
        one = "one node does" if len(lost) == 1 else f"{len(lost)} nodes do"
        answer += f" But {one} not answer."
    return Finding(question, answer, sentences, "nodes")


def _listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _settings(report: ReportRuns) -> Finding:
    question = "What differs between the runs?"
    if len(report.groups) == 1:
        return Finding(question, "Nothing but the seed.", [], "settings")
    parts = [
        f"{key} ({len({group.overrides.get(key) for group in report.groups})} values)"
        for key in report.keys
    ]
    shown = ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")
    return Finding(question, f"{shown}.", [], "settings")


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
