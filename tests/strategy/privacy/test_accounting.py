"""Epsilon equals an independent computation, and the noise that is found just fits the budget."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb, logsumexp

from edgewire.conf.privacy import Privacy
from edgewire.conf.schema import ConfigError
from edgewire.strategy.privacy.accounting import (
    MOST_NOISE,
    ORDERS,
    PLD,
    Mechanism,
    Spent,
    epsilon_of,
    most_steps,
    noise_for,
    planned_messages,
    told,
)
from tests.runs import configured

MECHANISMS = st.builds(Mechanism, st.floats(0.001, 1), st.floats(0.4, 8))
DELTAS = st.floats(-9, -2).map(lambda power: 10**power)


def rdp_of_a_step(order, q, z):
    """Return Renyi's divergence (Mironov, Talwar and Zhang 2019, section 3.3), integer orders."""
    k = np.arange(order + 1)
    if q == 1:
        return order / (2 * z * z)
    terms = np.log(comb(order, k)) + k * math.log(q) + (order - k) * math.log1p(-q)
    return logsumexp(terms + k * (k - 1) / (2 * z * z)) / (order - 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(20))
def test_epsilon_is_that_of_dp_accounting_and_of_the_closed_form(seed):
    """200 drawn steps; the conversion to delta is that of Canonne et al. 2020, proposition 12."""
    random = np.random.default_rng(seed)
    for _ in range(10):
        q, z = random.choice([1.0, 10 ** random.uniform(-3, 0)]), random.uniform(0.4, 8)
        steps, delta = int(10 ** random.uniform(0, 4)), 10 ** random.uniform(-9, -2)
        found = epsilon_of({Mechanism(q, z): steps}, delta)
        event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))
        accountant = dp.rdp.RdpAccountant(ORDERS).compose(event, steps)
        assert found == pytest.approx(accountant.get_epsilon(delta), abs=1e-6, rel=1e-9)
        bounds = [
            steps * rdp_of_a_step(a, q, z)
            + math.log1p(-1 / a)
            - (math.log(delta) + math.log(a)) / (a - 1)
            for a in ORDERS
        ]
        own = max(min(bounds), 0)
        assert found <= own * (1 + 1e-6) + 1e-6
        if own and min(bounds) < bounds[-1]:
            assert found == pytest.approx(own, rel=1e-6)


def test_pld_is_that_of_dp_accounting_and_below_rdp():
    event = dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(2.0))
    accountant = dp.pld.PLDAccountant().compose(event, 200)
    spent = {Mechanism(0.05, 2.0): 200}
    assert epsilon_of(spent, 1e-5, PLD) == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-6)
    assert epsilon_of(spent, 1e-5, PLD) < epsilon_of(spent, 1e-5)


@settings(max_examples=2, deadline=None)
@given(MECHANISMS, MECHANISMS, st.integers(0, 50), st.floats(0.5, 20), DELTAS, st.integers(1, 500))
def test_the_noise_and_the_steps_just_fit_the_budget(before, own, old, epsilon, delta, steps):
    privacy = Privacy(unit="sample", epsilon=epsilon, delta=delta, rate=own.rate)
    earlier = Spent({before: old})
    if epsilon_of(earlier, delta) >= epsilon:
        return
    noise = noise_for(privacy, steps, earlier)
    found = Mechanism(own.rate, noise)
    assert epsilon_of({**earlier, found: steps}, delta) <= epsilon
    less = Mechanism(own.rate, noise - 0.001)
    assert epsilon_of({**earlier, less: steps}, delta) > epsilon
    most = most_steps(privacy, found, earlier)
    assert most >= steps
    assert epsilon_of({**earlier, found: most}, delta) <= epsilon
    assert epsilon_of({**earlier, found: most + 1}, delta) > epsilon


@pytest.mark.parametrize("before", [Spent(), Spent({Mechanism(0.1, 2.0): 20})])
def test_a_budget_that_no_noise_reaches_is_refused_with_one_that_is_reached(before, capfd, caplog):
    """The least noise would be above 10,000. That a bound of 0 rounds is no warning here."""
    privacy = Privacy(unit="sample", epsilon=0.01)
    with pytest.raises(ConfigError, match="no noise reaches") as caught:
        noise_for(privacy, 20, before)
    more = float(str(caught.value).split()[-1])
    assert noise_for(Privacy(unit="sample", epsilon=more + 0.01), 20, before) < MOST_NOISE
    assert epsilon_of({Mechanism(1e-9, 5000.0): 1}, 1e-5) == 0
    assert (capfd.readouterr().err, caplog.text) == ("", "")


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ("algorithm=fedavg rounds=20", 20),
        ("algorithm=fedavg rounds=200 strategy.fraction_train=0.1 nodes=100", 37),
        ("algorithm=adacomp strategy.pushes=100 nodes=10", 21),
        ("algorithm=adacomp strategy.pushes=100 nodes=10 strategy.most=1.5", 28),
        ("algorithm=adacomp strategy.pushes=100 nodes=1", 100),
    ],
)
def test_the_messages_to_the_busiest_node_are_planned(words, messages):
    assert planned_messages(configured(*words.split())) == messages


def test_a_result_says_what_was_spent():
    words = ["privacy=sample", "privacy.noise=2", "privacy.rate=0.05", "local_steps=4"]
    spent = {Mechanism(0.05, 2.0): 200, Mechanism(0.1, 2.0): 30}
    found = told(spent, configured("algorithm=fedavg", *words))
    assert found["text"].endswith("at delta 1e-05 (50 rounds, q=0.05, z=2, after 30 earlier steps)")
    assert 0 <= float(found["text"].split()[1]) - found["epsilon"] <= 0.01  # rounded up
    assert found["epsilon"] == min(epsilon_of(spent, 1e-5), epsilon_of(spent, 1e-5, PLD))
    assert (found["method"], found["budget"]) == ("PLD", 8.0)
