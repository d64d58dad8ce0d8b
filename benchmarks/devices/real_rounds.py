"""Rounds of eSGD on real processes, TLS and keys on, beside Flower's own server and nodes.

    python -m benchmarks.devices.real_rounds                       # as root; JSON; 10 minutes
    python -m benchmarks.devices.real_rounds --cases ours2,stock2
    python -m benchmarks.devices.real_rounds --cases mnist4 --data FOLDER  # with MNIST below it

A server and nodes have a network namespace each, with lines as fast as they go. `ours`: both are
ours; `untouched`: nodes of ours, Flower's SuperLink; `stock`: both are Flower's. The number is that
of the nodes. `round_seconds`: the median, at the server; of AdaComp, of ten pushes. Of a node of
ours also the most memory that it had, in MB.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.devices.cases import chosen, printed
from benchmarks.devices.namespaces import FIRST, field


class Case(NamedTuple):
    """Who takes part, and the run's words."""

    nodes: int
    words: list[str]
    plain: bool = False
    stock: bool = False


def rounds(count: int, *words: str) -> list[str]:
    """Return the words of eSGD, measured at the end."""
    return ["algorithm=esgd", f"rounds={count}", f"eval_every={count}", *words]


PUSHES = 1000
CASES = {
    "ours2": Case(2, rounds(200)),
    "ours4": Case(4, rounds(200)),
    "adacomp4": Case(
        4,
        ["algorithm=adacomp", "network=ideal", f"strategy.pushes={PUSHES}",
         "strategy.record_every=10", f"eval_every={PUSHES}"],
    ),
    "untouched2": Case(2, rounds(40), plain=True),
    "stock2": Case(2, rounds(8), plain=True, stock=True),
    "mnist4": Case(4, rounds(2000, "dataset=mnist")),
}  # fmt: skip


def peaks() -> list[float]:
    """Return the most memory that each node of ours has had, in MB."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            status = (folder / "status").read_text()
        except OSError:
            continue
        if b"benchmarks.devices.timed_node" in words and b"netns" not in words:
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            found.append(round(int(peak.split()[1]) / 1000, 1))
    return found


def measured(case: Case) -> dict[str, Any]:
    """Run a case, after one round for the app to be there."""
    with field(case.plain, None, None, case.nodes, stock=case.stock) as found:
        found.run(FIRST, "first")
        made = found.run(case.words, "run")
        return {**made, "peak_megabytes": peaks()}


def main() -> int:
    """Print what was measured; a mistake is one line, and code 2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="ours2,ours4,adacomp4,untouched2,stock2")
    parser.add_argument("--data", type=Path, help="the folder below which nodes find data")
    args = parser.parse_args()
    if args.data is not None:
        os.environ["EDGEWIRE_DATA"] = str(args.data.resolve())

    def measure() -> dict[str, Any]:
        report: dict[str, Any] = {}
        for name, case in chosen(CASES, args.cases).items():
            report[name] = measured(case)
            print(name, report[name], file=sys.stderr, flush=True)
        return report

    return printed(measure)


if __name__ == "__main__":
    sys.exit(main())
