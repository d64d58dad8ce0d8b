"""Learning rates equal the rates of torch's schedulers."""

import pytest

from strategy.lr_schedule import Schedule
from tests.runs import configured


def rates(*overrides, rounds=6, losses=None):
    made = configured(f"rounds={rounds}", "lr=0.1", *overrides)
    schedule, seen = Schedule(made.schedule, made.lr), []
    for i in range(rounds):
        seen.append(schedule.lr)
        schedule.step(losses[i] if losses else None)
    return seen


def test_constant():
    assert rates() == [0.1] * 6


def test_step():
    got = rates("schedule=step", "schedule.step_size=2", "schedule.gamma=0.5")
    assert got == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


def test_cosine_ends_at_its_minimum():
    got = rates("schedule=cosine", rounds=10)
    assert got[0] == pytest.approx(0.1)
    assert got == sorted(got, reverse=True)
    assert got[5] == pytest.approx(0.05)
    assert 0 < got[-1] < 0.01


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
