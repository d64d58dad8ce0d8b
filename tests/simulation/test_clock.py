"""The virtual clock's arithmetic."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.clock import NEVER, Ideal, VirtualClock, steps_of


@dataclass
class Class:
    share: float
    speed: float


seconds = st.floats(0, 1e4)
sizes = st.integers(0, 10**9)


@given(seconds, sizes, st.integers(0, 1000), sizes)
def test_more_bytes_or_steps_never_arrive_earlier(sent, down, steps, up):
    network = Ideal(up_mbps=10, down_mbps=100, latency_ms=20, seconds_per_step=0.01)
    first = VirtualClock(network).arrival(1, sent, down, steps, up)
    for more in ((down + 1000, steps, up), (down, steps + 1, up), (down, steps, up + 1000)):
        assert VirtualClock(network).arrival(1, sent, *more) >= first
    assert first >= sent + 0.04 - 1e-9 * (1 + sent)


@given(seconds, st.integers(0, 100))
def test_an_ideal_network_takes_no_time(sent, steps):
    assert VirtualClock().arrival(1, sent, 10**9, steps, 10**9) == sent


def test_a_node_does_one_thing_at_a_time():
    clock = VirtualClock(Ideal(seconds_per_step=1.0))
    assert clock.arrival(1, 0.0, 0, 5, 0) == 5
    assert clock.arrival(1, 1.0, 0, 5, 0) == 10  # waits for the first
    assert clock.arrival(2, 1.0, 0, 5, 0) == 6  # another node does not


def test_classes_have_their_shares_and_speeds():
    classes = {"fast": Class(0.3, 1.0), "slow": Class(0.7, 0.1)}
    clock = VirtualClock(Ideal(seconds_per_step=1.0, classes=classes), seed=1)
    speeds = [clock.speed(n) for n in range(2000)]
    assert set(speeds) == {1.0, 0.1}
    assert speeds.count(1.0) / 2000 == pytest.approx(0.3, abs=0.05)  # 4.9 sigma
    assert speeds == [VirtualClock(clock.network, seed=1).speed(n) for n in range(2000)]
    assert clock.arrival(speeds.index(0.1), 0.0, 0, 1, 0) == pytest.approx(10)


def lost(clock, node, answers):
    return [clock.arrival(node, 0.0, 0, 1, 0) == NEVER for _ in range(answers)]


def test_losses_have_their_share_and_are_drawn_from_seed_node_and_answer():
    network = Ideal(loss=0.3)
    first = lost(VirtualClock(network, seed=1), 5, 2000)
    assert sum(first) / 2000 == pytest.approx(0.3, abs=0.05)  # 4.9 sigma
    busy = VirtualClock(network, seed=1)
    others = [lost(busy, node, 100) for node in (4, 6)]
    assert lost(busy, 5, 2000) == first  # whatever other nodes sent before
    assert len({*map(tuple, others), tuple(first[:100])}) == 3
    assert lost(VirtualClock(network, seed=2), 5, 2000) != first


def test_a_lost_answer_takes_its_node_as_long_as_any_other():
    sure = VirtualClock(Ideal(up_mbps=8e-6, seconds_per_step=1.0))  # a byte a second
    lossy = VirtualClock(Ideal(up_mbps=8e-6, seconds_per_step=1.0, loss=0.5))
    times = [(sure.arrival(1, 0.0, 0, 2, 3), lossy.arrival(1, 0.0, 0, 2, 3)) for _ in range(20)]
    assert [due for due, _ in times] == [5 * n for n in range(1, 21)]
    assert {here for due, here in times} > {NEVER}  # of 20 some, but not all
    assert all(here in (due, NEVER) for due, here in times)


def test_a_network_that_loses_nothing_draws_nothing(monkeypatch):
    monkeypatch.setattr("simulation.clock.np.random.default_rng", None)
    assert lost(VirtualClock(), 1, 3) == [False] * 3


@pytest.mark.parametrize(("value", "steps"), [(3, 3.0), (2.5, 2.5), ([1, 2], 0.0)])
def test_steps_come_from_the_metrics(value, steps):
    assert steps_of({"num-steps": value}) == steps
    assert steps_of({}) == 0


def test_the_servers_link_takes_one_message_after_another():
    clock = VirtualClock(Ideal(server_mbps=8.0, seconds_per_step=1.0))  # 1 MB a second
    mega = 1_000_000
    arrivals = [clock.arrival(node, 0.0, mega, 1, mega) for node in (1, 2, 3)]
    assert arrivals == [2.0, 3.0, 4.0]  # sent by 1, 2, 3 s; worked a second each; received in turn
    alone = VirtualClock(Ideal(seconds_per_step=1.0))
    assert [alone.arrival(node, 0.0, mega, 1, mega) for node in (1, 2)] == [1.0, 1.0]
    slow = VirtualClock(Ideal(server_mbps=8.0, up_mbps=0.8))  # the node's own link takes longer
    assert slow.arrival(1, 0.0, 0, 0, mega) == 10.0
