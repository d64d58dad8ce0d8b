"""Compares the speed of both forms of synthetic-gradient modules, in runs of the whole application.

    python -m papers.benchmarks.modules                       # JSON on stdout (about ten minutes)
    python -m papers.benchmarks.modules --models four_layers

For each model, a run whose modules are `predicted_gradient` and one whose modules are
`gradient_of_loss` alternate (`papers.benchmarks.timing`), each with all of its nodes in one
process. All other options are equal. The images are scikit-learn's digits, enlarged, so nothing is
downloaded. The third contestant is backpropagation of the uncut model, in a run with one node.
"""

import argparse
import json
from contextlib import ExitStack
from typing import Any

from papers.benchmarks.engine import application
from papers.benchmarks.segments import BLOCK, settings
from papers.benchmarks.timing import Contestant, compare

CUTS = "strategy.cuts=[2,4,7,10,13]"
MODELS = {
    "four_layers": ("nodes=4",),
    "eight_layers": ("nodes=8",),
    "vgg16_narrow": ("nodes=6", CUTS, "batch_size=32"),
    "vgg16": ("nodes=6", CUTS, "batch_size=32"),
}
FORMS = ("predicted_gradient", "gradient_of_loss")
LEAST = 0.9  # target: steps per second, as a multiple of those with `predicted_gradient`


def measure(model: str, cycles: int) -> dict[str, Any]:
    """Return the times of a model's runs; the first is the baseline of the ratios."""
    words = (f"model={model}", *MODELS[model])
    with ExitStack() as stack:
        children: dict[str, Contestant] = {
            form: stack.enter_context(
                application(1, settings("synthetic_gradients", *words, f"strategy.module={form}"))
            )
            for form in FORMS
        }
        whole = [word for word in words if "cuts" not in word and "nodes" not in word]
        children["backpropagation, one node"] = stack.enter_context(
            application(1, settings("split_backprop", "nodes=1", *whole))
        )
        result: dict[str, Any] = compare(children, FORMS[0], cycles=cycles, rounds=1, warmup=1)
    for row in result.values():
        row["ms a step"] = round(row["seconds"] / BLOCK * 1e3, 2)
        row["steps a second, times predicted_gradient"] = round(1 / row.get("ratio", 1), 3)
    return result


def main() -> None:
    """Compare the runs of the named models, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    found: dict[str, Any] = {model: measure(model, options.cycles) for model in options.models}
    key = "steps a second, times predicted_gradient"
    found["unmet"] = [
        f"{model}: {rows[FORMS[1]][key]}, not {LEAST}"
        for model, rows in found.items()
        if rows[FORMS[1]][key] < LEAST
    ]
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
