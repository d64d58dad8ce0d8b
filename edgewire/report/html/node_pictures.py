"""Draws the nodes of runs: the distribution of a value over them, and their samples' classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from edgewire.report.curves import evenly
from edgewire.report.format import human_bytes, human_seconds
from edgewire.report.html.canvas import LIGHT, Canvas, LegendEntry, mark_of, row_canvas
from edgewire.report.html.node_table import NodeRecord
from edgewire.report.html.picture_axes import Axis, Ticks, column, set_scale, shortened
from edgewire.report.html.run_data import ReportRuns

NODES, CLASSES = 100, 30  # most nodes and classes of a heat map


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
