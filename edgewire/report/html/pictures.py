"""Draws the pictures of a report: curves, points with their Pareto front, bars, and nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path

import numpy as np

from edgewire.conf.network import Network
from edgewire.report.curves import Curve, evenly, front, mean_curve
from edgewire.report.format import human_bytes, human_seconds
from edgewire.report.html.canvas import (
    LIGHT,
    STYLE,
    Canvas,
    LegendEntry,
    mark_of,
    row_canvas,
)
from edgewire.report.html.node_table import NodeRecord
from edgewire.report.html.picture_axes import (
    Axis,
    Ticks,
    a_round,
    all_bytes,
    column,
    density,
    finish,
    limit,
    number_ends,
    set_scale,
    shortened,
)
from edgewire.report.html.run_data import WAYS, ReportGroup, ReportRuns
from edgewire.report.link_time import seconds_over, speeds
from edgewire.report.runs import by_seed, number

DIFFERENT = 20  # ends of curves that differ by this factor need a logarithmic axis
GREY = 60  # curves of groups in grey
GREY_POINTS = 40  # points of such a curve
POINTS = 160  # points of a curve in colour
NODES, CLASSES = 100, 30  # most nodes and classes of a heat map
VALUES, INDICES, HEADER, PAYLOAD = "values", "indices", "payload header", "payload"
RECORD, OTHER = "EdgeWire's record", "other records"
# the order in bars and of their colours; a payload whose parts are not known is one part
PARTS = (PAYLOAD, VALUES, INDICES, HEADER, RECORD, OTHER)


def draw_all(report: ReportRuns, nodes: Sequence[NodeRecord], links: Mapping[str, Network],
             folder: Path) -> dict[str, list[Canvas]]:  # fmt: skip
    """Write the pictures of a report into a folder; return them by the section of the page.

    A picture without data is left out.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        asynchronous = any(group.asynchronous for group in report.coloured)
        unit = "round (asynchronous: reply)" if asynchronous else "round"
        rounds = Axis(unit, column("round"), log=_differ(report, "round"), whole=True)
        name = report.metric.name
        metric = Axis(report.metric.axis, column(report.metric.name, report.metric.scale))
        virtual = Axis("virtual time", column("virtual_seconds"), human_seconds,
                       log=_differ(report, "virtual_seconds"))  # fmt: skip
        sections: dict[str, list[Canvas | None]] = {
            "metric": [
                *(draw_front(report, way) for way in WAYS),
                draw_curves(report, "rounds", rounds, metric, f"Test {name} over rounds"),
            ],
            "time": [
                draw_curves(report, "virtual_time", virtual, metric,
                            f"Test {name} over virtual time, as recorded"),
                *(_over_link(report, *link, metric) for link in links.items()),
            ],
            "bytes": [
                *(_bytes_a_round(report, way, rounds) for way in WAYS),
                *(draw_parts(report, way) for way in WAYS),
                draw_curves(report, "density", rounds, DENSITY, "Density of the updates"),
                draw_curves(report, "staleness", rounds, STALENESS, "Staleness of the updates"),
            ],
            "nodes": [*node_strips(report, nodes), *label_maps(nodes)],
        }  # fmt: skip
        found = {section: [each for each in drawn if each] for section, drawn in sections.items()}
        for canvas in chain(*found.values()):
            canvas.save(folder)
        return {section: drawn for section, drawn in found.items() if drawn}


DENSITY = Axis("entries sent (%)", density)
STALENESS = Axis("mean staleness (server steps)", column("staleness"))


def _differ(report: ReportRuns, key: str) -> bool:
    """Return whether a counter at the ends of the runs differs so much that its axis is log."""
    found = [group.mean(lambda result: number(result.get(key))) for group in report.coloured]
    ends = [end for end in found if end is not None and end > 0]
    return bool(ends) and max(ends) > DIFFERENT * min(ends)


