"""Audits privacy=node: canary nodes show how well an attacker tells who took part.

    python -m papers.benchmarks.canary_audit            # JSON; needs the extra privacy; 3 minutes

A run has 1,000 nodes that train on the digits. Half of them are canaries: each sends, in place of
its update, a very long vector at coordinates of its own, or, with the probability 1/2, nothing but
zeros. The attacker sees all models. It knows each canary's vector and the updates of all other
nodes, which it subtracts. Its score is the canary's share in the rest of all steps. This is an
audit with many canaries in a run (Andrew et al. 2024, "One-shot empirical privacy estimation for
federated learning"). Differential privacy bounds both errors of the attacker, so errors below these
bounds refute epsilon (Kairouz et al. 2015, theorem 2.1).
`at_least` is the largest epsilon that is refuted at a confidence of 95 %: the thresholds are chosen
in the first half of the runs, and the errors are counted in the second half.

The last case has a fifth of the noise that its epsilon needs. There `at_least` must be above it:
otherwise the audit would find nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from edgewire.client.training import Trainer
from edgewire.strategy.privacy.rounds import NoisyMean
from edgewire.task.local.secret_draws import uniform
from tests.local_runs import local_run
from tests.runs import result_of

NODES, CANARIES, CLIP, DELTA, CONFIDENCE = 1000, 500, 0.3, 1e-5, 0.95
RUN = [
    *("algorithm=fedavg_topk", "compression=f2i", "downlink=full", "dataset=digits"),
    *("strategy.weighted_by_key=null", "privacy=node", "privacy.epsilon=2", f"nodes={NODES}"),
    *(f"privacy.delta={DELTA}", "eval_every=10", "checkpoint_every=0"),
]
# Rounds, q, the noise multiplier that epsilon 2 needs at least, and by what it is divided.
CASES = {
    "q=1": (10, 1.0, 6.8, 1.0),
    "q=0.2": (20, 0.2, 2.34, 1.0),
    "a fifth of the noise": (10, 1.0, 6.8, 5.0),
}
Floats = NDArray[np.float64]


def scores(rounds: int, rate: float, noise: float, less: float) -> tuple[Floats, NDArray[Any], Any]:
    """Return the canaries' scores in a run, which of them took part, and what the run says."""
    there = uniform(CANARIES).numpy() < 0.5
    released, known = list[Floats](), list[Floats]()
    update, take = Trainer.update, NoisyMean.take

    def sending(self: Trainer, node: Any, model: Any, *rest: Any) -> Any:
        canary = node.index - (NODES - CANARIES)
        if canary < 0:
            found, metrics = update(self, node, model, *rest)
            exact = found.astype(np.float64)
            known.append(exact * min(1.0, CLIP / float(np.linalg.norm(exact))))
            return found, metrics
        vector = np.zeros_like(model)
        if there[canary]:
            vector[canary::CANARIES] = 100.0
        return vector, {"loss": 0.0, "num-examples": 1, "num-steps": 1}

    def noting(self: NoisyMean) -> Any:
        taken = take(self)
        released.append(taken[1] - np.sum(known, axis=0) / self.expected)
        known.clear()
        return taken

    made = NoisyMean.__init__

    def making(self: NoisyMean, size: int, clip: float, noise: float, expected: float) -> None:
        made(self, size, clip, noise / less, expected)

    with tempfile.TemporaryDirectory() as folder:
        words = [f"rounds={rounds}", f"strategy.fraction_train={rate}", f"privacy.noise={noise}"]
        with (
            patch.object(Trainer, "update", sending),
            patch.object(NoisyMean, "take", noting),
            patch.object(NoisyMean, "__init__", making),
        ):
            local_run(Path(folder), *RUN, *words)
        said = result_of(Path(folder))["privacy"]
    total = np.sum(released, axis=0)
    return np.array([total[c::CANARIES].mean() for c in range(CANARIES)]), there, said


def at_least(first: list[tuple[Floats, NDArray[Any]]], second: Any) -> float:
    """Return the largest epsilon that the errors refute; 0 if there is none."""
    (chosen, here), (tested, there) = (
        map(np.concatenate, zip(*half, strict=True)) for half in (first, second)
    )
    found = max((refuted(chosen, here, t), t) for t in np.unique(chosen))
    return max(refuted(tested, there, found[1]), 0.0)


def refuted(found: Floats, there: NDArray[Any], threshold: float) -> float:
    """Return the epsilon below which the counts at a threshold have at most the probability 5 %."""
    hits, alarms = (int((found[each] >= threshold).sum()) for each in (there, ~there))
    present, absent = int(there.sum()), int((~there).sum())
    share = 1 - (1 - CONFIDENCE) / 4  # four bounds, each from one side
    least = beta.ppf(1 - share, hits, present - hits + 1) if hits else 0.0
    most = beta.ppf(share, alarms + 1, absent - alarms) if alarms < absent else 1.0
    fewest = beta.ppf(1 - share, absent - alarms, alarms + 1) if alarms < absent else 0.0
    missed = beta.ppf(share, present - hits + 1, hits) if hits else 1.0
    ways = [(least, most), (fewest, missed)]
    return max(math.log((p - DELTA) / q) if p > DELTA else -math.inf for p, q in ways)


def main() -> None:
    """Print the audits as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=4, help="runs of each case, an even number")
    runs = options.parse_args().runs
    for name, (rounds, rate, noise, less) in CASES.items():
        made = [scores(rounds, rate, noise, less) for _ in range(runs)]
        halves = [[each[:2] for each in made[half::2]] for half in (0, 1)]
        row = {"case": name, "printed": made[0][2]["text"], "at_least": at_least(*halves)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
