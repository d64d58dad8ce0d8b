"""Measures the share of a run's time that the server's checks of updates take.

    python -m papers.benchmarks.screening         # JSON on stdout; about two minutes

`screening` is the check of norms and weights (`compression/flower/server/norm_screen.py`).
`shapes` compares the records and shapes of a reply with the request, and rebuilds the reply
(`compression/flower/server/reply_checks.py`). There are runs of FedAvg (LeNet-5, 50 of 1,000 nodes
per round, as in `papers.benchmarks.engine`), eSGD and AdaComp. All have one worker. The first round
is not counted.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgewire.compression.flower.server import inbox, model_replies
from edgewire.compression.flower.server.norm_screen import NormScreen, Screens
from edgewire.conf.load import compose_config, run_config, to_config
from edgewire.machine.job import Job
from edgewire.simulation.local import run_local
from papers.benchmarks.peers import FOREVER, Work, overrides
from papers.benchmarks.timing import ROOT

CASES = {
    "engine": overrides(Work(), 20),
    "engine, int8": [*overrides(Work(), 20), "compression=f2i"],
    "esgd": ["algorithm=esgd", "dataset=digits", "rounds=1000", f"eval_every={FOREVER}"],
    "adacomp": ["algorithm=adacomp", "dataset=digits", "strategy.pushes=3000",
                "strategy.record_every=300", "eval_every=3000"],
}  # fmt: skip
PARTS: dict[str, list[tuple[Any, str]]] = {
    "screening": [
        (model_replies, "norms_of"),
        (inbox, "norm_of"),
        (model_replies.ModelReplies, "_screen"),
        (Screens, "screen"),
        (Screens, "observe"),
        (NormScreen, "cap_weights"),
    ],
    "shapes": [
        (model_replies, "inconsistent"),
        (model_replies, "rebuilt"),
        (model_replies, "expect_weight"),
    ],
}


class Watch:
    """Adds up the seconds that functions take; a call within another timed call is not added."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._depth = 0

    def over(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a timer that adds its seconds to `part`."""

        def timed(*args: Any, **options: Any) -> Any:
            self._depth += 1
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds[part] += time.perf_counter() - start

        return timed


def shares(overrides: list[str], watch: Watch) -> dict[str, float]:
    """Run once with these overrides; return in percent how much of the time each check takes."""
    composed = compose_config(overrides)
    config = to_config(composed)
    watch.seconds = dict.fromkeys(PARTS, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(ROOT, run_config(composed, folder), config.nodes, Path(folder), config.seed)
        run_local(job, workers=1)
        lines = (Path(folder) / "history.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])["seconds"] - json.loads(lines[0])["seconds"]
    return {part: round(100 * watch.seconds[part] / last, 2) for part in PARTS}


def main() -> None:
    """Print as JSON how much of each run's time each check takes, in percent."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    logging.disable()
    watch = Watch()
    for part, places in PARTS.items():
        for where, name in places:
            setattr(where, name, watch.over(part, getattr(where, name)))
    print(
        json.dumps({name: shares(overrides, watch) for name, overrides in CASES.items()}, indent=1)
    )


if __name__ == "__main__":
    main()
