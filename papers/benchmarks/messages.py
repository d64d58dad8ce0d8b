"""Compares the CPU time of a whole message of two presets, in training runs that alternate.

    python -m papers.benchmarks.messages [--ours NAME] [--theirs NAME] [OVERRIDE ...]    # JSON

A node's part: decode and apply the model that it gets, compute and encode its update; without the
training between them. It is that of the first node of the process in a round, because the others
share what it has worked out. The server's part: make a round's messages, read the replies, and take
the step, divided by the number of nodes. Flower's transport is left out. Each value is the mean
over the rounds of the lowest of `--cycles` runs.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any

from edgewire import train
from edgewire.compression.flower.node.mod import CompressionMod
from edgewire.strategy.synchronous import Rounds

Times = dict[tuple[int, str], float]  # (round, part) -> seconds


def measured(preset: str, overrides: list[str]) -> tuple[Times, int]:
    """Train once; return the CPU times of the parts, and the number of nodes."""
    times: Times = {}
    spent = {"round": 0, "inside": 0.0}
    answer, messages, aggregate = CompressionMod.__call__, Rounds._messages, Rounds._aggregate

    def add(part: str, call: Callable[[], Any]) -> Any:
        spent["inside"], start = 0.0, time.process_time()
        result = call()
        took = time.process_time() - start - spent["inside"]
        key = (int(spent["round"]), part)
        times[key] = took if part == "node" else times.get(key, 0.0) + took
        return result

    def node(self: CompressionMod, message: Any, context: Any, call_next: Any) -> Any:
        def training(*given: Any) -> Any:
            start = time.process_time()
            try:
                return call_next(*given)
            finally:
                spent["inside"] += time.process_time() - start

        first = (int(spent["round"]), "node") not in times
        return add("node" if first else "others", lambda: answer(self, message, context, training))

    def begin(self: Rounds, number: int, *given: Any) -> Any:
        spent["round"] = number
        return add("server", lambda: messages(self, number, *given))

    def end(self: Rounds, *given: Any) -> Any:
        return add("server", lambda: aggregate(self, *given))

    replaced: list[tuple[Any, str, Any]] = [
        (CompressionMod, "__call__", node),
        (Rounds, "_messages", begin),
        (Rounds, "_aggregate", end),
    ]
    before = [getattr(owner, name) for owner, name, _ in replaced]
    try:
        for owner, name, function in replaced:
            setattr(owner, name, function)
        with tempfile.TemporaryDirectory() as folder:
            words = [f"algorithm={preset}", "engine.workers=1", f"hydra.run.dir={folder}/run"]
            run = train(*words, *overrides, progress=False)
            return times, int(run.values["nodes"])
    finally:
        for (owner, name, _), function in zip(replaced, before, strict=True):
            setattr(owner, name, function)


def main() -> None:
    """Print milliseconds a message of both presets, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", default="edgewire")
    parser.add_argument("--theirs", default="edgewire_fixed")
    parser.add_argument("--cycles", type=int, default=3)
    asked, overrides = parser.parse_known_args()
    best: dict[str, Times] = {asked.ours: {}, asked.theirs: {}}
    nodes = 1
    for _ in range(asked.cycles):
        for preset, lowest in best.items():
            times, nodes = measured(preset, overrides)
            for key, seconds in times.items():
                lowest[key] = min(seconds, lowest.get(key, seconds))
    rounds = max(number for number, _ in best[asked.ours])
    parts = {"all": range(1, rounds + 1)}
    parts["last quarter"] = range(rounds - rounds // 4 + 1, rounds + 1)
    parts["before it"] = range(1, rounds - rounds // 4 + 1)
    found: dict[str, Any] = {}
    for name, numbers in parts.items():
        whole = {
            preset: 1e3 * fmean(each[n, "node"] + each[n, "server"] / nodes for n in numbers)
            for preset, each in best.items()
        }
        found[name] = {**whole, "ratio": whole[asked.ours] / whole[asked.theirs]}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
