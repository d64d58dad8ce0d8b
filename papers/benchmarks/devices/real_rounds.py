"""Measures rounds on real processes, with EdgeWire's and with Flower's servers and nodes.

    python -m papers.benchmarks.devices.real_rounds                      # as root; JSON; 10 minutes
    python -m papers.benchmarks.devices.real_rounds --cases ours2,stock2
    python -m papers.benchmarks.devices.real_rounds --cases mnist4 --data FOLDER  # with MNIST below
    it

The server and each node have one network namespace each, without a speed limit, with TLS and
authenticated nodes. The names of the cases mean:

* `ours`, `adacomp`, `mnist`: `edgewire.deploy.server` and `edgewire.deploy.node`;
* `untouched`: Flower's SuperLink and `edgewire.deploy.node`;
* `stock`: Flower's SuperLink and SuperNodes.

The number in a name is the number of nodes. `round_seconds` is the median time of a round at the
server, or of ten updates of AdaComp. The output also has the peak memory of each
`edgewire.deploy.node` in MB.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from papers.benchmarks.devices.cases import chosen, printed
from papers.benchmarks.devices.namespaces import FIRST, field


class Case(NamedTuple):
    """The number and kind of the processes, and the run's overrides."""

    nodes: int
    overrides: list[str]
    plain: bool = False
    stock: bool = False


def rounds(count: int, *overrides: str) -> list[str]:
    """Return the overrides for `count` rounds of eSGD with one evaluation at the end."""
    return ["algorithm=esgd", f"rounds={count}", f"eval_every={count}", *overrides]


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
    """Return the peak memory of each `edgewire.deploy.node`, in MB."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            status = (folder / "status").read_text()
        except OSError:
            continue
        if b"papers.benchmarks.devices.timed_node" in command and b"netns" not in command:
            peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            found.append(round(int(peak.split()[1]) / 1000, 1))
    return found


def measured(case: Case) -> dict[str, Any]:
    """Run one round, in which the nodes download the app, and then the case."""
    with field(case.plain, None, None, case.nodes, stock=case.stock) as found:
        found.run(FIRST, "first")
        made = found.run(case.overrides, "run")
        return {**made, "peak_megabytes": peaks()}


def main() -> int:
    """Print the results; a user's mistake gives one line and exit code 2."""
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
