"""Measures every attack of `tests/hostile.py` on every strategy, with one malicious node of ten.

    python -m papers.benchmarks.hostile_nodes                # prints JSON; takes about an hour
    python -m papers.benchmarks.hostile_nodes --strategies fedavg,esgd --attacks "zeros;no loss"
    python -m papers.benchmarks.hostile_nodes --defences     # the defences of docs/bad-nodes.md

For each strategy it prints the accuracy without an attack, and the attacks that end the run, leave
values that are not finite, or cost more than two points of accuracy. The runs train an MLP on
scikit-learn's digits. The strategies "NAME batchnorm" train `model=four_layers`, whose BatchNorm
statistics can be forged.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgewire.client.app import app as honest
from edgewire.simulation.local import uncollected
from tests.hostile import ATTACKS, CONTROLS, LIES, STATISTICS, STEPS, Attack, app_with
from tests.local_runs import local_run
from tests.runs import result_of

NODES, POINTS = 10, 0.02
ROBUST = ["compression=f2i", "strategy.num_malicious_nodes=1", "rounds=10"]


def rounds(name: str, count: int, *words: str) -> list[str]:
    """Return the overrides of a run of `count` rounds, which is evaluated at its end."""
    return [f"algorithm={name}", f"rounds={count}", f"eval_every={count}", *words]


def pushes(name: str, count: int) -> list[str]:
    """Return the overrides of an asynchronous run of `count` updates."""
    names = ("strategy.pushes", "strategy.record_every", "eval_every")
    return [f"algorithm={name}", *(f"{each}={count}" for each in names)]


SEGMENTS = ("strategy.segments=4", "batch_size=64")
ABSENT = ("strategy.mean=median", "strategy.absent=left_out")
STRATEGIES: dict[str, list[str]] = {}
for count, names in {
    10: "fedavg fedavgm fedprox fedmedian fedtrimmedavg qfedavg", 20: "fedadam fedyogi fedadagrad"
}.items():  # fmt: skip
    for each in names.split():
        STRATEGIES[each] = [f"strategy={each}", "compression=f2i", f"rounds={count}"]
STRATEGIES |= {name: [f"strategy={name}", *ROBUST] for name in ("krum", "multikrum", "bulyan")}
STRATEGIES |= {f"fedavg_{name}": [f"algorithm=fedavg_{name}", "rounds=10"]
               for name in ("f2i", "f2i_both")}  # fmt: skip
for count, names in {
    15: "fedavg_topk fedavg_dgc fedavg_esgd fedavg_cesgd",
    100: "sgd qsgd terngrad one_bit_sgd powersgd large_batch_f2i",
    250: "esgd cesgd dgc gradient_dropping random_k threshold_sgd",
}.items():
    STRATEGIES |= {name: rounds(name, count) for name in names.split()}
STRATEGIES |= {
    "esgd_median": rounds("esgd", 250, *ABSENT),
    **{name: pushes(name, 1500) for name in ("adacomp", "asgd", "comp_asgd")},
    "fedasync": pushes("fedasync", 100),
    "fedbuff": pushes("fedbuff", 200),
    **{name: rounds(name, 200, *SEGMENTS) for name in ("synthetic_gradients", "split_backprop")},
}
BATCHNORM = {  # strategies with a model that has running statistics
    **{name: STRATEGIES[name] for name in
       ("fedavg", "fedadam", "fedmedian", "krum", "esgd", "sgd", "adacomp", "fedasync")},
    "sgd_median": rounds("sgd", 100, "strategy.mean=median"),
    "sgd_trimmed": rounds("sgd", 100, "strategy.mean=trimmed"),
    "fedavg_clip": [*STRATEGIES["fedavg"], "screen.clip=2"],
}  # fmt: skip
BATCHNORM = {f"{n} batchnorm": [*words, "model=four_layers"] for n, words in BATCHNORM.items()}
STRATEGIES |= BATCHNORM

TURNED = {name: attack for name, attack in LIES.items() if name.startswith("turned round")}
COUNTED = {name: attack for name, attack in LIES.items() if name.startswith("a weight")}
SAMPLES, CONTROL = {**TURNED, **COUNTED}, {**TURNED, **CONTROLS}
ROBUST_20 = ["compression=f2i", "strategy.num_malicious_nodes=1", "rounds=20"]
FEDAVG = ["algorithm=fedavg", "rounds=20", "eval_every=20"]
DELTAS = ["strategy=sparse_averaging", "strategy.update=delta", *FEDAVG[1:]]
DEADLINE = [*DELTAS, "compression=none", "strategy.deadline=1"]
BY_STEPS = [*DEADLINE, "strategy.weighted_by_key=num-steps"]
SPARSE = [*DELTAS, "compression=topk"]
ADAM = rounds("one_bit_adam", 200, "strategy.optimizer.warmup_steps=50")
CLIPPED = {f"screen.clip={clip}": [f"screen.clip={clip}"] for clip in (2, 1)}
# Setting and defence -> the overrides, and the attacks: a row of the table in docs/bad-nodes.md.
DEFENCES: dict[str, tuple[list[str], dict[str, Attack]]] = {
    "fedavg": (FEDAVG, TURNED),
    "fedavg, median": (["strategy=fedmedian", *FEDAVG[1:]], SAMPLES),
    "fedavg, trimmed": (["strategy=fedtrimmedavg", *FEDAVG[1:]], SAMPLES),
    **{
        f"fedavg, {name}": ([f"strategy={name}", *ROBUST_20, "eval_every=20"], SAMPLES)
        for name in ("krum", "multikrum", "bulyan")
    },
    "fedavg, screen.clip=1 screen.equal=true": (
        [*FEDAVG, "screen.clip=1", "screen.equal=true"],
        SAMPLES,
    ),
    **{
        f"{setting}, {defence}": ([*words, *more], attacks)
        for setting, words, attacks in (
            ("fedavg", FEDAVG, TURNED),
            ("deadline", [*DEADLINE, "network=ideal"], STEPS),
            ("deadline on mixed", [*DEADLINE, "network=mixed"], STEPS),
            ("deadline weighted by steps", [*BY_STEPS, "network=ideal"], STEPS),
            ("scaffold", [*FEDAVG, "local=scaffold"], CONTROL),
            ("one_bit_adam", ADAM, TURNED),
        )
        for defence, more in CLIPPED.items()
    },
    **{
        f"topk, mean={mean} absent={absent}": (
            [*SPARSE, f"strategy.mean={mean}", f"strategy.absent={absent}"],
            TURNED,
        )
        for mean in ("median", "trimmed")
        for absent in ("zero", "left_out")
    },
    "one_bit_adam, median": ([*ADAM, "strategy.mean=median"], TURNED),
}


def outcome(words: list[str], attack: Attack | None, bad: int = 0) -> dict[str, Any]:
    """Run once; return the accuracy, why the run ended, whether it diverged, and its failures."""
    with tempfile.TemporaryDirectory() as folder:
        app = honest if attack is None else app_with(attack, bad)
        words = [*words, f"nodes={NODES}"]
        words += [] if any("network=" in word for word in words) else ["network=ideal"]
        try:
            local_run(Path(folder), *words, client_app=app)
        except Exception as error:
            return {"accuracy": None, "ended": f"{type(error).__name__}: {error}"[:200]}
        result = result_of(Path(folder))
    return {key: result[key] for key in ("accuracy", "ended", "diverged", "failures")}


def defences(bad: int) -> None:
    """Print, for each defence, the accuracy without an attack, the least with one, and which."""
    with uncollected():
        for name, (words, attacks) in DEFENCES.items():
            found = {each: outcome(words, attack, bad) for each, attack in attacks.items()}
            reached = {each: made["accuracy"] or 0.0 for each, made in found.items()}
            worst = min(reached, key=lambda each: reached[each])
            row = {"defence": name, "without": outcome(words, None)["accuracy"]}
            print(json.dumps({**row, "least": reached[worst], "attack": worst}), flush=True)


def main() -> None:
    """Run every attack on every strategy, and print the attacks that did harm as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--attacks", default=";".join(ATTACKS | STATISTICS))
    parser.add_argument("--bad", type=int, default=0, help="the bad node's partition")
    parser.add_argument("--defences", action="store_true", help="measure the defences instead")
    args, known = parser.parse_args(), {**ATTACKS, **STATISTICS, **LIES}
    logging.disable()
    if args.defences:
        defences(args.bad)
        return
    report = {}
    with uncollected():
        for name in args.strategies.split(","):
            words = STRATEGIES[name]
            without = outcome(words, None)
            attacks = args.attacks.split(";")
            if name not in BATCHNORM:  # the model has no running statistics
                attacks = [each for each in attacks if each not in STATISTICS]
            found = {each: outcome(words, known[each], args.bad) for each in attacks}
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
