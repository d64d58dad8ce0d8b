"""Flower's Ray engine as a peer: round trips a second of an echo, by the path `engine=ray` takes.

python -m benchmarks.peers_ray    # the echo alone, as JSON (about a minute, most of it start-up)
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from launch.ray import run_ray

APP = Path(__file__).parent / "ray_echo"


def echo_ray(nodes: int = 10, size: int = 850_000, seconds: float = 5.0, actors: int = 2) -> float:
    """Round trips a second with `size` bytes each way, over at least `seconds`.

    Timed inside the ServerApp, after a round of warm-up: neither Flower's nor Ray's start counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "echo.json"
        run_ray(
            APP,
            run_config={"size": size, "nodes": nodes, "seconds": seconds, "result": str(result)},
            num_nodes=nodes,
            actors=actors,
        )
        measured = json.loads(result.read_text())
    return float(measured["trips"] / measured["seconds"])


if __name__ == "__main__":
    print(json.dumps({"round_trips_a_second": round(echo_ray(), 1)}))
