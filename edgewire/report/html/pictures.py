"""Draws the pictures of a report: curves, points with their Pareto front, bars, and nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgewire.conf.network import Network
from edgewire.report.comparison import LINK
from edgewire.report.curves import (
    Axis,
    OfRows,
    Values,
    all_bytes,
    band,
    column,
    finish,
    front,
    mean_curve,
    y_axis,
)
from edgewire.report.format import human_bytes, one_line
from edgewire.report.html.canvas import Canvas, LegendEntry, mark_of, row_canvas
from edgewire.report.html.run_data import WAYS, ReportGroup, ReportRuns
from edgewire.report.link_time import own_name, seconds_over, speeds
from edgewire.report.node_table import NodeRecord
from edgewire.report.runs import Row, by_seed
from edgewire.report.style import LIGHT, PLAIN, STYLE, Ticks, name_ends, set_scale
from edgewire.task.metric import LOSS

if TYPE_CHECKING:  # matplotlib takes a second to import: only what draws imports it
    from matplotlib.axes import Axes

DIFFERENT = 20  # ends of curves that differ by this factor need a logarithmic axis
LABEL = 48  # characters of a label above a row
VALUES, INDICES, HEADER = "values", "indices", "rest of the payload"
RECORD, OTHER = "EdgeWire's record", "other records"
PARTS = (VALUES, INDICES, HEADER, RECORD, OTHER)  # the order in bars, and of their colours


def draw_all(report: ReportRuns, nodes: Sequence[NodeRecord], links: Mapping[str, Network],
             folder: Path) -> dict[str, list[Canvas]]:  # fmt: skip
    """Write the pictures of a report into a folder; return them by the section of the page.

    A picture without data is left out.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        asynchronous = any("staleness" in group.first for group in report.coloured)
        unit = "round (asynchronous: reply)" if asynchronous else "round"
        rounds = Axis(unit, column("round"), log=_differ(report, "round"))
        name = report.metric.name
        metric = y_axis(name, report.metric)
        losses = {"loss": "Test", "train_loss": "Training"} if report.single else {}
        own = own_name(report.groups[0].settings) or LINK if report.single else ""
        links = {own: links[own]} if own in links else links
        virtual = Axis("virtual time (s)", column("virtual_seconds"),
                       log=_differ(report, "virtual_seconds"))  # fmt: skip
        sections: dict[str, list[Canvas | None]] = {
            "metric": [
                *(draw_front(report, way) for way in WAYS if not report.single),
                draw_curves(report, "rounds", rounds, metric, f"Test {name} over rounds"),
                *(draw_curves(report, key, rounds, y_axis(key, LOSS), f"{title} loss over rounds")
                  for key, title in losses.items() if key != name),
            ],
            "time": [
                draw_curves(report, "virtual_time", virtual, metric,
                            f"Test {name} over virtual time, as recorded"),
                *(_over_link(report, *link, metric) for link in links.items()),
            ],
            "bytes": [
                *(_bytes_a_round(report, way, rounds) for way in WAYS),
                *(draw_parts(report, way) for way in WAYS),
                draw_curves(report, "density", rounds, Axis("entries sent (%)", density),
                            "Density of the updates"),
            ],
            "nodes": node_strips(report, nodes),
        }  # fmt: skip
        found = {section: [each for each in drawn if each] for section, drawn in sections.items()}
        for canvas in chain(*found.values()):
            canvas.save(folder)
        return {section: drawn for section, drawn in found.items() if drawn}


def a_round(total: OfRows) -> OfRows:
    """Return the function that computes by how much a total grew per round before each row.

    Of an asynchronous run this is the growth per reply. The first row has none.
    """

    def read(rows: Sequence[Row], group: ReportGroup) -> Values:
        grown, rounds = (
            np.diff(of(rows, group), prepend=np.nan) for of in (total, column("round"))
        )
        return grown / np.where(rounds > 0, rounds, np.nan)

    return read


