"""Every sparsifier with every quantizer and every coder on one update: bytes, error, time."""

import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.updates import Updates
from compression import decode, make_codec, names

Row = dict[str, Any]
# Sparsifiers whose own setting does not fit every update's size: a threshold that 1 % exceed.
DENSITY = 0.01


def rows(updates: Updates) -> list[Row]:
    """Encode the delta as a node's first update with every combination at its default options."""
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
    codec.encode(delta, layout)  # workspaces and caches
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

    Of the coders the smallest result of each pair is drawn; the line joins those that no other
    pair beats in both.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    best: dict[tuple[str, str], Row] = {}
    for row in table:
        key = row["sparsifier"], row["quantizer"]
        if key not in best or row["bytes"] < best[key]["bytes"]:
            best[key] = row
    quantizers = sorted({key[1] for key in best})
    sparsifiers = sorted({key[0] for key in best})
    colours = dict(zip(quantizers, pyplot.get_cmap("tab20")(range(len(quantizers))), strict=True))
    markers = dict(zip(sparsifiers, "os^vD<>pXP*h"[: len(sparsifiers)], strict=True))
    figure, axes = pyplot.subplots(figsize=(11, 7), layout="constrained")
    for (sparsifier, quantizer), row in best.items():
        axes.scatter(
            row["bytes"],
            row["error"],
            color=colours[quantizer],
            marker=markers[sparsifier],
            s=70,
            edgecolor="black",
            linewidth=0.4,
        )
    front = _front(list(best.values()))
    axes.plot([r["bytes"] for r in front], [r["error"] for r in front], color="0.6", zorder=0)
    for row in front:
        axes.annotate(
            f"{row['sparsifier']} {row['quantizer']}",
            (row["bytes"], row["error"]),
            textcoords="offset points",
            xytext=(6, 6),
            fontsize=8,
        )
    axes.set(
        xscale="log",
        yscale="symlog",
        xlabel="bytes of the payload (smallest of all coders)",
        ylabel="relative L2 error of what it decodes to, first step",
        title="Every sparsifier with every quantizer on one update; joined: beaten by none in both",
    )
    axes.set_yscale("log")
    handles = [
        *(_dot(pyplot, colours[q], "o", q) for q in quantizers),
        *(_dot(pyplot, "white", markers[s], s) for s in sparsifiers),
    ]
    figure.legend(handles=handles, loc="outside right upper", fontsize=9, frameon=False)
    axes.grid(True, which="major", color="0.9")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _dot(pyplot: Any, colour: Any, marker: str, label: str) -> Any:
    return pyplot.Line2D(
        [], [], linestyle="", marker=marker, color=colour, markeredgecolor="black", label=label
    )


def _front(found: list[Row]) -> list[Row]:
    """Return the rows that no other row beats in bytes and error, by bytes."""
    kept: list[Row] = []
    for row in sorted(found, key=lambda r: (r["bytes"], r["error"])):
        if not kept or row["error"] < kept[-1]["error"]:
            kept.append(row)
    return kept
