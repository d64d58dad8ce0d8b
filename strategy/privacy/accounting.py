"""Epsilon and delta of noisy steps, by Google's package `dp-accounting` (the extra `privacy`).

A step is a Gaussian mechanism on a Poisson sample: of a node's samples, or of the nodes of a run.
Data sets are neighbours if one sample, or node, of one is replaced by an empty one. The divisor of
a sum of nodes is fixed, so an empty node is an absent one, and the bound is that of adding or
removing a node, too. A bound by Renyi differential privacy (Mironov 2017) at integer orders,
where it has a closed form, decides how many steps fit a budget. The bound that is shown is the
smaller one of it and of a bound by the distribution of privacy losses, PLD (Koskela et al. 2020).
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from edgewire.conf.build import share_of, steps_of
from edgewire.conf.privacy import NODE, Privacy
from edgewire.conf.schema import Config, ConfigError

RDP, PLD = "RDP", "PLD"
ORDERS = (*range(2, 33), *range(36, 65, 4), 72, 80, 96, 128, 192, 256)
SHARP = 50.0  # up to this epsilon PLD is computed: beyond, it takes memory, and no bound is of use
MOST_STEPS, MOST_NOISE = 1 << 40, 10_000
UNLUCKY = 0.01  # the probability that a node is drawn more often than planned


class Mechanism(NamedTuple):
    """A noisy step: `rate`, the probability that a unit is in it, and its noise multiplier."""

    rate: float
    noise: float


Spent = Counter[Mechanism]  # the steps of each mechanism


def epsilon_of(spent: Mapping[Mechanism, int], delta: float, method: str = RDP) -> float:
    """Return a bound of epsilon after all these steps, by `RDP` or `PLD`.

    Raises `ConfigError` if the package is not installed.
    """
    try:
        dp = import_module("dp_accounting")
    except ImportError:
        needed = "privacy= needs the package dp-accounting: pip install -e '.[privacy]'"
        raise ConfigError(needed) from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of rounding for much noise
    near = dp.NeighboringRelation.REPLACE_SPECIAL
    accountant = dp.rdp.RdpAccountant(ORDERS, near) if method == RDP else dp.pld.PLDAccountant(near)
    for (rate, noise), steps in (+Counter(spent)).items():
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


def noise_for(privacy: Privacy, steps: int, before: Spent) -> float:
    """Return the least noise multiplier, to three decimals, that keeps the steps within the budget.

    `before`: the steps that have been taken already. Raises `ConfigError` if no noise does.
    """
    budget = privacy.epsilon or math.inf

    def margin(thousandths: int) -> float:
        own = Mechanism(privacy.rate, thousandths / 1000)
        return -epsilon_of(before + Counter({own: steps}), privacy.delta)

    every = range(1, MOST_NOISE * 1000)
    if (least := -margin(every[-1])) > budget:  # the conversion of an RDP of 0 to delta is above 0
        raise ConfigError(
            f"no noise reaches privacy.epsilon={budget:g} at privacy.delta={privacy.delta:g} "
            f"by RDP of orders up to {ORDERS[-1]}: give a larger one than {least + 0.005:.2f}"
        )
    return (1 + bisect_left(every, -budget, key=margin)) / 1000


def most_steps(privacy: Privacy, own: Mechanism, before: Spent) -> int:
    """Return how many steps of a mechanism stay within the budget after those `before`."""

    def epsilon(steps: int) -> float:
        return epsilon_of(before + Counter({own: steps}), privacy.delta)

    return bisect_right(range(MOST_STEPS), privacy.epsilon or math.inf, key=epsilon) - 1


def planned_messages(config: Config) -> int:
    """Return how many messages the run plans to send to the node that gets the most.

    With privacy=node these are the rounds. Otherwise, if nodes are drawn, or answer an asynchronous
    server at random, a node gets more with the probability `UNLUCKY`; the run then ends earlier.
    """
    strategy, nodes, rounds = config.strategy, config.nodes, config.rounds
    if config.privacy.unit == NODE:
        return rounds
    pushes = strategy.get("pushes") is not None  # `config.rounds` is their number
    share = min((strategy.get("most") or 1) / nodes, 1) if pushes else share_of(config)
    most = rounds if share == 1 else _unlucky(rounds, share, UNLUCKY / nodes)
    return max(most + (pushes and share < 1), 1)  # one may have no reply at the end


def _unlucky(rounds: int, share: float, most: float) -> int:
    """Return the least number of draws that a node exceeds with a probability of at most `most`."""
    # Imported here: few runs need it. It is `scipy.stats.binom.isf`, which takes longer to import.
    from scipy.special import bdtrc

    return bisect_left(range(rounds), True, key=lambda k: bool(bdtrc(k, rounds, share) <= most))


def told(spent: Spent, config: Config) -> dict[str, Any]:
    """Return what a result says of privacy. Steps of another mechanism are of earlier runs."""
    options, delta = config.privacy, config.privacy.delta
    epsilon, method = _least(tuple(spent.items()), delta)
    own = spent.get(Mechanism(options.rate, options.noise or math.inf), 0)
    earlier = sum(spent.values()) - own
    unit, times = "message" if "pushes" in config.strategy else "round", own / steps_of(config)
    words = f"{times:.0f} {unit}{'s' * (times != 1)}, q={options.rate:g}, z={options.noise:g}"
    words += f", after {earlier:,} earlier steps" * bool(earlier)
    return {
        **asdict(options),
        "text": f"epsilon {epsilon + 0.005:.2f} at delta {delta:g} ({words})",  # rounded up
        "budget": options.epsilon,
        **{"epsilon": epsilon, "method": method},
        "spent": [[*each, steps] for each, steps in spent.items()],
    }


@lru_cache(maxsize=8)
def _least(spent: tuple[tuple[Mechanism, int], ...], delta: float) -> tuple[float, str]:
    """Return the smaller bound of epsilon, and the method that gives it."""
    rdp = epsilon_of(dict(spent), delta)
    pld = epsilon_of(dict(spent), delta, PLD) if rdp <= SHARP else math.inf
    return min((rdp, RDP), (pld, PLD))
