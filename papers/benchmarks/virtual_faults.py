"""Counts lost replies and crashes of nodes on the virtual network; or measures a server's memory.

    python -m papers.benchmarks.virtual_faults            # 10,000 faults; two or three minutes
    python -m papers.benchmarks.virtual_faults --churn    # 10,000 nodes; an hour and a half
    python -m papers.benchmarks.virtual_faults --rounds 20 --cases esgd

The runs train on digits, and the program prints JSON. In the first command one reply of five is
lost. After one reply of ten its node crashes, loses its state, and returns after 5 s. `faults` is
the number of losses and crashes that the clock has drawn. Every message must be used or be counted
as a failure; `uncounted` is the number of all other messages. An asynchronous run may end with one
uncounted message under way for each node.

With `--churn`, a node goes away after one reply of ten and loses its state, so a tenth of the nodes
is away at any time. In the case "esgd, new ids", 50 nodes get new ids in every round, 100,000 ids
in all, as SuperNodes without keys do. A round is 200 updates (AdaComp: 20); each node has 20
samples. `megabytes` is the memory of the process, which holds the nodes and the server, after the
given number of rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid

from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.conf.load import load_config
from edgewire.simulation.clock import VirtualClock
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.run import Run
from edgewire.strategy.run.run_log import RunLog
from edgewire.task.objectives.classification import Classification
from tests.local_runs import local_run
from tests.runs import result_of
from tests.strategy.renewed import Renewed

KEPT = ("accuracy", "client_updates", "failures", "ended")
NODES = 50
AWAY = ["network.loss=0.2", "network.crash=0.1", "network.rejoin_seconds=5"]
USUAL = ["dataset=digits", f"nodes={NODES}", "batch_size=16", "network.seconds_per_step=1"]
# Flower's own strategies do not support crashes.
LOST = ["network=lte", "network.loss=0.3", "local_steps=2"]
CASES: dict[str, list[str]] = {
    "esgd": ["algorithm=esgd", "network=lte", *AWAY],
    "dgc": ["algorithm=dgc", "network=lte", *AWAY],
    "fedavg_f2i": ["algorithm=fedavg_f2i", *LOST],
    "adacomp": ["algorithm=adacomp", *AWAY],
}
MANY, UPDATES, PUSHES, EVERY = 10_000, 200, 20, 100  # nodes; updates in a round: eSGD, AdaComp
SOME_AWAY = ["network.seconds_per_step=1", "network.crash=0.1", "network.rejoin_seconds=56"]
ESGD = ["algorithm=esgd", f"strategy.fraction_train={UPDATES / MANY}", "timeout=20"]
CHURN: dict[str, tuple[list[str], int, float]] = {  # overrides, steps in a round, renewed share
    "esgd": ([*ESGD, *SOME_AWAY], 1, 0),
    "esgd, new ids": (ESGD, 1, 0.005),
    "adacomp": (["algorithm=adacomp", "timeout=20", "lr=0.01", *SOME_AWAY], PUSHES, 0),
}


def finished(
    words: list[str], wrap: Callable[[Grid], Any], kind: Callable[..., Run] = Run
) -> tuple[Any, dict[str, Any]]:
    """Return the wrapped grid of a run with these overrides, and the main values of its result."""
    grids = list[Any]()

    def server_app(grid: Grid, context: Context) -> None:
        grids.append(wrap(grid))
        nodes = json.loads(str(context.run_config["config"]))["nodes"]
        log = RunLog(str(context.run_config["output"]), Classification())
        run = kind(load_config(context.run_config, nodes), OrderedGrid(grids[0]), log)
        run.start()
        run.finish()

    with tempfile.TemporaryDirectory() as folder:
        local_run(Path(folder), *words, server_app=server_app)
        result = result_of(Path(folder))
    return grids[0], {key: result[key] for key in KEPT}


def length(words: list[str], rounds: int, unit: int, every: int = 0) -> list[str]:
    """Return the overrides for the length of a run; an asynchronous round is `unit` pushes."""
    if "algorithm=adacomp" not in words:
        return [f"rounds={rounds}", f"eval_every={rounds}"]
    pushes = rounds * unit
    return [f"strategy.pushes={pushes}", f"eval_every={pushes}",
            f"strategy.record_every={every * unit or pushes}"]  # fmt: skip


class Counting(GridWrapper):
    """A grid that counts messages."""

    asked = 0

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Count the messages, and send them."""
        found = list(messages)
        self.asked += len(found)
        return super().push_messages(found, ttl)


def faults_of(words: list[str], rounds: int) -> dict[str, Any]:
    """Make a run; return the drawn faults, the messages, the uncounted messages and the results."""
    import pytest

    drawn, loses, life = list[bool](), VirtualClock.draw_loss, VirtualClock.draw_life

    def lost(clock: VirtualClock, node: int) -> bool:
        drawn.append(loses(clock, node))
        return drawn[-1]

    def lived(clock: VirtualClock, node: int) -> tuple[float, bool]:
        waits, crashes = life(clock, node)
        drawn.append(crashes)
        return waits, crashes

    timeout = "timeout=60" if "algorithm=adacomp" in words else "timeout=20"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualClock, "draw_loss", lost)
        patch.setattr(VirtualClock, "draw_life", lived)
        given = [*words, *USUAL, *length(words, rounds, NODES), timeout]
        grid, result = finished(given, Counting)
    rest = grid.asked - result["client_updates"] - result["failures"]
    return {"faults": sum(drawn), "asked": grid.asked, "uncounted": rest, **result}


def megabytes() -> float:
    """Return the resident memory of this process in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1000


def memory_of(words: list[str], unit: int, renewed: float, rounds: int) -> dict[str, Any]:
    """Make a run; return its memory after some rounds, its number of node ids, and its results.

    A round is `unit` steps of the server. `renewed` is the share of the nodes that get new ids each
    time the server pulls replies.
    """
    found = dict[int, float]()

    class Watched(Run):
        """A run that records the memory of its process."""

        def round_done(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            """Record the round as usual, then the memory."""
            metrics = super().round_done(server_round, arrays)
            if server_round % (EVERY * unit) == 0:
                found[server_round // unit] = round(megabytes(), 1)
                print(server_round // unit, megabytes(), file=sys.stderr, flush=True)
            return metrics

    data = ["dataset=digits", "partition=sampled", "partition.samples=20", f"nodes={MANY}"]
    given = [*data, *words, *length(words, rounds, unit, EVERY)]
    wrap = (lambda grid: Renewed(grid, renewed)) if renewed else GridWrapper
    grid, result = finished(given, wrap, Watched)
    return {"megabytes": found, "ids": grid.ids if renewed else MANY, **result}


def main() -> None:
    """Print the counts, or the measured memory, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--churn", action="store_true", help="measure memory")
    parser.add_argument("--rounds", type=int, help="of each run; usual: 165, with --churn 2000")
    parser.add_argument("--cases", help="separated by ;")
    args = parser.parse_args()
    logging.disable()
    names = (args.cases or ";".join(CHURN if args.churn else CASES)).split(";")
    if args.churn:
        found = {name: memory_of(*CHURN[name], args.rounds or 2000) for name in names}
        print(json.dumps(found, indent=1))
        return
    found = {name: faults_of(CASES[name], args.rounds or 165) for name in names}
    print(json.dumps({"all": sum(each["faults"] for each in found.values()), **found}, indent=1))


if __name__ == "__main__":
    main()
