"""Checks that a server counts 10,000 lost replies and crashes of nodes on the virtual network.

    python -m tests.system.virtual_faults            # prints JSON; takes two or three minutes
    python -m tests.system.virtual_faults --rounds 20 --cases esgd

The runs train on digits. One reply of five is lost. After one reply of ten its node crashes, loses
its state, and returns after 5 s. `faults` is the number of losses and crashes that the clock has
drawn. Every message must be used or be counted as a failure; `uncounted` is the number of all other
messages. An asynchronous run may end with one uncounted message under way for each node.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Iterable
from typing import Any

from flwr.app import Message

from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.simulation.clock import VirtualClock
from tests.system.finished import finished

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


class Counting(GridWrapper):
    """A grid that counts messages."""

    asked = 0

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Count the messages, and send them."""
        found = list(messages)
        self.asked += len(found)
        return super().push_messages(found, ttl)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Count the messages, and send them."""
        found = list(messages)
        self.asked += len(found)
        return super().send_and_receive(found, timeout=timeout)


class Drawn:
    """Counts the losses and crashes that a clock draws within its `with` block."""

    def __init__(self) -> None:
        self.count = 0
        self._real: Any = VirtualClock.draw_loss, VirtualClock.draw_life

    def __enter__(self) -> Drawn:
        loses, life = self._real

        def counted(clock: Any, node: int) -> bool:
            lost = bool(loses(clock, node))
            self.count += lost
            return lost

        def lived(clock: Any, node: int) -> tuple[float, bool]:
            waits, crashes = life(clock, node)
            self.count += crashes
            return waits, crashes

        names: Any = VirtualClock
        names.draw_loss, names.draw_life = counted, lived
        return self

    def __exit__(self, *error: object) -> None:
        names: Any = VirtualClock
        names.draw_loss, names.draw_life = self._real


def tried(words: list[str], rounds: int) -> dict[str, Any]:
    """Make a run; return the drawn faults, the messages, the uncounted messages and the results."""
    last = [f"rounds={rounds}", f"eval_every={rounds}", "timeout=20"]
    if "algorithm=adacomp" in words:
        pushes = rounds * NODES
        last = [f"strategy.pushes={pushes}", f"eval_every={pushes}", "timeout=60"]
        last += [f"strategy.record_every={pushes}"]
    with Drawn() as drawn:
        grid, result = finished([*words, *USUAL, *last], Counting)
    rest = grid.asked - result["client_updates"] - result["failures"]
    return {"faults": drawn.count, "asked": grid.asked, "uncounted": rest, **result}


def main() -> None:
    """Print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=165)
    parser.add_argument("--cases", default=",".join(CASES))
    args = parser.parse_args()
    logging.disable()
    found = {name: tried(CASES[name], args.rounds) for name in args.cases.split(",")}
    print(json.dumps({"all": sum(each["faults"] for each in found.values()), **found}, indent=1))


if __name__ == "__main__":
    main()
