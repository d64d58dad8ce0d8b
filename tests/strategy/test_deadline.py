"""With a deadline, each node gets the local steps and the density with which it replies in time."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgewire.strategy.deadline import (
    SAFETY,
    Deadline,
    DeadlinePlanner,
    Measurement,
    NodePace,
    NodePlan,
    fitted,
)
from tests.local_runs import local_run
from tests.runs import history_of, result_of

SECONDS = st.floats(0, 10)
DEADLINE = ["strategy.deadline=1"]
MIXED = [
    "algorithm=edgewire", "dataset=digits", "nodes=5", "rounds=6", "local_epochs=20",
    "network=mixed", "eval_every=6",
]  # fmt: skip
WITHOUT_DELAYS = ["network=ideal", "network.seconds_per_step=0", "local_epochs=2"]


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(100, 10**6)), min_size=3, max_size=8),
    SECONDS,
    SECONDS,
    SECONDS,
)
def test_the_fit_explains_exact_measurements(points, fixed, per_step, per_byte):
    per_byte /= 1e5
    made = [Measurement(fixed + per_step * s + per_byte * b, s, b) for s, b in points]
    assume(max(each.seconds for each in made) > 1e-3)
    a, b, c = fitted(made)
    assert min(a, b, c) >= 0
    for seconds, steps, size in made:
        assert a + b * steps + c * size == pytest.approx(seconds, rel=0.05, abs=0.05)


def test_noise_of_equal_replies_does_not_divide_the_time_anew():
    draw, before = np.random.default_rng(0), (1.0, 0.1, 0.001)
    made = [Measurement(3.0 * (1 + 0.05 * draw.random()), 10, 1000) for _ in range(8)]
    after = before
    for _ in range(10):
        after = fitted(made, after)
    parts = np.array([after[0], 10 * after[1], 1000 * after[2]])
    np.testing.assert_allclose(parts, 1, atol=0.05)
    assert fitted(made) == pytest.approx((0, 0.3, 0), rel=0.06)


def test_one_measurement_is_all_steps():
    assert fitted([Measurement(3.0, 2, 500)]) == pytest.approx((0, 1.5, 0))


class Device:
    """A node with fixed times; it has `most` steps to do, and sends `size` bytes at factor 1."""

    def __init__(self, fixed, per_step, per_byte, most, size, noise=0.0, seed=0):
        self.fixed, self.per_step, self.per_byte = fixed, per_step, per_byte
        self.most, self.size, self.noise = most, size, noise
        self.draw = np.random.default_rng(seed)

    def reply(self, plan):
        steps = min(plan.steps, self.most) if plan.steps else self.most
        size = 60 + self.size * plan.density_factor * (1 + plan.more_bits)
        seconds = self.fixed + self.per_step * steps + self.per_byte * size
        return Measurement(seconds * (1 + self.noise * self.draw.random()), steps, size)


def rounds_of(device, options, rounds, **kind):
    planner = DeadlinePlanner(options, {}, **kind)
    made = []
    for _ in range(rounds):
        plan = planner.plan(7)
        made.append((plan, device.reply(plan)))
        planner.observe(7, made[-1][1])
    return made


@given(
    st.floats(0.001, 1),
    st.floats(1e-4, 3),
    st.floats(1e-7, 1e-3),
    st.integers(1, 300),
    st.integers(100, 10**5),
    st.floats(0, 0.05),
    st.floats(1.5, 30),
)
def test_replies_come_in_time_and_use_it(fixed, per_step, per_byte, most, size, noise, slack):
    device = Device(fixed, per_step, per_byte, most, size, noise)
    least = fixed + per_step + per_byte * (60 + size * Deadline.least_factor)
    options = Deadline(deadline=slack * 1.05 * least / SAFETY, most_factor=4.0, most_bits=2)
    last = rounds_of(device, options, 30)[-16:]
    for plan, found in last:
        assert plan.steps >= 1
        assert options.least_factor <= plan.density_factor <= options.most_factor
        assert found.seconds <= options.deadline
    done = max(found.steps for _, found in last)
    slack = options.deadline - max(found.seconds for _, found in last)
    assert done == most or slack < 1.2 * per_step + 0.45 * options.deadline


def test_a_slow_uplink_gets_fewer_entries_and_a_fast_one_more():
    options = Deadline(deadline=2.0, most_factor=3.0)
    slow, found = rounds_of(Device(0.02, 0.01, 1 / 2000, 20, 8000), options, 12)[-1]
    assert found.seconds <= 2
    assert 0.125 <= slow.density_factor < 0.4
    assert slow.steps > 20
    fast, _ = rounds_of(Device(0.02, 0.01, 1e-7, 20, 8000), options, 12)[-1]
    assert fast.density_factor == 3
    far, _ = rounds_of(Device(1.5, 0.01, 1e-7, 20, 8000), options, 12)[-1]  # latency, not bytes
    assert far.density_factor > slow.density_factor


def test_values_get_bits_after_all_entries_are_sent():
    options = Deadline(deadline=2.0, most_factor=3.0, most_bits=2)
    plans = [plan for plan, _ in rounds_of(Device(0.02, 0.01, 1e-7, 20, 8000), options, 20)]
    assert plans[-1][1:] == (3.0, 2)
    assert all(plan.density_factor == 3 for plan in plans if plan.more_bits)
    slow = [plan for plan, _ in rounds_of(Device(0.02, 0.01, 1 / 2000, 20, 8000), options, 20)]
    assert not any(plan.more_bits for plan in slow)


@given(st.lists(st.tuples(st.floats(0.01, 9), st.integers(100, 10**5)), min_size=1, max_size=30))
def test_the_density_falls_only_without_more_bits(replies):
    paces = {1: NodePace(NodePlan(4, 1.0, 3))}
    planner = DeadlinePlanner(Deadline(deadline=1.0, most_bits=3), paces)
    for seconds, size in replies:
        before = planner.plan(1)
        planner.observe(1, Measurement(seconds, before.steps, size))
        after = planner.plan(1)
        assert after.density_factor >= before.density_factor or not before.more_bits
        planner.miss(1)
        missed = planner.plan(1)
        assert missed.density_factor >= after.density_factor or not after.more_bits


def test_gradients_plan_the_density_alone():
    for per_byte, factor in ((1 / 2000, 0.4), (1e-7, 2.0)):
        device = Device(0.02, 0.01, per_byte, 1, 8000)
        options = Deadline(deadline=1.0, most_factor=2.0)
        plan, found = rounds_of(device, options, 12, limited=False)[-1]
        assert plan.steps == 0
        assert found.seconds <= 1.0
        assert plan.density_factor <= factor


def test_a_missed_round_halves_the_work():
    planner = DeadlinePlanner(Deadline(deadline=1.0), {})
    planner.plan(1)
    planner.observe(1, Measurement(0.05, 1, 100))
    steps = planner.plan(1).steps
    seen = []
    for _ in range(8):
        planner.miss(1)
        seen.append(planner.plan(1))
    assert [plan.steps for plan in seen[:3]] == [steps // 2, steps // 4, steps // 8]
    assert seen[-1] == (1, 0.125, 0)


def test_a_slow_device_keeps_its_density():
    """A step takes longer than the deadline, so fewer entries would not help."""
    made = rounds_of(Device(0.03, 1.0, 1e-6, 100, 800), Deadline(deadline=1.0), 12)
    assert [plan.density_factor for plan, _ in made].count(0.5) <= 2
    assert made[-1][0].density_factor == 1


@pytest.mark.system
def test_a_fast_node_sends_finer_values(tmp_path):
    """A node has few examples and a fast link, so it soon sends all bits that the plan allows."""
    words = [*MIXED, *WITHOUT_DELAYS, *DEADLINE]
    local_run(tmp_path / "coarse", *words)
    local_run(tmp_path / "fine", *words, "strategy.most_bits=3")
    sent = [
        np.diff([row["uplink_bytes"] for row in history_of(tmp_path / name)])
        for name in ("coarse", "fine")
    ]
    np.testing.assert_array_equal(sent[0][:2], sent[1][:2])
    assert (sent[1][-1] > 1.2 * sent[0][-1]).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_rounds_of_a_run_last_as_long_as_the_deadline(tmp_path, accumulate):
    words = [f"local.accumulate={accumulate}", "strategy.deadline=2"]
    local_run(tmp_path / "planned", *MIXED, *words)
    local_run(tmp_path / "fixed", *MIXED, "rounds=1", "eval_every=1")
    ends = [row["virtual_seconds"] for row in history_of(tmp_path / "planned")]
    lengths = np.diff(ends)
    assert lengths[:2].max() < 2.1  # a slow node takes a second for a step, and tries two
    assert 1.5 < lengths[2:].min() <= lengths[2:].max() <= 2
    assert history_of(tmp_path / "fixed")[-1]["virtual_seconds"] > 10 * 2


@given(st.floats(), st.floats(0, 1e9), st.integers(0, 10**12))
def test_any_report_leaves_a_plan(steps, seconds, size):
    planner = DeadlinePlanner(Deadline(deadline=1.0, most_factor=2.0), {})
    for _ in range(10):
        planner.plan(3)
        planner.observe(3, Measurement(seconds, steps, size))
    plan = planner.plan(3)
    assert type(plan.steps) is int
    assert 1 <= plan.steps <= 10**9
    assert 0.125 <= plan.density_factor <= 2


def test_many_steps_are_no_unusual_update(tmp_path):
    """A fast node takes a hundred times as many steps as a slow one, and moves as much further."""
    words = [*MIXED, "nodes=10", "rounds=8", "local_epochs=100", "screen.refuse=8"]
    words += ["strategy.deadline=2"]
    local_run(tmp_path / "run", *words)
    assert result_of(tmp_path / "run")["failures"] == 0


def test_the_planner_learns_the_bytes_that_were_sent(tmp_path, monkeypatch):
    """Not those of the records after they were restored, which are more."""
    sizes, observe = [], DeadlinePlanner.observe

    def watching(self, node, measured):
        sizes.append(measured.size)
        observe(self, node, measured)

    monkeypatch.setattr(DeadlinePlanner, "observe", watching)
    local_run(tmp_path, *MIXED, "local_epochs=2", "strategy.deadline=60")
    result = result_of(tmp_path)
    assert result["client_updates"] == len(sizes) == 30
    assert sum(sizes) == result["uplink_bytes"] + result["uplink_header_bytes"]