def density(rows: Sequence[Row], group: ReportGroup) -> Values:
    """Return the share of entries that the nodes sent between each row and the one before, in %."""
    sent, whole = (
        a_round(column(key))(rows, group) for key in ("uplink_entries", "uplink_entries_whole")
    )
    return 100 * sent / np.where(whole, whole, np.nan)


def limit(axes: Axes, values: Sequence[float]) -> None:
    """Set the range of the y axis by some values. Outliers among them are cut off."""
    known = np.array([value for value in values if isfinite(value)])
    if not len(known):
        return
    low, high = float(known.min()), float(known.max())
    near, far = (float(value) for value in np.quantile(known, [0.02, 0.9]))
    if high - low > 20 * (far - near) > 0:  # a run that diverged
        low, high = near, far
    free = max(0.05 * (high - low), 0.01 * abs(high), 1e-9)
    axes.set_ylim(low - free, high + free)


def _differ(report: ReportRuns, key: str) -> bool:
    """Return whether a counter at the ends of the runs differs so much that its axis is log."""
    found = [group.mean(key) for group in report.coloured]
    ends = [end for end in found if end is not None and end > 0]
    return bool(ends) and max(ends) > DIFFERENT * min(ends)


def draw_curves(report: ReportRuns, name: str, x: Axis, y: Axis, title: str,
                note: str = "") -> Canvas | None:  # fmt: skip
    """Draw the mean curve of each group with its band; return None if no group has a curve."""
    found = ((g, mean_curve(g.histories.values(), x, y, g)) for g in report.coloured)
    coloured = [(group, curve) for group, curve in found if curve and len(curve.x) > 1]
    if not coloured:
        return None
    canvas = Canvas(name, title, note, [mark_of(group) for group, _ in coloured])
    for group, curve in coloured:
        curve.add_to(canvas.axes, **mark_of(group).line)
    if not y.log:
        limit(canvas.axes, [value for _, curve in coloured for value in curve.mean])
    finish(canvas.axes, x, y)
    name_ends(canvas.axes, [(g.key, float(c.x[-1]), float(c.mean[-1])) for g, c in coloured])
    return canvas


def _over_link(report: ReportRuns, name: str, network: Network, metric: Axis) -> Canvas | None:
    axis = Axis(
        f"estimated time, {name} (s)",
        lambda rows, group: np.array(
            seconds_over(network, rows, group.first, group.settings), dtype=np.float64
        ),
        log=True,
    )
    title = f"Test {report.metric.name} over the estimated time, {name}"
    return draw_curves(report, f"time_{name}", axis, metric, title, speeds(network))


def _bytes_a_round(report: ReportRuns, way: str, rounds: Axis) -> Canvas | None:
    axis = Axis(f"bytes {WAYS[way]} a round", a_round(all_bytes(way)), human_bytes, log=True)
    title = f"Bytes {WAYS[way]} a round, all nodes together"
    return draw_curves(report, f"bytes_a_round_{WAYS[way]}", rounds, axis, title)


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
        color=LIGHT["muted"], linewidth=1, linestyle=(0, (3, 3)), zorder=1.5,
    )  # fmt: skip
    ends = list(values)
    for group, size, value in points:
        half, grey = None, group.rank is None
        seeds = by_seed(group.runs, metric.name, metric.scale).values()
        if len(seeds) > 1 and not grey:
            _, low, high = band(np.array([[seed] for seed in seeds]))
            half = [value - low, high - value]
            ends += [*low, *high]
        axes.errorbar(
            size, value, yerr=half, color=mark_of(group).line["color"], fmt="o", elinewidth=1,
            capsize=2.5, markersize=4 if grey else 6, zorder=2 if grey else 4,
        )  # fmt: skip
        axes.annotate(group.key, (size, value), (6, 5), textcoords="offset points", fontsize=10)
    limit(axes, ends)
    finish(axes, Axis(f"all bytes {WAYS[way]} of a run", all_bytes(way), human_bytes, log=True),
           y_axis(metric.name, metric))  # fmt: skip
    return canvas


