"""Measures the memory of a server on the virtual clock while its 10,000 nodes leave and return.

    python -m tests.system.churn             # prints JSON; takes an hour and a half
    python -m tests.system.churn --rounds 300 --cases esgd

In the cases `esgd` and `adacomp`, a node goes away after one reply of ten and loses its state, so a
tenth of the nodes is away at any time. In the case `esgd, new ids`, 50 nodes get new ids in every
round, 100,000 ids in all, as SuperNodes without keys do. A round is 200 updates (AdaComp: 20
updates); each node has 20 of scikit-learn's digits. `megabytes` is the memory of the process, which
holds the nodes and the server, after the given number of rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.strategy.run.run import Run
from tests.strategy.renewed import Renewed
from tests.system.finished import finished

NODES, UPDATES, PUSHES = 10_000, 200, 20  # updates in a round: eSGD, AdaComp
DATA = ["dataset=digits", "partition=sampled", "partition.samples=20", f"nodes={NODES}"]
AWAY = ["network.seconds_per_step=1", "network.crash=0.1", "network.rejoin_seconds=56"]
SHARE = UPDATES / NODES
ESGD = ["algorithm=esgd", f"strategy.fraction_train={SHARE}", "timeout=20"]
EVERY = 100


def megabytes() -> float:
    """Return the resident memory of this process in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1000


class Watched(Run):
    """A run that records the memory of its process."""

    found: dict[int, float]
    unit: int

    def round_done(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Record the round as usual, then the memory."""
        metrics = super().round_done(server_round, arrays)
        if server_round % (EVERY * self.unit) == 0:
            self.found[server_round // self.unit] = found = round(megabytes(), 1)
            print(server_round // self.unit, found, file=sys.stderr, flush=True)
        return metrics


def trained(words: list[str], unit: int = 1, renewed: float = 0) -> dict[str, Any]:
    """Make a run; return its memory after some rounds, its number of node ids, and its results.

    A round is `unit` steps of the server. `renewed` is the share of the nodes that get new ids each
    time the server pulls replies.
    """
    found = dict[int, float]()

    def watched(*given: Any) -> Watched:
        run = Watched(*given)
        run.found, run.unit = found, unit
        return run

    def wrapped(grid: Grid) -> GridWrapper:
        return Renewed(grid, renewed) if renewed else GridWrapper(grid)

    grid, result = finished([*DATA, *words], wrapped, watched)
    return {"megabytes": found, "ids": grid.ids if renewed else NODES, **result}


def main() -> None:
    """Run the cases, and print the measured memory as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--cases", default="esgd;esgd, new ids;adacomp")
    args = parser.parse_args()
    logging.disable()
    rounds = [f"rounds={args.rounds}", f"eval_every={args.rounds}"]
    pushes = args.rounds * PUSHES
    names = ("strategy.pushes", "eval_every")
    adacomp = ["algorithm=adacomp", *(f"{name}={pushes}" for name in names)]
    adacomp += [f"strategy.record_every={EVERY * PUSHES}", "timeout=20", "lr=0.01"]
    cases: dict[str, Any] = {
        "esgd": lambda: trained([*ESGD, *AWAY, *rounds]),
        "esgd, new ids": lambda: trained([*ESGD, *rounds], renewed=0.005),
        "adacomp": lambda: trained([*adacomp, *AWAY], unit=PUSHES),
    }
    print(json.dumps({name: cases[name]() for name in args.cases.split(";")}, indent=1))


if __name__ == "__main__":
    main()
