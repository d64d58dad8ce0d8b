"""Measures every sparsifier with every quantizer and every coder on one update."""

import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from edgewire.compression.decoder import decode
from edgewire.compression.make import make_codec
from edgewire.compression.registry import names
from papers.benchmarks.updates import Updates

Row = dict[str, Any]
DENSITY = 0.01  # the threshold is chosen so that this share of the entries exceeds it
LEAST = 1e-4  # the log scale shows an error of 0 at this value


def rows(updates: Updates) -> list[Row]:
    """Encode a first update with every sparsifier, quantizer and coder, and default options.

    Return a row for each combination: its bytes, error and times.
    """
    delta = updates.delta
    tau = float(np.quantile(np.abs(delta), 1 - DENSITY))
    table = []
    for combination in product(names("sparsifier"), names("quantizer"), names("coder")):
        options: dict[str, Any] = {"threshold": tau} if combination[0] == "threshold" else {}
        table.append(_row(combination, options, updates))
    return table


def _row(combination: tuple[str, str, str], options: dict[str, Any], updates: Updates) -> Row:
    codec = make_codec(*combination, **options)
    delta, layout = updates.delta, updates.layout
    codec.encode(delta, layout)  # fills workspaces and caches
    start = time.process_time()
    payload = codec.encode(delta, layout)
    encoded = time.process_time()
    vector, _ = decode(payload, layout)
    decoded = time.process_time()
    norms = float(np.linalg.norm(delta)), float(np.linalg.norm(vector))
    sparsifier, quantizer, coder = combination
    return {
        "sparsifier": sparsifier,
        "quantizer": quantizer,
        "coder": coder,
        "bytes": len(payload),
        "times_smaller": round(4 * layout.size / len(payload), 1),
        "error": round(float(np.linalg.norm(vector - delta)) / norms[0], 5),
        "cosine": round(float(vector @ delta) / (norms[0] * norms[1] or 1), 5),
        "encode_ms": round(1000 * (encoded - start), 2),
        "decode_ms": round(1000 * (decoded - encoded), 2),
    }


def draw(table: list[Row], file: Path) -> None:
    """Draw bytes against relative error: colour for the quantizer, marker for the sparsifier.

    Each pair of sparsifier and quantizer is drawn with the coder that needs the fewest bytes. The
    line joins the Pareto front: the pairs for which no other pair has fewer bytes and a smaller
    error. The upper plot has all pairs, with errors on a log scale. The lower plot magnifies errors
    around 1. Pairs that send a small share of the entries have such errors.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    best: dict[tuple[str, str], Row] = {}
    for row in table:
        key = row["sparsifier"], row["quantizer"]
        if key not in best or row["bytes"] < best[key]["bytes"]:
            best[key] = row
    quantizers, sparsifiers = (sorted({key[i] for key in best}) for i in (1, 0))
    colours = dict(zip(quantizers, pyplot.get_cmap("tab10")(range(len(quantizers))), strict=True))
    markers = dict(zip(sparsifiers, "os^vD<>pXP*h"[: len(sparsifiers)], strict=True))
    figure, (above, below) = pyplot.subplots(2, figsize=(12, 11), layout="constrained")
    for axes in (above, below):
        for (sparsifier, quantizer), row in best.items():
            axes.scatter(
                row["bytes"],
                max(row["error"], LEAST),
                color=colours[quantizer],
                marker=markers[sparsifier],
                s=60,
                edgecolor="black",
                linewidth=0.4,
            )
        front = _front(list(best.values()))
        axes.plot([r["bytes"] for r in front], [max(r["error"], LEAST) for r in front],
                  color="0.6", zorder=0)  # fmt: skip
        axes.set_xscale("log")
        axes.grid(True, which="major", color="0.9")
        axes.set_ylabel("relative L2 error of what it decodes to")
    above.set_yscale("log")
    above.set_title(
        f"Every sparsifier with every quantizer on a node's first update (no error: at {LEAST:g})\n"
        "joined: beaten by none in both; topk, gradient_dropping, selective lie on each other"
    )
    below.set_ylim(0.5, 1.15)
    below.set_xlabel("bytes of the payload (the smallest of all coders)")
    _label(above, [row for row in front if row["error"] < 0.5])
    _label(below, [row for row in front if row["error"] >= 0.5])
    dots = [(colours[q], "o", q) for q in quantizers]
    dots += [("white", markers[s], s) for s in sparsifiers]
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, markeredgecolor="black",
                      label=label)
        for colour, marker, label in dots
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _label(axes: Any, found: list[Row]) -> None:
    """Write the rows' names beside their dots; move a name down if it would overlap another."""
    left = 0.0
    level = 0
    for row in found:
        level = level + 1 if left and row["bytes"] < 2.5 * left else 0
        left = row["bytes"]
        axes.annotate(
            f"{row['sparsifier']} {row['quantizer']}",
            (row["bytes"], max(row["error"], LEAST)),
            textcoords="offset points",
            xytext=(5, -14 - 10 * level),
            fontsize=8,
        )


def _front(found: list[Row]) -> list[Row]:
    """Return the rows that no other row beats in both bytes and error, sorted by bytes."""
    kept: list[Row] = []
    # Of equal rows keep top-k: at a first step some other methods send the same as top-k.
    for row in sorted(found, key=lambda r: (r["bytes"], r["error"], r["sparsifier"] != "topk")):
        if not kept or row["error"] < kept[-1]["error"]:
            kept.append(row)
    return kept