def parts_of(group: ReportGroup, way: str) -> dict[str, float]:
    """Return the mean bytes of a run in each part of the messages; their sum is all bytes.

    `way`: "uplink" or "downlink".
    """
    payload, values, indices, record, other = (
        group.mean(f"{way}_{key}") or 0.0
        for key in ("bytes", "value_bytes", "index_bytes", "header_bytes", "other_bytes")
    )
    rest = payload - values - indices
    return {VALUES: values, INDICES: indices, HEADER: rest, RECORD: record, OTHER: other}


def draw_parts(report: ReportRuns, way: str) -> Canvas | None:
    """Draw which parts of the messages the bytes of each group belong to, as stacked bars."""
    rows = [(group, parts_of(group, way)) for group in report.coloured]
    rows = [(group, parts) for group, parts in rows if sum(parts.values()) > 0]
    if not rows:
        return None
    used = [part for part in PARTS if any(parts.get(part) for _, parts in rows)]
    entries = [LegendEntry(part, f"part{PARTS.index(part)}", box=True) for part in used]
    labels = [one_line(mark_of(group).text, LABEL) for group, _ in rows]
    title = f"Where the bytes {WAYS[way]} go"
    canvas = row_canvas(labels, f"parts_{WAYS[way]}", title, legend=entries)
    axes = canvas.axes
    for place, (_, parts) in enumerate(rows):
        total, start = sum(parts.values()), 0.0
        for part in used:
            share = 100 * parts.get(part, 0.0) / total
            axes.barh(
                place, share, left=start, height=0.44, color=LIGHT[f"part{PARTS.index(part)}"],
                edgecolor=LIGHT["surface"], linewidth=0.8,
            )  # fmt: skip
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
    return [
        _node_strip(nodes, "node_metric", f"{metric.name.capitalize()} of each node",
                    metric.axis.removeprefix("test "), lambda node: node.count(metric.name),
                    scale=metric.scale),
        _node_strip(nodes, "node_loss", "Training loss of each node", "training loss",
                    lambda node: node.count("train_loss")),
        _node_strip(nodes, "node_bytes_up", "Bytes up of each node", "bytes up",
                    lambda node: node.count("uplink_bytes"), human_bytes),
        _node_strip(nodes, "node_lag", "Seconds from a message to its reply", "mean lag (s)",
                    lambda node: node.lag),
    ]  # fmt: skip


def _node_strip(
    nodes: Sequence[NodeRecord],
    name: str,
    title: str,
    label: str,
    value: Callable[[NodeRecord], float | None],
    ticks: Ticks = PLAIN,
    scale: float = 1,
) -> Canvas | None:
    """Draw a value of each node, times `scale`, as a point: one line of points for each group."""
    groups: dict[int, list[float]] = {}
    for node in nodes:
        if (known := value(node)) is not None:
            groups.setdefault(node.group.rank or 0, []).append(known * scale)
    if not any(len(points) > 1 for points in groups.values()):
        return None
    marks = {node.group.rank or 0: mark_of(node.group) for node in nodes}
    labels = [one_line(marks[rank].text, LABEL) for rank in sorted(groups)]
    note = "A point is a node; the bar is the median, the grey box holds half of the nodes."
    canvas = row_canvas(labels, name, title, note)
    axes = canvas.axes
    for place, (rank, values) in enumerate(sorted(groups.items())):
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        axes.fill_betweenx([place - 0.2, place + 0.2], low, high, color=LIGHT["rule"], linewidth=0)
        axes.plot([middle] * 2, [place - 0.26, place + 0.26], color=LIGHT["ink"])
        # the same places in every picture: no random numbers
        spread = place + 0.32 * (np.arange(len(values)) * 0.618034 % 1 - 0.5)
        axes.scatter(values, spread, s=10, alpha=0.7, color=marks[rank].line["color"], linewidth=0)
    set_scale(axes, "x", ticks)
    axes.set_xlabel(label)
    return canvas