def draw_curves(report: ReportRuns, name: str, x: Axis, y: Axis, title: str,
                note: str = "") -> Canvas | None:  # fmt: skip
    """Draw the mean curve of each group with its band; return None if no group has a curve."""
    coloured = [(g, c) for g in report.coloured if (c := averaged(g, x, y))]
    coloured = [(g, c) for g, c in coloured if len(c.x) > 1]
    if not coloured:
        return None
    canvas = Canvas(name, title, note, [mark_of(group) for group, _ in coloured])
    for group in evenly(report.others, GREY):
        if (found := averaged(group, x, y)) is not None:
            found = found.at(evenly(range(len(found.x)), GREY_POINTS))
            canvas.axes.plot(found.x, found.mean, color=LIGHT["other"], linewidth=0.7, zorder=1)
    for group, whole in coloured:
        drawn, mark = whole.at(evenly(range(len(whole.x)), POINTS)), mark_of(group)
        line = drawn.add_to(
            canvas.axes,
            LIGHT[mark.colour],
            linestyle="--" if mark.dashed else "-",
            marker=mark.marker,
            markevery=(min(group.rank or 0, len(drawn.x) - 1), max(len(drawn.x) // 5, 1)),
        )
        seeds = f"{count} seeds" if (count := len(group.histories)) > 1 else "1 seed"
        canvas.tip(line, f"{mark.text}, {seeds}: {drawn.mean[-1]:.4g} at the end")
    limit(canvas.axes, [value for _, curve in coloured for value in curve.mean])
    finish(canvas.axes, x, y)
    number_ends(canvas.axes, [(g.key, float(c.x[-1]), float(c.mean[-1])) for g, c in coloured])
    return canvas


def averaged(group: ReportGroup, x: Axis, y: Axis) -> Curve | None:
    """Return the mean curve of a group's runs; None if no round has x and y in all of them."""
    seeds = (
        zip(column("round")(rows, group), x.of(rows, group), y.of(rows, group), strict=True)
        for rows in group.histories.values()
    )
    return mean_curve(seeds, "interval", log_x=x.log)


def _over_link(report: ReportRuns, name: str, network: Network, metric: Axis) -> Canvas | None:
    axis = Axis(
        f"estimated time, {name}",
        lambda rows, group: seconds_over(network, rows, group.first, group.settings),
        human_seconds,
        log=True,
    )
    title = f"Test {report.metric.name} over the estimated time, {name}"
    return draw_curves(report, f"time_{name}", axis, metric, title, speeds(network))


def _bytes_a_round(report: ReportRuns, way: str, rounds: Axis) -> Canvas | None:
    axis = Axis(f"bytes {WAYS[way]} a round", a_round(all_bytes(way)), human_bytes, log=True)
    title = f"Bytes {WAYS[way]} a round, all nodes together"
    asynchronous = any(group.asynchronous for group in report.coloured)
    note = "Of an asynchronous run: the bytes of a reply." * asynchronous
    return draw_curves(report, f"bytes_a_round_{WAYS[way]}", rounds, axis, title, note)


def draw_front(report: ReportRuns, way: str) -> Canvas | None:
    """Draw the main metric of each group at its bytes in a direction, and the Pareto front."""
    metric = report.metric
    groups = [g for g in report.groups if g.metric == metric and g.value is not None]
    points = [(g, g.sent_mean(way), (g.value or 0.0) * metric.scale) for g in groups]
    points = [point for point in points if point[1] > 0]
    if not points:
        return None
    canvas = Canvas(
        f"{metric.name}_by_bytes_{WAYS[way]}",
        f"Test {metric.name} against bytes {WAYS[way]}",
        "The dashed line is the Pareto front: no other group has fewer bytes and is as good.",
        [mark_of(group) for group, _, _ in points if group.rank is not None],
    )
    axes, sizes, values = canvas.axes, [p[1] for p in points], [p[2] for p in points]
    best = front(sizes, values, higher=metric.higher)
    line = [sizes[at] for at in best], [values[at] for at in best]
    axes.step(
        [*line[0], max(sizes) * 1.2], [*line[1], line[1][-1]], where="post",
        color=LIGHT["muted"], linewidth=1, linestyle=(0, (3, 3)), zorder=1.5, marker="",
    )  # fmt: skip
    bars: list[tuple[float, float, float]] = []
    for group, size, value in sorted(points, key=lambda point: point[0].rank is not None):
        half = None
        seeds = by_seed(group.runs, metric.name, metric.scale).values()
        bar = mean_curve(([(0, 0, seed)] for seed in seeds), "interval")
        if bar is not None and len(seeds) > 1 and group.rank is not None:
            half = [value - bar.low, bar.high - value]
            bars.append((value, float(bar.low[0]), float(bar.high[0])))
        mark, grey = mark_of(group), group.rank is None
        (point, _, _) = axes.errorbar(
            size, value, yerr=half, color=LIGHT[mark.colour], linestyle="none", elinewidth=1,
            capsize=2.5, marker=mark.marker, markersize=4 if grey else 7, zorder=2 if grey else 4,
        )  # fmt: skip
        text = f"{metric.text(value / metric.scale)} at {human_bytes(size)} {WAYS[way]}"
        canvas.tip(point, f"{mark.text}: {text}")
    limit(axes, values, 0.1 if bars else 0.25, bars)
    finish(axes, Axis(f"all bytes {WAYS[way]} of a run", all_bytes(way), human_bytes, log=True),
           Axis(metric.axis, column(metric.name)))  # fmt: skip
    for group, size, value in points:
        axes.annotate(
            group.key, (size, value), (6, 5), textcoords="offset points", fontsize=10,
            annotation_clip=True,
        )  # fmt: skip
    return canvas


def parts_of(group: ReportGroup, way: str) -> dict[str, float]:
    """Return the mean bytes of a run in each part of the messages; their sum is all bytes.

    `way`: "uplink" or "downlink". Runs of earlier versions do not say how many bytes of a payload
    are indices and values. Then the payload is one part.
    """
    payload = _mean(group, f"{way}_bytes") or 0.0
    parts = {
        RECORD: _mean(group, f"{way}_header_bytes") or 0.0,
        OTHER: _mean(group, f"{way}_other_bytes") or 0.0,
    }
    indices, values = (_mean(group, f"{way}_{what}_bytes") for what in ("index", "value"))
    if indices is None or values is None or indices + values > payload:
        return {PAYLOAD: payload, **parts}
    return {VALUES: values, INDICES: indices, HEADER: payload - indices - values, **parts}


def _mean(group: ReportGroup, key: str) -> float | None:
    """Return the mean of a counter; None unless all runs have it."""
    found = [number(run.result.get(key)) for run in group.runs]
    known = [value for value in found if value is not None and value >= 0]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def draw_parts(report: ReportRuns, way: str) -> Canvas | None:
    """Draw which parts of the messages the bytes of each group belong to, as stacked bars."""
    rows = [(group, parts_of(group, way)) for group in report.coloured]
    rows = [(group, parts) for group, parts in rows if sum(parts.values()) > 0]
    if not rows:
        return None
    used = [part for part in PARTS if any(parts.get(part) for _, parts in rows)]
    entries = [LegendEntry(part, f"part{PARTS.index(part)}") for part in used]
    labels = [shortened(mark_of(group).text, 48) for group, _ in rows]
    title = f"Where the bytes {WAYS[way]} go"
    canvas = row_canvas(labels, f"parts_{WAYS[way]}", title, legend=entries)
    axes = canvas.axes
    for place, (group, parts) in enumerate(rows):
        total, start = sum(parts.values()), 0.0
        for part in used:
            share = 100 * parts.get(part, 0.0) / total
            (bar,) = axes.barh(
                place, share, left=start, height=0.44, color=LIGHT[f"part{PARTS.index(part)}"],
                edgecolor=LIGHT["surface"], linewidth=0.8,
            )  # fmt: skip
            size = human_bytes(parts.get(part, 0.0))
            canvas.tip(bar, f"{group.label}: {part}, {size} a run, {share:.1f} %")
            if share > 9:
                axes.text(start + share / 2, place, f"{share:.0f} %", fontsize=9.5,
                          ha="center", va="center")  # fmt: skip
            start += share
        axes.text(100, place - 0.3, human_bytes(total), fontsize=10.5, va="bottom", ha="right")
    axes.set(xlim=(0, 100), xlabel="share of all bytes (%)")
    return canvas


# Nodes


def node_strips(report: ReportRuns, nodes: Sequence[NodeRecord]) -> list[Canvas | None]:
    """Draw the values that nodes have recorded; None in place of a picture without data."""
    metric = report.metric

    def main(node: NodeRecord) -> float | None:
        found = node.count(node.group.metric.name)
        found = node.count("accuracy") if found is None else found
        return None if found is None else found * metric.scale

    return [
        _node_strip(nodes, "node_metric", f"{metric.name.capitalize()} of each node",
                    metric.axis.removeprefix("test "), main),
        _node_strip(nodes, "node_loss", "Training loss of each node", "training loss",
                    lambda node: node.count("train_loss")),
        _node_strip(nodes, "node_bytes_up", "Bytes up of each node", "bytes up",
                    lambda node: node.count("uplink_bytes"), human_bytes),
        _node_strip(nodes, "node_lag", "Seconds from a message to its reply", "mean lag",
                    lambda node: node.lag, human_seconds),
    ]  # fmt: skip


def _node_strip(
    nodes: Sequence[NodeRecord],
    name: str,
    title: str,
    label: str,
    value: Callable[[NodeRecord], float | None],
    ticks: Ticks | None = None,
) -> Canvas | None:
    """Draw a value of each node as a point: one line of points for each group."""
    groups: dict[int, list[tuple[NodeRecord, float]]] = {}
    for node in nodes:
        if (known := value(node)) is not None:
            groups.setdefault(node.group.rank or 0, []).append((node, known))
    if not any(len(points) > 1 for points in groups.values()):
        return None
    rows = [points for _, points in sorted(groups.items())]
    labels = [shortened(mark_of(points[0][0].group).text, 60) for points in rows]
    note = "A point is a node; the bar is the median, the grey box holds half of the nodes."
    canvas = row_canvas(labels, name, title, note)
    axes = canvas.axes
    for place, points in enumerate(rows):
        group, values = points[0][0].group, np.array([found for _, found in points])
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        axes.fill_betweenx([place - 0.2, place + 0.2], low, high, color=LIGHT["rule"], linewidth=0)
        axes.plot([middle] * 2, [place - 0.26, place + 0.26], color=LIGHT["ink"], linewidth=1.4)
        # the same places in every picture: no random numbers
        spread = place + 0.32 * (np.arange(len(values)) * 0.618034 % 1 - 0.5)
        (drawn,) = axes.plot(
            values, spread, linestyle="none", marker="o", markersize=3.2, alpha=0.7,
            color=LIGHT[mark_of(group).colour], markeredgewidth=0,
        )  # fmt: skip
        worst = [points[int(np.argmin(values))], points[int(np.argmax(values))]]
        ends = ", ".join(f"node {node.place}: {found:.4g}" for node, found in worst)
        canvas.tip(drawn, f"{group.label}: {len(values)} nodes; lowest and highest: {ends}")
    set_scale(axes, "x", Axis(label, column(""), ticks))
    axes.set_xlabel(label)
    return canvas


def label_maps(nodes: Sequence[NodeRecord]) -> list[Canvas]:
    """Draw the classes of each node's samples, for at most three different divisions."""
    seen: dict[tuple[tuple[float, ...], ...], list[NodeRecord]] = {}
    for _, of_a_run in groupby(nodes, key=lambda node: (node.group.label, node.seed)):
        run = list(of_a_run)
        if any(sum(node.labels) > 0 for node in run):
            seen.setdefault(tuple(node.labels for node in run), run)
    # seeds draw the division anew: one of each group's is shown
    firsts = list({run[0].group.rank: run for run in reversed(seen.values())}.values())
    return [_label_map(run, number) for number, run in enumerate(reversed(firsts[-3:]), 1)]


def _label_map(run: Sequence[NodeRecord], number: int) -> Canvas:
    from matplotlib.colors import ListedColormap

    shown = evenly([node for node in run if sum(node.labels) > 0], NODES)
    size = max(len(node.labels) for node in shown)
    counts = np.zeros((len(shown), size))
    for place, node in enumerate(shown):
        counts[place, : len(node.labels)] = node.labels
    chosen = np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:CLASSES])
    shares = 100 * counts[:, chosen] / counts.sum(axis=1, keepdims=True)
    note = f"Run: {run[0].group.label}, seed {run[0].seed}."
    note += f" {len(shown)} of {len(run)} nodes, evenly chosen." * (len(shown) < len(run))
    note += f" The {CLASSES} most frequent of {size} classes." * (size > len(chosen))
    levels = ("0 to 1 %", "1 to 5 %", "5 to 15 %", "15 to 30 %", "30 to 60 %", "60 to 100 %")
    entries = [LegendEntry(text, f"heat{at}") for at, text in enumerate(levels)]
    title = "Classes of each node's samples"
    canvas = Canvas(f"labels_{number}", title, note, entries)
    level = np.digitize(shares.T, [1, 5, 15, 30, 60])
    colours = ListedColormap([LIGHT[f"heat{at}"] for at in range(len(levels))])
    canvas.axes.pcolormesh(
        level, cmap=colours, vmin=-0.5, vmax=5.5, linewidth=0.4, edgecolor=LIGHT["surface"]
    )
    canvas.axes.grid(visible=False)
    canvas.axes.set(xlabel="node", ylabel="class")
    step = max(1, len(chosen) // 10)
    canvas.axes.set_yticks(np.arange(len(chosen))[::step] + 0.5, [str(c) for c in chosen[::step]])
    step = max(1, len(shown) // 10)
    names = [str(node.place) for node in shown[::step]]
    canvas.axes.set_xticks(np.arange(len(shown))[::step] + 0.5, names)
    return canvas
