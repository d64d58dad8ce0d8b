"""One bad node of ten: every attack of `tests/hostile.py` on every strategy.

    python -m benchmarks.hostile_nodes                       # JSON on stdout; about half an hour
    python -m benchmarks.hostile_nodes --strategies fedavg,esgd --attacks "zeros,no loss"

Of each strategy: the accuracy without the bad node's attack, and those attacks that end the run,
leave values that are not finite, or cost more than two points. scikit-learn's digits, an MLP.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.timing import ROOT
from client.app import app as honest
from conf.load import compose_config, run_config
from simulation.job import Job
from simulation.local import run_local, uncollected
from tests.hostile import ATTACKS, Attack, app_with

NODES, POINTS = 10, 0.02
ROBUST = ["compression=f2i", "strategy.num_malicious_nodes=1", "rounds=10"]
STRATEGIES = {
    **{
        name: [f"strategy={name}", "compression=f2i", "rounds=10"]
        for name in ("fedavg", "fedavgm", "fedprox", "fedmedian", "fedtrimmedavg", "qfedavg")
    },
    **{
        name: [f"strategy={name}", "compression=f2i", "rounds=20"]
        for name in ("fedadam", "fedyogi", "fedadagrad")
    },
    **{name: [f"strategy={name}", *ROBUST] for name in ("krum", "multikrum", "bulyan")},
    "fedavg_topk": ["algorithm=fedavg_topk", "rounds=15"],
    "sgd": ["algorithm=sgd", "rounds=100", "eval_every=100"],
    "esgd": ["algorithm=esgd", "rounds=250", "eval_every=250"],
    "cesgd": ["algorithm=cesgd", "rounds=200", "eval_every=200"],
    "dgc": ["algorithm=dgc", "rounds=150", "eval_every=150"],
    "esgd_median": ["algorithm=esgd", "rounds=250", "eval_every=250", "strategy.mean=median",
                     "strategy.absent=left_out"],
    **{
        name: [f"algorithm={name}", *(f"{key}={pushes}" for key in
               ("strategy.pushes", "strategy.record_every", "eval_every"))]
        for name, pushes in {"adacomp": 1500, "asgd": 1500, "fedasync": 100, "fedbuff": 200}.items()
    },
}  # fmt: skip


def outcome(words: list[str], attack: Attack | None) -> dict[str, Any]:
    """Run once; return the accuracy, whether the weights are finite, and why it ended."""
    composed = compose_config([f"nodes={NODES}", *words])
    with tempfile.TemporaryDirectory() as folder:
        app = honest if attack is None else app_with(attack)
        job = Job(ROOT, run_config(composed, folder), NODES, Path(folder), client_app=app)
        try:
            run_local(job, workers=1)
        except Exception as error:
            return {"accuracy": None, "ended": f"{type(error).__name__}: {error}"[:200]}
        result = json.loads((Path(folder) / "result.json").read_text())
    return {key: result[key] for key in ("accuracy", "ended", "diverged", "failures")}


def main() -> None:
    """Print the matrix's exceptions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    args = parser.parse_args()
    logging.disable()
    report = {}
    with uncollected():
        for name in args.strategies.split(","):
            words = STRATEGIES[name]
            without = outcome(words, None)
            found = {each: outcome(words, ATTACKS[each]) for each in args.attacks.split(",")}
            report[name] = {
                "without": without["accuracy"],
                "attacks": len(found),
                "lost": {
                    each: made
                    for each, made in found.items()
                    if made["ended"] != "finished"
                    or made["diverged"]
                    or made["accuracy"] < without["accuracy"] - POINTS
                },
            }
            print(name, report[name], file=sys.stderr, flush=True)
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
