"""A grid continues from another grid's saved state, at any moment and with any workers."""

import copy
import multiprocessing
import os
import signal

import pytest
from flwr.app import ConfigRecord, RecordDict

from edgewire.conf.network import Network
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool
from tests.simulation.grids import app, messages, seen

NETWORK = Network(
    up_mbps=1.0, down_mbps=5.0, latency_ms=20, seconds_per_step=0.1, loss=0.1, crash=0.05,
    rejoin_seconds=3.0, join_seconds=2.0, waiting="exponential", waiting_seconds=0.5,
)  # fmt: skip
STEPS = 30


def asked(grid, steps, open_ids):
    """Send to all present nodes at each third step, pull at each step; return the replies."""
    trace = []
    for step in steps:
        if step % 3 == 0:
            open_ids += grid.push_messages(messages(grid, size=10_000), ttl=10.0)
        replies = grid.pull_before(open_ids, grid.now + 0.4)
        for reply in replies:
            open_ids.remove(reply.metadata.reply_to_message_id)
        trace.append((grid.virtual_seconds, seen(replies)))
    return trace


@pytest.mark.parametrize(("workers", "then"), [(1, 1), (1, 2), (2, 3), (3, 1)])
def test_a_grid_continues_from_a_state_saved_at_any_moment(grid, workers, then):
    first = grid(1, NETWORK, seed=4)
    first.follow(1000)
    whole = asked(first, range(STEPS), [])
    assert len({node for _, replies in whole for node, *_ in replies}) > 4
    first, ids = grid(workers, NETWORK, seed=4), []
    first.follow(1000)
    before = asked(first, range(STEPS // 2), ids)
    state = copy.deepcopy(first.save())
    assert state.early  # replies are under way
    second = grid(then, NETWORK, seed=4)
    second.follow(1000)
    second.load(state)
    assert before + asked(second, range(STEPS // 2, STEPS), ids) == whole


def test_saving_does_not_change_a_grid(grid):
    whole = asked(grid(2, NETWORK, seed=4), range(STEPS), [])
    saved, ids, trace = grid(2, NETWORK, seed=4), [], []
    for step in range(STEPS):
        trace += asked(saved, [step], ids)
        saved.save()
    assert trace == whole


def test_the_comparison_with_a_link_continues_too(grid):
    def sent(made, times):
        for _ in range(times):
            made.send_and_receive(messages(made, size=10_000))
        return made

    first, second = grid(1), grid(1)
    for made in (first, second):
        made.follow(200_000)
    whole = dict(sent(first, 4).comparison)
    third = grid(1)
    third.follow(200_000)
    third.load(copy.deepcopy(sent(second, 2).save()))
    assert dict(sent(third, 2).comparison) == whole
    assert whole["link_seconds_float32"] > whole["link_seconds"] > 0


@pytest.fixture
def pool():
    """Yield a pool of two workers; two of its seven nodes have a state."""
    made = make_pool(NodeHostSpec(app, 7, 1, {}), 2)
    made.load({n: RecordDict({"memory": ConfigRecord({"calls": 5})}) for n in (2, 3)})
    yield made
    made.close()


def test_nodes_keep_the_loaded_states(pool):
    assert {n: each["memory"]["calls"] for n, each in pool.states().items()} == {2: 5, 3: 5}


def test_a_worker_that_dies_loses_its_nodes_states(pool):
    first = multiprocessing.active_children()
    os.kill(min(child.pid for child in first), signal.SIGKILL)
    left = list(pool.states())
    assert len(left) == 1
    assert list(pool.states()) == left
