"""Compares the CPU time of selecting entries of a vector with torch and NumPy.

    python -m papers.benchmarks.selection       # JSON on stdout, about four minutes

The exit code is 1 if a target is not met. All functions run on one thread. EdgeWire's function and
the baseline alternate; a ratio is the median ratio of their CPU times (`papers.benchmarks.cpu`).

The time is that of the whole call. EdgeWire's function takes float32 values and returns sorted
uint32 indices. torch's function returns int64 indices in any order. torch.topk needs the magnitudes
as input, so its time is measured with and without the computation of the magnitudes.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from edgewire.compression.base import Indices, Vector
from edgewire.compression.selection import largest, uniform, weighted
from edgewire.task.process import configure_process
from papers.benchmarks.cpu import ratios, turn

Check = dict[str, Any]
MULTINOMIAL = "torch.multinomial(w, k, replacement=False)"
SMALLER = (61_706, 1_200_000)  # LeNet-5, a CNN


def update(n: int) -> Vector:
    """Return a synthetic update, float32 (n,): Student's t with 3 degrees of freedom, 60 scales."""
    draw = np.random.default_rng(0)
    scales = (10.0 ** draw.uniform(-3, 0, 60)).astype(np.float32)
    values = draw.standard_t(3, n).astype(np.float32)
    values *= np.repeat(scales, -(-n // 60))[:n]
    return values


def compare(
    what: str,
    ours: Callable[[], object],
    others: Mapping[str, Callable[[], object]],
    cycles: int,
    demanded: float | None = None,
    **more: bool,
) -> Check:
    """Return one check: the CPU times of `ours` and `others`, as ratios to that of the first other.

    `what`: the check's name. The check is met if the ratio of `ours` is at most `demanded` and all
    values of `more` are true.
    """
    baseline = next(iter(others))
    timed = ratios({**others, "ours": ours}, baseline, cycles)
    result: Check = {"check": what, **timed.pop("ours"), **more, "baseline": baseline}
    if demanded is not None:
        met = result["ratio"] <= demanded and all(more.values())
        result |= {"demanded": f"<= {demanded:g}", "met": met}
    return {**result, "others": timed}


def is_exact(values: Vector, k: int, found: Indices) -> bool:
    """Return whether `found` has the indices of the k largest magnitudes, in increasing order.

    Of equal magnitudes, the one with the lower index must be in `found`.
    """
    order = np.argsort(-np.abs(values), kind="stable")[:k]
    return bool(np.array_equal(found, np.sort(order)))


def is_set(n: int, k: int, found: Indices) -> bool:
    """Return whether `found` has k different indices below n, in increasing order."""
    signed = found.astype(np.int64)
    return len(found) == k and bool((np.diff(signed) > 0).all()) and bool(signed[-1] < n)


def exact_check(n: int, density: float, cycles: int, demanded: float | None = None) -> Check:
    """Compare EdgeWire's exact top-k selection with torch and NumPy; check that it is exact."""
    values, k = update(n), max(1, int(density * n))
    x = torch.from_numpy(values)
    magnitudes = x.abs()
    return compare(
        f"exact top-k, n {n:,}, {density:.1%}",
        lambda: largest(values, k),
        {
            "torch.topk(x.abs(), k, sorted=False)": lambda: torch.topk(x.abs(), k, sorted=False),
            "torch.topk(magnitudes, k, sorted=False)": lambda: torch.topk(
                magnitudes, k, sorted=False
            ),
            "np.argpartition(np.abs(x), n - k)[n - k :]": lambda: np.argpartition(
                np.abs(values), n - k
            )[n - k :],
            "torch.kthvalue(x.abs(), n - k + 1)": lambda: torch.kthvalue(x.abs(), n - k + 1),
        },
        cycles,
        demanded,
        exact=is_exact(values, k, largest(values, k)),
    )


def weighted_checks(n: int, cycles: int) -> Iterator[Check]:
    """Compare random selections of k of n entries by weight (the magnitude) with torch.

    torch accepts at most 2**24 weights.
    """
    weights, k, draw = np.abs(update(n)), n // 100, np.random.default_rng(1)
    w = torch.from_numpy(weights)
    yield compare(
        f"weighted, n {n:,}, 1.0%",
        lambda: weighted(weights, k, draw),
        {MULTINOMIAL: lambda: torch.multinomial(w, k, replacement=False)},
        cycles,
        0.2,
        is_set=is_set(n, k, weighted(weights, k, draw)),
    )
    most = 1 << 25
    weights, k = np.abs(update(most)), most // 100
    w = torch.from_numpy(weights)
    try:
        said = f"{len(torch.multinomial(w, k, replacement=False))} indices"
    except RuntimeError as error:
        said = str(error)
    met = is_set(most, k, weighted(weights, k, draw))
    yield {
        "check": f"weighted, n 2**25 = {most:,}, 1.0%",
        "seconds": round(turn(lambda: weighted(weights, k, draw)), 4),
        "is_set": met,
        "demanded": "works",
        "met": met,
        "others": {MULTINOMIAL: said},
    }


def uniform_check(n: int, density: float, cycles: int) -> Check:
    """Compare uniform random selection of k of n entries with torch and NumPy, without a target."""
    draw, k = np.random.default_rng(2), int(density * n)
    return compare(
        f"uniform, n {n:,}, {density:.1%}",
        lambda: uniform(n, k, draw),
        {
            "torch.randperm(n)[:k]": lambda: torch.randperm(n)[:k],
            "generator.choice(n, k, replace=False, shuffle=False)": lambda: draw.choice(
                n, k, replace=False, shuffle=False
            ),
        },
        cycles,
        is_set=is_set(n, k, uniform(n, k, draw)),
    )


def main() -> None:
    """Print the checks; exit with code 1 if a target is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--n", type=int, default=11_200_000, help="entries; ResNet18 has 11.2 M")
    options = parser.parse_args()
    configure_process()
    n, cycles = options.n, options.cycles
    checks = [
        exact_check(n, 0.01, cycles, demanded=0.10),
        *(exact_check(n, density, cycles) for density in (0.001, 0.1)),
        *(exact_check(size, 0.01, cycles) for size in SMALLER),
        *weighted_checks(n, cycles),
        *(uniform_check(n, density, cycles) for density in (0.001, 0.01, 0.1, 0.5)),
    ]
    versions = {"numpy": np.__version__, "torch": torch.__version__, "on": platform.machine()}
    unmet = [line["check"] for line in checks if not line.get("met", True)]
    print(json.dumps({**versions, "checks": checks, "unmet": unmet}, indent=2))
    sys.exit(bool(unmet))


if __name__ == "__main__":
    main()
