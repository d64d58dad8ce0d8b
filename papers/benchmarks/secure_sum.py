"""Measures the CPU time and the bytes of a round of the secure sum, beside the training.

    OMP_NUM_THREADS=1 python -m papers.benchmarks.secure_sum     # JSON on stdout, half a minute

All nodes and the server are in this process. A tenth of the nodes drops after its masked update was
computed, so the server removes their pair masks. Values are ternary, for which n nodes need
log2(2n + 1) bits each. The first round also makes the secrets of the run's keys, once per pair; it
is timed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median
from typing import Any

import numpy as np

from edgewire.compression.secure import Coordinator, Member, Packing, Terms, roster_of

NODES = (10, 50, 100)
VALUES = (10_000, 62_000)
LIMITS = {"ms a node": 20.0, "s at the server": 0.5}  # the targets for 100 nodes


class Clock:
    """Adds up the CPU seconds between `with` and its end."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


def round_of(
    members: list[Member], keys: list[bytes], terms: Terms, values: list[list[np.ndarray]]
) -> tuple[float, float, int, int]:
    """Run a round; return ms per node, s at the server, and a node's bytes up and down.

    Raises `AssertionError` if the total is not exact.
    """
    nodes, server, up, down = Clock(), Clock(), 0, 0
    places = range(len(members))
    in_sum = [place for place in places if place >= len(members) // 10]
    with nodes:
        mask_keys = [member.mask_key() for member in members]
    with server:
        roster, _ = roster_of(dict(zip(places, zip(keys, mask_keys, strict=True), strict=True)))
        coordinator = Coordinator(terms, roster)
    for place in places:
        with nodes:
            shares = members[place].share(terms, roster)
        with server:
            coordinator.take_shares(place, shares)
    for place in places:
        with server:
            sealed = coordinator.sealed_for(place)
        with nodes:
            members[place].opened(sealed)
            masked = members[place].masked(terms, values[place])
        with server:
            if place in in_sum:
                coordinator.take_masked(place, masked)
    with server:
        alive = coordinator.alive()
    for place in in_sum:
        with nodes:
            answer = members[place].unmask(alive, terms.round)
        with server:
            coordinator.take_unmasked(place, answer)
    with server:
        (total,) = coordinator.totals()
    assert np.array_equal(total, sum(values[place][0] for place in in_sum))
    up = len(keys[0]) + len(mask_keys[0]) + len(shares) + len(masked) + len(answer)
    down = sum(map(len, mask_keys)) + len(sealed) + len(alive)
    return nodes.seconds / len(members) * 1e3, server.seconds, up, down


def measure(nodes: int, count: int, rounds: int) -> dict[str, Any]:
    """Return the figures of one size: medians over the rounds after the first one."""
    run, draw = os.urandom(16), np.random.default_rng(0)
    members = [Member({}) for _ in range(nodes)]
    keys = [member.run_key(run) for member in members]
    values = [[draw.integers(-1, 2, count, dtype=np.int8)] for _ in members]
    found = []
    for number in range(1 + rounds):
        terms = Terms(run, number, ((count, 1),), bytes(32))
        found.append(round_of(members, keys, terms, values))
    packed = Packing(((count, 1),), nodes).nbytes
    return {
        "nodes": nodes,
        "values": count,
        "ms a node": round(median(each[0] for each in found[1:]), 2),
        "ms a node, first round": round(found[0][0], 2),
        "s at the server": round(median(each[1] for each in found[1:]), 4),
        "bytes up": found[0][2],
        "of these the update": packed,
        "bytes down of mask keys, shares and list": found[0][3],
    }


def main() -> None:
    """Measure all sizes and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [measure(nodes, count, options.rounds) for nodes in NODES for count in VALUES]
    unmet = [
        f"{row[name]} {name} with {row['nodes']} nodes and {row['values']} values, not {limit}"
        for row in rows
        for name, limit in LIMITS.items()
        if row[name] > limit
    ]
    print(json.dumps({"rows": rows, "unmet": unmet}, indent=2))


if __name__ == "__main__":
    main()
