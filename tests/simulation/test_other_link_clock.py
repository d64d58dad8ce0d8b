"""The computed time of a run over a link equals its time on a network with that link."""

import random

import pytest

from edgewire.conf.network import Network
from edgewire.simulation.other_link_clock import DOWN_MBPS, UP_MBPS
from tests.simulation.grids import NODES, messages

FREE = {"seconds_per_step": 0.01}
LINE = {**FREE, "up_mbps": UP_MBPS, "down_mbps": DOWN_MBPS}
PLAIN = 70_000  # a model's bytes in Flower's format
SIZES = (50_000, 100, 20_000)


def rounds(grid, sizes=SIZES, timeout=None):
    """Run rounds with some of the nodes, and one round whose replies hold no arrays."""
    for number, size in enumerate(sizes):
        chosen = random.Random(number).sample(messages(grid, size=size), 4)
        len(grid.send_and_receive(chosen, timeout=timeout))
    len(grid.send_and_receive(messages(grid, "evaluate", size=sizes[-1])))


def pulled_rounds(grid, sizes=SIZES):
    """Run the same rounds with `push_messages` and `pull_messages`."""
    for number, size in enumerate(sizes):
        ids = list(grid.push_messages(random.Random(number).sample(messages(grid, size=size), 4)))
        while ids:
            there = {r.metadata.reply_to_message_id for r in grid.pull_messages(ids)}
            ids = [i for i in ids if i not in there]
    len(grid.send_and_receive(messages(grid, "evaluate", size=sizes[-1])))


def one_by_one(grid, sizes=SIZES * 3):
    """Run an asynchronous server: it sends a node the next message as soon as the node replies."""
    left = {node: list(sizes) for node in grid.get_node_ids()}
    flight = []

    def send(node):
        if left[node]:
            message = messages(grid, size=left[node].pop(0))[node - 1]
            flight.extend(grid.push_messages([message]))

    for node in left:
        send(node)
    while flight:
        for reply in grid.pull_messages(flight):
            flight.remove(reply.metadata.reply_to_message_id)
            send(reply.metadata.src_node_id)


@pytest.mark.parametrize("course", [rounds, pulled_rounds, one_by_one])
@pytest.mark.parametrize("waits", [{}, {"waiting": "uniform", "waiting_seconds": 1.0}])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_on_a_free_network_knows_its_time_over_a_link(grid, course, workers, waits):
    free = grid(workers, Network(**FREE, **waits), seed=3)
    real, plain = (grid(1, Network(**LINE, **waits), seed=3) for _ in range(2))
    free.follow(PLAIN)
    course(free)
    course(real)
    course(plain, [PLAIN] * (len(SIZES) if course is not one_by_one else 3 * len(SIZES)))
    found = free.comparison
    assert (found["link_down_mbps"], found["link_up_mbps"]) == (DOWN_MBPS, UP_MBPS)
    assert found["link_seconds"] == pytest.approx(real.virtual_seconds, rel=1e-12)
    assert found["link_seconds_float32"] == pytest.approx(plain.virtual_seconds, rel=1e-12)
    assert found["link_seconds_float32"] > found["link_seconds"] > free.virtual_seconds


@pytest.mark.parametrize("course", [rounds, pulled_rounds, one_by_one])
def test_a_network_with_limits_is_itself_the_link(grid, course):
    g = grid(1, Network(up_mbps=1.0, down_mbps=3.0, latency_ms=20, seconds_per_step=0.01))
    g.follow(PLAIN)
    course(g)
    found = g.comparison
    assert (found["link_down_mbps"], found["link_up_mbps"]) == (3.0, 1.0)
    assert found["link_seconds"] == pytest.approx(g.virtual_seconds, rel=1e-12)


def test_uncompressed_data_takes_no_encoding_time(grid):
    g = grid(1, Network(seconds_per_step=0.01))
    slow = grid(1, Network(seconds_per_step=0.01, encoding_seconds=0.5))
    for each in (g, slow):
        each.follow(PLAIN)
        rounds(each)
    found, without = slow.comparison, g.comparison
    assert found["link_seconds_float32"] == without["link_seconds_float32"]
    assert found["link_seconds"] >= without["link_seconds"] + 0.5


@pytest.mark.parametrize(
    "network",
    [{"loss": 0.5}, {"crash": 0.5, "rejoin_seconds": 1.0}, {"join_seconds": 1e-9}],
    ids=["losses", "crashes", "joins"],
)
def test_no_time_is_given_where_replies_are_random(grid, network):
    g = grid(1, Network(**FREE, **network))
    g.follow(PLAIN)
    assert not g.comparison


def test_no_time_is_given_where_a_reply_would_be_late(grid):
    """All replies arrive in time on the unlimited network; over the link some would be late."""
    for timeout, known in ((10.0, True), (0.1, False)):
        g = grid(1, Network(**FREE))
        g.follow(PLAIN)
        rounds(g, timeout=timeout)
        assert bool(g.comparison) is known


def test_no_time_is_given_for_rounds_that_do_not_wait_for_all(grid):
    g = grid(1, Network(**FREE))
    g.follow(PLAIN)
    ids = g.push_messages(messages(g))
    assert len(g.pull_messages(ids)) < NODES
    g.pull_messages(g.push_messages(messages(g)[:2]))
    assert not g.comparison


def test_no_time_is_given_after_a_pull_without_a_reply(grid):
    g = grid(1, Network(seconds_per_step=1.0))
    g.follow(PLAIN)
    assert g.pull_before(g.push_messages(messages(g)), 0.5) == []
    assert not g.comparison


def test_without_a_comparison_nothing_is_stored(grid):
    g = grid(1)
    rounds(g)
    assert not g.comparison
