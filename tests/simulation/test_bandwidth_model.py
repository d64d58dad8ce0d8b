"""What a run would take over a line: the same as on a network that is that line."""

import random

import pytest

from simulation.bandwidth_model import DOWN_MBPS, UP_MBPS
from simulation.clock import Ideal
from tests.simulation.grids import NODES, messages

FREE = {"seconds_per_step": 0.01}
LINE = {**FREE, "up_mbps": UP_MBPS, "down_mbps": DOWN_MBPS}
PLAIN = 70_000  # bytes, as Flower sends a model
SIZES = (50_000, 100, 20_000)


def rounds(grid, sizes=SIZES, timeout=None):
    """Some of the nodes in each round, and once what carries no arrays back."""
    for number, size in enumerate(sizes):
        chosen = random.Random(number).sample(messages(grid, size=size), 4)
        len(grid.send_and_receive(chosen, timeout=timeout))
    len(grid.send_and_receive(messages(grid, "evaluate", size=sizes[-1])))


def pulled_rounds(grid, sizes=SIZES):
    """The same, sent and fetched by hand."""
    for number, size in enumerate(sizes):
        ids = list(grid.push_messages(random.Random(number).sample(messages(grid, size=size), 4)))
        while ids:
            there = {r.metadata.reply_to_message_id for r in grid.pull_messages(ids)}
            ids = [i for i in ids if i not in there]
    len(grid.send_and_receive(messages(grid, "evaluate", size=sizes[-1])))


def one_by_one(grid, sizes=SIZES * 3):
    """An asynchronous server: who has answered is sent the next message at once."""
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
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_on_a_free_network_knows_what_it_takes_over_a_line(grid, course, workers):
    free, real, plain = grid(workers, Ideal(**FREE)), grid(1, Ideal(**LINE)), grid(1, Ideal(**LINE))
    free.follow(PLAIN)
    course(free)
    course(real)
    course(plain, [PLAIN] * (len(SIZES) if course is not one_by_one else 3 * len(SIZES)))
    found = free.comparison
    assert (found["line_down_mbps"], found["line_up_mbps"]) == (DOWN_MBPS, UP_MBPS)
    assert found["line_seconds"] == pytest.approx(real.virtual_seconds, rel=1e-12)
    assert found["line_seconds_float32"] == pytest.approx(plain.virtual_seconds, rel=1e-12)
    assert found["line_seconds_float32"] > found["line_seconds"] > free.virtual_seconds


@pytest.mark.parametrize("course", [rounds, pulled_rounds, one_by_one])
def test_a_network_with_limits_of_its_own_is_the_line(grid, course):
    g = grid(1, Ideal(up_mbps=1.0, down_mbps=3.0, latency_ms=20, seconds_per_step=0.01))
    g.follow(PLAIN)
    course(g)
    found = g.comparison
    assert (found["line_down_mbps"], found["line_up_mbps"]) == (3.0, 1.0)
    assert found["line_seconds"] == pytest.approx(g.virtual_seconds, rel=1e-12)


def test_what_is_not_compressed_is_not_encoded(grid):
    g = grid(1, Ideal(seconds_per_step=0.01))
    slow = grid(1, Ideal(seconds_per_step=0.01, encoding_seconds=0.5))
    for each in (g, slow):
        each.follow(PLAIN)
        rounds(each)
    found, without = slow.comparison, g.comparison
    assert found["line_seconds_float32"] == without["line_seconds_float32"]
    assert found["line_seconds"] >= without["line_seconds"] + 0.5


def test_waits_and_classes_are_the_nodes_own(grid):
    network = {"waiting": "uniform", "waiting_seconds": 1.0}
    free, real = (
        grid(1, Ideal(**FREE, **network), seed=3),
        grid(1, Ideal(**LINE, **network), seed=3),
    )
    free.follow(PLAIN)
    for g in (free, real):
        one_by_one(g)
    assert free.comparison["line_seconds"] == pytest.approx(real.virtual_seconds, rel=1e-12)


@pytest.mark.parametrize(
    "network",
    [{"loss": 0.5}, {"crash": 0.5, "rejoin_seconds": 1.0}, {"join_seconds": 1e-9}],
    ids=["losses", "crashes", "joins"],
)
def test_nothing_is_said_where_chance_decides_who_answers(grid, network):
    g = grid(1, Ideal(**FREE, **network))
    g.follow(PLAIN)
    assert not g.comparison


def test_nothing_is_said_where_an_answer_would_come_too_late(grid):
    """In time on the free network; over the line the round had ended without some."""
    for timeout, known in ((10.0, True), (0.1, False)):
        g = grid(1, Ideal(**FREE))
        g.follow(PLAIN)
        rounds(g, timeout=timeout)
        assert bool(g.comparison) is known


def test_nothing_is_said_of_rounds_that_do_not_wait_for_all(grid):
    g = grid(1, Ideal(**FREE))
    g.follow(PLAIN)
    ids = g.push_messages(messages(g))
    assert len(g.pull_messages(ids)) < NODES
    g.pull_messages(g.push_messages(messages(g)[:2]))
    assert not g.comparison


def test_nothing_is_said_after_a_pull_that_brought_nothing(grid):
    g = grid(1, Ideal(seconds_per_step=1.0))
    g.follow(PLAIN)
    assert g.pull_before(g.push_messages(messages(g)), 0.5) == []
    assert not g.comparison


def test_who_does_not_ask_pays_nothing(grid):
    g = grid(1)
    rounds(g)
    assert not g.comparison
