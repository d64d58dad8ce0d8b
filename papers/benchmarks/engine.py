"""Compares the time of a round of `engine=local` with a plain PyTorch loop, pfl and Ray (Flower).

    python -m papers.benchmarks.engine              # everything, JSON on stdout (about six minutes)
    python -m papers.benchmarks.engine --no-ray     # without Ray, which takes minutes
    python -m papers.benchmarks.engine --population # 100,000 registered nodes and 1,000

All programs do the same work (`papers.benchmarks.peers.Work`): FedAvg of LeNet-5 with 50 of 1,000
nodes per round, 50 samples per node, batches of 10, and one local epoch. All use the same samples,
and `loss` is the cross entropy of the global model on the same test images. The local engine runs
the whole application: configuration, ServerApp, Flower's FedAvg, payloads, records.

The programs alternate. Each one is compared with the plain loop's rounds just before and after it
(`papers.benchmarks.timing`). Two plain loops at the same time show the limit of two processes on
this machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid

from edgewire.conf.build import data_of, model_of, objective_of, optimizer_of
from edgewire.conf.load import compose_config, load_config, run_config, to_config
from edgewire.conf.network import Network
from edgewire.engines.ray import run_on_ray
from edgewire.machine.job import Job
from edgewire.simulation.local import run_local
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.node_log import NodeLog
from edgewire.strategy.run.run import Run
from edgewire.strategy.run.run_log import RunLog
from edgewire.task.steps import evaluate
from papers.benchmarks.echo import echo_local
from papers.benchmarks.peers import FOREVER, PFL_MISSING, Work, add_losses, bare, overrides, pfl
from papers.benchmarks.peers_ray import echo_ray
from papers.benchmarks.timing import ROOT, AtOnce, Child, Pipe, Turns, compare


class Paced(Run):
    """A run that waits for a request between blocks of rounds, and stops after the last block."""

    turns: Turns

    def round_done(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Do what a run does after a round; then wait for a request if a block has ended."""
        metrics, self.arrays = super().round_done(server_round, arrays), arrays
        if not self.turns.lap():
            raise StopRun
        return metrics

    def test_loss(self) -> float:
        """Return the server's loss of the newest model on the test images."""
        self.show(self.arrays)
        return evaluate(self.model.module, self.objective, self.test, self.targets)["loss"]


class StopRun(Exception):
    """Raised when the comparison is over."""


def serve(workers: int, settings: list[str]) -> None:
    """Run the whole application on the local engine, in blocks that the benchmark requests."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    composed = compose_config(settings)
    config = to_config(composed)
    # Loads everything once before the fork.
    optimizer_of(config, list(model_of(config, data_of(config)).parameters()))

    def server_app(grid: Grid, context: Context) -> None:
        output, objective = str(context.run_config["output"]), objective_of(config)
        nodes = NodeLog(grid, output, objective.main.name, objective.defined)
        ordered, records = OrderedGrid(nodes), RunLog(output, objective)
        run = Paced(load_config(context.run_config, config.nodes), ordered, records, nodes)
        pipe = Pipe(run.test_loss)
        run.turns = Turns(pipe.receive, pipe.report)
        with suppress(StopRun):
            run.start()

    with tempfile.TemporaryDirectory() as folder:
        values: dict[str, Any] = run_config(composed, output=folder)
        job = Job(
            ROOT,
            values,
            config.nodes,
            ROOT,
            config.seed,
            Network(**vars(config.network)),
            server_app,
        )
        run_local(job, workers=workers)


def application(workers: int, settings: list[str]) -> Child:
    """Return the whole application in a process that lasts for the comparison.

    `workers`: its worker processes; `settings`: its command-line overrides.
    """
    arguments = ["serve", str(workers), *settings]
    return Child([sys.executable, "-m", "papers.benchmarks.engine", *arguments])


def ours(workers: int, work: Work) -> Child:
    """Return the whole application on this work, in a process that lasts for the comparison."""
    return application(workers, overrides(work, FOREVER))


def on_ray(settings: list[str]) -> list[float]:
    """Return the seconds of each round of the application on Flower's Ray engine with 2 actors."""
    with tempfile.TemporaryDirectory() as folder:
        composed = compose_config(settings)
        values: dict[str, Any] = run_config(composed, output=folder)
        run_on_ray(Job(ROOT, values, composed.nodes, Path(folder)), actors=2)
        lines = (Path(folder) / "history.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines]
    return [b - a for a, b in pairwise(seconds)]


def rounds_a_second(work: Work, cycles: int) -> dict[str, Any]:
    """Compare the plain loop, the local engine and pfl."""
    with ExitStack() as stack:
        candidates = {
            "bare": bare(work),
            "local, 1 worker": ours(1, work),
            "pfl, 1 process": pfl(1, work),
            "local, 2 workers": ours(2, work),
            "pfl, 2 processes": pfl(2, work),
        }
        children = {k: stack.enter_context(v) for k, v in candidates.items() if v is not None}
        if candidates["pfl, 1 process"] is None:
            print(PFL_MISSING, file=sys.stderr)
        limit = AtOnce(*(stack.enter_context(bare(work)) for _ in range(2)))
        result = compare({**children, "limit, 2 bare loops at once": limit}, cycles=cycles)
        add_losses(result, children)
    return result


def ray(work: Work, rounds: int = 8) -> dict[str, Any]:
    """Compare Ray with two blocks of the plain loop; Ray's first two rounds are not counted."""
    with bare(work) as child:
        child(2)
        before = child(6)
        seconds = on_ray(overrides(work, rounds))[2:]
        after = child(6)
    ratio = median(seconds) / median(before + after)
    return {"seconds": round(median(seconds), 4), "ratio": round(ratio, 3)}


def population(small: int = 1_000, large: int = 100_000, cycles: int = 10) -> dict[str, Any]:
    """Compare round time and peak memory with `small` and with `large` numbers of registered nodes.

    50 nodes train in each round.
    """
    with ExitStack() as stack:
        counts = {f"{nodes} nodes": Work(nodes=nodes) for nodes in (small, large)}
        children = {k: stack.enter_context(ours(1, work)) for k, work in counts.items()}
        result = compare(children, baseline=f"{small} nodes", cycles=cycles)
        for name, child in children.items():
            result[name]["peak_memory_mb"] = round(child.peak_memory_mb())
    return result


def main() -> None:
    """Run the requested comparisons and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--population", action="store_true")
    options = parser.parse_args()
    work, start = Work(), time.perf_counter()
    result: dict[str, Any] = {}
    if options.population:
        result["population"] = population(cycles=options.cycles)
    else:
        result["seconds a round"] = rounds_a_second(work, options.cycles)
        result["echo, round trips a second"] = {"local": round(echo_local())}
        if not options.no_ray:
            result["seconds a round"]["ray, 2 actors"] = ray(work)
            echo = result["echo, round trips a second"]
            echo["ray"] = round(echo_ray(), 1)
            echo["ratio"] = round(echo["local"] / echo["ray"], 1)
    result["minutes"] = round((time.perf_counter() - start) / 60, 1)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]), sys.argv[3:])
    else:
        main()
