"""Measures round trips per second of an echo on Flower's Ray engine, started as by `engine=ray`.

python -m papers.benchmarks.peers_ray    # the echo alone, as JSON (about a minute, mostly start-up)
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from edgewire.engines.ray import run_on_ray
from edgewire.machine.job import Job

APP = Path(__file__).parent / "ray_echo"


def echo_ray(nodes: int = 10, size: int = 850_000, seconds: float = 5.0, actors: int = 2) -> float:
    """Return the round trips per second with `size` bytes each way, over at least `seconds`.

    The ServerApp measures the time after one round, so the start of Flower and of Ray is not
    included.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "echo.json"
        values = {"size": size, "nodes": nodes, "seconds": seconds, "result": str(result)}
        run_on_ray(Job(APP, values, nodes, Path(folder)), actors=actors)
        measured = json.loads(result.read_text())
    return float(measured["trips"] / measured["seconds"])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps({"round_trips_a_second": round(echo_ray(), 1)}))
