"""The arithmetic of the virtual clock."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewire.conf.network import WAITING, DeviceClass, Network
from edgewire.simulation.clock import NEVER, VirtualClock, steps_of

seconds = st.floats(0, 1e4)


@given(seconds, st.integers(0, 100))
def test_an_ideal_network_takes_no_time(sent, steps):
    assert VirtualClock().arrival(1, sent, 10**9, steps, 10**9) == sent


def test_a_node_does_one_thing_at_a_time():
    clock = VirtualClock(Network(seconds_per_step=1.0))
    assert clock.arrival(1, 0.0, 0, 5, 0) == 5
    assert clock.arrival(1, 1.0, 0, 5, 0) == 10  # waits for the first task
    assert clock.arrival(2, 1.0, 0, 5, 0) == 6  # another node does not wait


def test_a_trained_update_takes_encoding_time():
    classes = {"slow": DeviceClass(1.0, 0.5)}
    clock = VirtualClock(Network(seconds_per_step=1.0, encoding_seconds=0.25, classes=classes))
    assert clock.arrival(1, 0.0, 0, 4, 0) == 8.5
    assert clock.arrival(1, 10.0, 0, 0, 0) == 10  # an evaluation


def test_classes_have_their_shares_and_speeds():
    classes = {"fast": DeviceClass(0.3, 1.0), "slow": DeviceClass(0.7, 0.1)}
    clock = VirtualClock(Network(seconds_per_step=1.0, classes=classes), seed=1)
    speeds = [clock.speed(n) for n in range(2000)]
    assert set(speeds) == {1.0, 0.1}
    assert speeds.count(1.0) / 2000 == pytest.approx(0.3, abs=0.05)  # 4.9 sigma
    assert speeds == [VirtualClock(clock.network, seed=1).speed(n) for n in range(2000)]
    assert clock.arrival(speeds.index(0.1), 0.0, 0, 1, 0) == pytest.approx(10)


def lost(clock, node, answers):
    return [clock.arrival(node, 0.0, 0, 1, 0) == NEVER for _ in range(answers)]


def test_losses_have_their_share_and_depend_on_seed_node_and_reply():
    network = Network(loss=0.3)
    first = lost(VirtualClock(network, seed=1), 5, 2000)
    assert sum(first) / 2000 == pytest.approx(0.3, abs=0.05)  # 4.9 sigma
    busy = VirtualClock(network, seed=1)
    others = [lost(busy, node, 100) for node in (4, 6)]
    assert lost(busy, 5, 2000) == first  # independent of other nodes' replies
    assert len({*map(tuple, others), tuple(first[:100])}) == 3
    assert lost(VirtualClock(network, seed=2), 5, 2000) != first


def test_a_lost_reply_takes_its_node_as_long_as_any_other():
    sure = VirtualClock(Network(up_mbps=8e-6, seconds_per_step=1.0))  # a byte a second
    lossy = VirtualClock(Network(up_mbps=8e-6, seconds_per_step=1.0, loss=0.5))
    times = [(sure.arrival(1, 0.0, 0, 2, 3), lossy.arrival(1, 0.0, 0, 2, 3)) for _ in range(20)]
    assert [due for due, _ in times] == [5 * n for n in range(1, 21)]
    assert {here for due, here in times} > {NEVER}  # some of 20, not all
    assert all(here in (due, NEVER) for due, here in times)


def test_a_network_that_loses_nothing_draws_nothing(monkeypatch):
    monkeypatch.setattr("edgewire.simulation.clock.np.random.default_rng", None)
    assert lost(VirtualClock(), 1, 3) == [False] * 3


@pytest.mark.parametrize(("value", "steps"), [(3, 3.0), (2.5, 2.5), ([1, 2], 0.0)])
def test_steps_are_read_from_the_metrics(value, steps):
    assert steps_of({"num-steps": value}) == steps
    assert steps_of({}) == 0


def test_the_servers_link_takes_one_message_after_another():
    clock = VirtualClock(Network(server_mbps=8.0, seconds_per_step=1.0))  # 1 MB a second
    mega = 1_000_000
    arrivals = [clock.arrival(node, 0.0, mega, 1, mega) for node in (1, 2, 3)]
    # Sent at 1, 2 and 3 s; each node works for a second; received one after the other.
    assert arrivals == [2.0, 3.0, 4.0]
    alone = VirtualClock(Network(seconds_per_step=1.0))
    assert [alone.arrival(node, 0.0, mega, 1, mega) for node in (1, 2)] == [1.0, 1.0]
    slow = VirtualClock(Network(server_mbps=8.0, up_mbps=0.8))  # the node's own link takes longer
    assert slow.arrival(1, 0.0, 0, 0, mega) == 10.0


NUMBERS = st.floats(0, 100, allow_subnormal=False)
NETWORKS = st.builds(
    Network,
    up_mbps=st.none() | st.floats(1e-4, 1e-2),
    down_mbps=st.none() | st.floats(1e-4, 1e-2),
    latency_ms=st.sampled_from([0.0, 500.0]),
    seconds_per_step=st.sampled_from([0.0, 1.0]),
    loss=st.sampled_from([0.0, 0.3]),
    waiting=st.sampled_from(WAITING),
    waiting_seconds=st.floats(0, 5),
    crash=st.sampled_from([0.0, 0.2]),
    rejoin_seconds=st.none() | st.floats(0.1, 10),
)


@given(
    network=NETWORKS,
    messages=st.lists(st.tuples(st.integers(1, 3), NUMBERS, st.integers(0, 5)), max_size=12),
)
def test_no_reply_arrives_before_its_bound(network, messages):
    """The clock knows a lower bound of a reply's arrival when the message is sent."""
    clock, tasks = VirtualClock(network), []
    for node, sent, steps in sorted(messages, key=lambda message: message[1]):
        tasks.append((clock.send(node, sent, 100), steps))
    for task, steps in tasks:
        assert clock.answer(task, steps, 100) >= task.earliest >= task.sent


