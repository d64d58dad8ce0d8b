"""Learning rates equal the rates of torch's schedulers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import zeros
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from edgewire.conf.schema import ConfigError
from edgewire.strategy.lr_schedule import Schedule
from edgewire.task.objectives import Metric
from edgewire.task.objectives.regression import Regression
from tests.runs import configured


def rates(*overrides, rounds=6, losses=None):
    made = configured(f"rounds={rounds}", "lr=0.1", *overrides)
    schedule, seen = Schedule(made.schedule, made.lr), []
    for i in range(rounds):
        seen.append(schedule.lr)
        schedule.step(losses[i] if losses else None)
    return seen


def test_constant_and_step():
    assert rates() == [0.1] * 6
    got = rates("schedule=step", "schedule.step_size=2", "schedule.gamma=0.5")
    assert got == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


def test_cosine_ends_at_its_minimum():
    got = rates("schedule=cosine", rounds=10)
    assert got[0] == pytest.approx(0.1)
    assert got == sorted(got, reverse=True)
    assert got[5] == pytest.approx(0.05)
    assert 0 < got[-1] < 0.01


def test_one_cycle_rises_and_falls_over_all_rounds():
    got = rates("schedule=one_cycle", rounds=40)
    top = got.index(max(got))
    assert (max(got), got[0]) == (pytest.approx(0.1), pytest.approx(0.1 / 25))
    assert top == 3  # a tenth of the rounds
    assert got == sorted(got[:top]) + sorted(got[top:], reverse=True)
    assert 0 < got[-1] < 0.001


@settings(max_examples=40)
@given(st.integers(1, 60), st.floats(0, 1))
def test_one_cycle_has_a_rate_for_every_round(rounds, share):
    got = rates("schedule=one_cycle", f"schedule.pct_start={share}", rounds=rounds)
    assert all(0 < rate <= 0.1 * (1 + 1e-6) for rate in got)
    assert max(got) > 0.05 or rounds < 3


def test_a_cooldown_is_constant_and_then_linear():
    got = rates("schedule=cooldown", rounds=20)
    assert got == pytest.approx([0.1] * 17 + [0.075, 0.05, 0.025])
    assert rates("schedule=cooldown", rounds=2) == pytest.approx([0.1, 0.1])
    falling = rates("schedule=cooldown", "schedule.share=1", rounds=4)
    assert falling == pytest.approx([0.1, 0.075, 0.05, 0.025])
    for share in (0, 1.5, -1):
        with pytest.raises(ConfigError, match="share must be above 0"):
            rates("schedule=cooldown", f"schedule.share={share}")


def test_several_rounds_at_once():
    made = configured("rounds=6", "lr=0.1", "schedule=cosine")
    schedule = Schedule(made.schedule, made.lr)
    schedule.step(None, rounds=3)
    assert schedule.lr == pytest.approx(rates("schedule=cosine")[3])


def test_plateau_uses_the_mean_loss_of_several_rounds_once():
    words = ["schedule=plateau", "schedule.patience=1", "schedule.factor=0.5"]
    schedule = Schedule(configured(*words).schedule, 0.1)
    for _ in range(2):
        schedule.step(5.0, rounds=50)
    assert schedule.lr == 0.1
    schedule.step(5.0, rounds=0)
    assert schedule.lr == 0.1
    schedule.step(5.0, rounds=50)
    assert schedule.lr == 0.05


def test_plateau_waits_for_the_loss():
    overrides = ["schedule=plateau", "schedule.patience=1", "schedule.factor=0.5"]
    assert rates(*overrides, losses=[6, 5, 4, 3, 2, 1]) == [0.1] * 6
    got = rates(*overrides, losses=[5, 5, 5, 5, 5, 5])
    assert got == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.025])
    assert rates(*overrides) == [0.1] * 6  # a round without a loss changes nothing


LIKELIHOOD = Metric("density", higher=True)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-100, 100).filter(lambda v: abs(v) > 1e-3), min_size=2, max_size=12))
def test_a_plateau_goes_by_the_direction_of_the_metric_and_not_by_its_sign(values):
    """A rate falls in the same rounds for a value, and for its negative in the other direction."""
    words = ["schedule=plateau", "schedule.patience=1", "schedule.metric=density", "rounds=20"]
    node = configured(*words).schedule
    seen = []
    for sign in (1, -1):
        metrics = (LIKELIHOOD._replace(higher=sign > 0),)
        schedule = Schedule(node, 0.1, type("Mine", (Regression,), {"metrics": metrics})())
        seen.append([])
        for value in values:
            schedule.step(sign * value)
            seen[-1].append(schedule.lr)
    assert seen[0] == seen[1]
    best, waited, rate = -math.inf, 0, 0.1
    for value, found in zip(values, seen[0], strict=True):
        better = value > best + 1e-4 * abs(best) if math.isfinite(best) else True
        best, waited = (value, 0) if better else (best, waited + 1)
        rate, waited = (rate * 0.1, 0) if waited > 1 else (rate, waited)
        assert found == pytest.approx(rate)


@pytest.mark.few(1)
@pytest.mark.parametrize(("metric", "mode"), [("train_loss", "min"), ("score", "max")])
def test_a_plateau_is_that_of_torch_in_the_direction_of_its_metric(metric, mode):
    values = [5, 4, 4 * (1 - 5e-5), 4 * (1 - 2e-4), 3.9, 3.9, 4.2, 3.9, 3.9, 3.9]
    node = configured("schedule=plateau", "schedule.patience=1", f"schedule.metric={metric}")
    mine = type("Mine", (Regression,), {"metrics": (Metric("score", higher=True),)})
    schedule, optimizer = Schedule(node.schedule, 0.1, mine()), SGD([zeros(1)], lr=0.1)
    torchs = ReduceLROnPlateau(optimizer, mode, patience=1)
    for value in values:
        schedule.step(value)
        torchs.step(value)
        assert schedule.lr == optimizer.param_groups[0]["lr"]
    assert schedule.lr < 0.1


def test_a_metric_that_is_not_measured_is_refused_with_the_measured_ones():
    node = configured("schedule=plateau", "schedule.metric=iou").schedule
    with pytest.raises(ConfigError, match=r"=iou.* loss, mae, rmse, train_loss"):
        Schedule(node, 0.1, Regression())