@given(
    network=NETWORKS,
    messages=st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 9)), max_size=20),
    ttl=st.integers(0, 10),
)
@example(  # when the third message is sent, the second is known to have expired
    network=Network(waiting="fixed", waiting_seconds=5.0, seconds_per_step=1.0),
    messages=[(False, 0, 9), (False, 1, 0), (True, 12, 0)],
    ttl=5,
)
def test_a_message_that_will_expire_is_never_begun(network, messages, ttl):
    """Messages may be dropped early; all times equal those of messages dropped at their turn."""
    clock, tasks, answered = VirtualClock(network), [], {}

    def answer_first():
        number = next((i for i in range(len(tasks)) if i not in answered), None)
        if number is not None:
            task, steps = tasks[number]
            expires = task.earliest == NEVER
            answered[number] = NEVER if expires else clock.answer(task, steps, 100)

    for answer_one, sent, steps in sorted(messages, key=lambda message: message[1]):
        if answer_one:
            answer_first()
        tasks.append((clock.send(1, sent, 100, ttl), steps))
    while len(answered) < len(tasks):
        answer_first()

    alone = VirtualClock(network)
    sends = sorted(sent for _, sent, _ in messages)
    expected = []
    for sent, (_, steps) in zip(sends, tasks, strict=True):
        task = alone.send(1, sent, 100)
        expected.append(alone.answer(task._replace(expires=sent + ttl), steps, 100))
    assert [answered[i] for i in range(len(tasks))] == expected


@pytest.mark.parametrize(
    ("waiting", "spread"), [("fixed", 0.0), ("uniform", 2 / 12**0.5), ("exponential", 1.0)]
)
def test_waiting_times_have_their_mean_and_spread(waiting, spread):
    clock = VirtualClock(Network(waiting=waiting, waiting_seconds=3.0), seed=1)
    waits = [clock.send(1, 0.0, 0).waiting for _ in range(4000)]
    assert np.mean(waits) == pytest.approx(3.0, abs=0.25)
    assert np.std(waits) == pytest.approx(3 * spread, abs=0.25)
    assert min(waits) >= 0
    if waiting == "uniform":
        assert max(waits) <= 6


def test_waits_depend_on_seed_and_node_only():
    network = Network(waiting="exponential", waiting_seconds=1.0)
    alone, busy = VirtualClock(network, seed=4), VirtualClock(network, seed=4)
    expected = [alone.send(2, 0.0, 0).waiting for _ in range(5)]
    found = []
    for _ in range(5):
        busy.send(1, 0.0, 0)
        found.append(busy.send(2, 0.0, 0).waiting)
    assert found == expected
    assert VirtualClock(network, seed=5).send(2, 0.0, 0).waiting != expected[0]


def test_slower_classes_wait_longer():
    classes = {"fast": DeviceClass(0.5, 1.0), "slow": DeviceClass(0.5, 0.1)}
    clock = VirtualClock(Network(waiting="fixed", waiting_seconds=1.0, classes=classes))
    assert {clock.send(n, 0.0, 0).waiting for n in range(1, 30)} == {1.0, 10.0}


def test_a_crash_comes_after_a_reply_and_is_final():
    clock = VirtualClock(Network(seconds_per_step=1.0, crash=0.1), seed=2)
    lives = []
    for node in range(1, 301):
        arrivals = [clock.arrival(node, 0.0, 0, 1, 0) for _ in range(60)]
        lived = arrivals.index(NEVER) if NEVER in arrivals else 60
        assert arrivals == [*range(1, lived + 1), *[NEVER] * (60 - lived)]
        lives.append(lived)
    assert min(lives) == 1  # the reply before the crash arrives
    assert np.mean(lives) == pytest.approx(10, abs=2)
    clock.state.now = 1000.0
    present = [clock.present(node) for node in range(1, 301)]
    assert present == [lived == 60 for lived in lives]


def test_a_returning_node_replies_to_messages_sent_meanwhile():
    network = Network(seconds_per_step=1.0, crash=1 - 1e-9, rejoin_seconds=10.0)
    clock = VirtualClock(network)
    assert clock.arrival(1, 0.0, 0, 1, 0) == 1
    assert clock.arrival(1, 2.0, 0, 1, 0) == 12  # the node is back at 11
    clock.state.now = 15.0
    assert not clock.present(1)
    assert clock.change([1]) == 22
    clock.state.now = 22.0
    assert clock.present(1)


def test_nodes_join_within_the_time_given():
    clock, nodes = VirtualClock(Network(join_seconds=50.0), seed=3), range(1, 201)
    joined = [clock.joined(node) for node in nodes]
    assert 0 <= min(joined) < 5
    assert 45 < max(joined) < 50
    assert clock.change(nodes) == min(joined)
    clock.state.now = 25.0
    there = sum(clock.present(node) for node in nodes)
    assert 70 < there < 130
    assert clock.change(nodes) == min(moment for moment in joined if moment > 25)
