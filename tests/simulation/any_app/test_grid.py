"""The grid for any Flower app accepts and refuses the same messages as Flower's own grid."""

import threading
import time

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict
from flwr.app.constants import DEFAULT_TTL
from flwr.common.constant import ErrorCode
from flwr.supercore.run import Run

from edgewire.compression.flower.message_size import size_of
from edgewire.conf.network import Network
from edgewire.simulation.any_app.grid import GuestGrid
from edgewire.simulation.clock import VirtualClock
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool
from tests.simulation.grids import NODES, app, messages

LINK = {"up_mbps": 8e-3, "down_mbps": 8e-3}  # one second for 1,000 bytes
SIZE = 1000


@pytest.fixture
def guest():
    pools = []

    def make(network=None, workers=1, nodes=NODES):
        pools.append(make_pool(NodeHostSpec(app, nodes, 1, {}), workers))
        clock = VirtualClock(network or Network())
        return GuestGrid(LocalGrid(pools[-1], nodes, clock), Run.create_empty(1))

    yield make
    for pool in pools:
        pool.close()


def calls(replies):
    return [r.content["metrics"]["calls"] for r in replies]


def asked(replies):
    return [r.metadata.reply_to_message_id for r in replies]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("way", ["round", "push"])
def test_a_message_keeps_its_content_of_the_moment_it_was_sent(guest, workers, way):
    """A server may change a content right after it has sent it; nodes get the values as sent."""
    grid = guest(workers=workers)
    content = messages(grid, size=SIZE)[0].content
    for number in range(4):
        data = np.full(SIZE, number, np.uint8).tobytes()
        content["arrays"]["payload"] = Array("uint8", (SIZE,), "test", data)
        sent = [Message(content, node, "train") for node in grid.get_node_ids()]
        if way == "push":
            ids = grid.push_messages(sent)
            content["arrays"].clear()
            content["config"]["raise-at"] = 0
            replies = grid.pull_messages(ids)
            del content["config"]["raise-at"]
        else:
            replies = grid.send_and_receive(sent)
        assert len(replies) == NODES
        assert {r.content["arrays"]["payload"].data for r in replies} == {data}
        assert calls(replies) == [number + 1] * NODES


def test_messages_get_ids_and_so_do_replies(guest):
    grid = guest()
    sent = messages(grid, size=SIZE)
    ids = grid.push_messages(sent)
    assert [m.metadata.message_id for m in sent] == ids
    replies = grid.pull_messages(ids)
    assert asked(replies) == ids
    sent = messages(grid, size=SIZE)
    replies += grid.send_and_receive(sent)
    assert asked(replies[NODES:]) == [m.metadata.message_id for m in sent]
    assert len({*ids, *(m.metadata.message_id for m in [*sent, *replies])}) == 4 * NODES


def test_time_advances_for_an_app_that_polls(guest):
    """Each pull advances to the next arrival; a reply that cannot come is returned as an error."""
    grid = guest(Network(**LINK, seconds_per_step=1.0))
    ids, got = grid.push_messages(messages(grid, size=SIZE)), []
    while len(got) < NODES:
        new = grid.pull_messages([i for i in ids if i not in asked(got)])
        assert len(new) == 1  # node n takes n steps
        got += new
        both = size_of(messages(grid, size=SIZE)[0].content) + size_of(new[0].content)
        assert both > 2 * SIZE  # one byte takes a millisecond
        assert grid.virtual_seconds == pytest.approx(both / 1000 + len(got))
    assert asked(got) == ids
    again = grid.pull_messages([ids[0], "never"])
    assert [r.error.code for r in again] == [ErrorCode.MESSAGE_UNAVAILABLE] * 2
    assert asked(again) == [ids[0], "never"]
    assert grid.pull_messages([]) == []


@pytest.mark.parametrize("way", ["round", "push"])
def test_a_reply_after_the_messages_ttl_is_an_error(guest, way):
    grid = guest(Network(loss=0.5))
    sent = messages(grid, size=SIZE)
    if way == "round":
        replies = grid.send_and_receive(sent)
    else:
        ids, replies = grid.push_messages(sent), []
        while ids:
            replies += grid.pull_messages(ids)
            ids = [i for i in ids if i not in asked(replies)]
    errors = [r for r in replies if r.has_error()]
    assert 0 < len(errors) < NODES == len(replies)
    assert {r.error.code for r in errors} == {ErrorCode.REPLY_MESSAGE_UNAVAILABLE}
    assert grid.virtual_seconds == DEFAULT_TTL
    assert (grid.counts.answered, grid.counts.failed) == (NODES - len(errors), len(errors))


def test_each_message_has_a_separate_ttl(guest):
    grid = guest(Network(**LINK))  # there and back takes a little more than two seconds
    content = messages(grid, size=SIZE)[0].content
    lives = [1.0, 1.0, 3.0, 0.5, 3.0]
    sent = [Message(content, n, "train", ttl=ttl) for n, ttl in enumerate(lives, 1)]
    replies = {r.metadata.reply_to_message_id: r for r in grid.send_and_receive(sent)}
    found = [replies[m.metadata.message_id].has_error() for m in sent]
    assert found == [True, True, False, True, False]
    both = size_of(content) + size_of(replies[sent[2].metadata.message_id].content)
    assert grid.virtual_seconds == pytest.approx(both / 1000)


def test_a_round_ends_with_its_time_out(guest):
    grid = guest(Network(seconds_per_step=1.0))
    replies = grid.send_and_receive(messages(grid, size=SIZE), timeout=3.0)
    assert sorted(r.metadata.src_node_id for r in replies) == [1, 2, 3]
    assert grid.virtual_seconds == 3.0
    assert grid.send_and_receive([], timeout=3.0) == []


def test_an_app_can_give_deadlines(guest):
    grid = guest(Network(**LINK, seconds_per_step=1.0, join_seconds=0.0))
    ids = grid.push_messages(messages(grid, size=SIZE), ttl=1.5)
    assert grid.pull_before(ids, 2.5) == []  # node 1 needs three seconds
    assert grid.now == grid.virtual_seconds == 2.5
    assert asked(grid.pull_before(ids, 9.0)) == ids[:1]
    assert grid.pull_before([], 5.0) == []
    assert grid.now == 5.0
    # The message needs a second to arrive.
    late = grid.push_messages(messages(grid, size=SIZE), ttl=0.5)
    assert grid.pull_before(late, 100.0) == []
    assert grid.next_change == float("inf")


def test_messages_that_cannot_be_sent(guest, caplog):
    grid = guest()
    content = messages(grid, size=SIZE)[0].content
    sent = [Message(content, node, "train") for node in (1, NODES + 1, 2)]
    assert len(grid.push_messages(sent)) == 2
    assert len(grid.send_and_receive(sent)) == 2
    assert grid.counts.sent == 4
    (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    for bad in (reply, Message(content, 1, "train", ttl=-1.0)):
        with pytest.raises(ValueError, match="Invalid message"):
            grid.push_messages([bad])


def test_nodes_are_listed_and_described(guest):
    grid = guest(nodes=3)
    assert grid.get_node_ids() == [1, 2, 3]
    assert [(n.node_id, n.status) for n in grid.get_nodes()] == [(n, "online") for n in (1, 2, 3)]
    made = grid.create_message(RecordDict(), "query", 2, "7", 9.0)
    assert (made.metadata.dst_node_id, made.metadata.group_id, made.metadata.ttl) == (2, "7", 9.0)
    assert grid.run.run_id == 1


def test_bytes_of_all_sent_records_are_counted(guest):
    grid = guest()
    sent = messages(grid, size=SIZE, **{"raise-at": 2})
    config = len(sent[0].content["config"].deflate())
    replies = [r for r in grid.send_and_receive(sent) if not r.has_error()]
    metrics = sum(len(r.content["metrics"].deflate()) for r in replies)
    assert metrics > 0 < config
    assert vars(grid.counts) == {
        "sent": NODES,
        "answered": NODES - 1,
        "failed": 1,
        "down_bytes": NODES * (SIZE + config),
        "up_bytes": (NODES - 1) * SIZE + metrics,
    }


@pytest.mark.parametrize("way", ["late", "left"])
def test_replies_that_never_arrive_are_counted(guest, way):
    grid = guest(Network(**LINK))
    sent = messages(grid, size=SIZE)
    if way == "late":
        grid.send_and_receive(sent, timeout=1.5)  # there and back takes two seconds
    else:
        grid.push_messages(sent)
        grid.send_and_receive(messages(grid, size=SIZE))
    whole = guest(Network(**LINK))
    whole.send_and_receive(messages(whole, size=SIZE))
    assert whole.unfetched_bytes == 0
    assert grid.unfetched_bytes == whole.counts.up_bytes > NODES * SIZE


def all_ended(threads):
    """Run threads to their end."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_wait_at_the_same_virtual_time(guest, workers):
    """Each thread has its own rounds, as in Flower's old API; all wait at the same virtual time."""
    grid, replies = guest(Network(**LINK), workers), {n: [] for n in range(1, NODES + 1)}
    content = messages(grid, size=SIZE)[0].content
    ready = threading.Barrier(NODES)

    def run(node):
        for number in range(3):
            ready.wait()
            message = Message(content, node, "train", group_id=str(number))
            replies[node] += grid.send_and_receive([message])

    all_ended([threading.Thread(target=run, args=(node,)) for node in replies])
    for node, found in replies.items():
        assert [r.metadata.src_node_id for r in found] == [node] * 3
        assert [r.metadata.group_id for r in found] == ["0", "1", "2"]
        assert calls(found) == [1, 2, 3]
    assert grid.virtual_seconds >= 6.0  # two seconds for each round if no node was late
    assert grid.virtual_seconds < 2.0 * 3 * NODES  # the rounds did not run one after the other


def test_a_waiting_thread_does_not_block_other_senders(guest):
    grid = guest(Network(**LINK))
    content, seen = messages(grid, size=SIZE)[0].content, {}

    def wait():
        seen["slow"] = grid.send_and_receive([Message(content, 1, "train")])

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.01)
    seen["own"] = grid.send_and_receive([Message(content, 2, "train")])
    thread.join(60)
    assert [r[0].metadata.src_node_id for r in (seen["slow"], seen["own"])] == [1, 2]


def test_two_threads_that_pull_one_reply_do_not_both_get_it(guest):
    grid = guest(Network(**LINK))
    (message_id,) = grid.push_messages([messages(grid, size=SIZE)[0]])
    found = []

    def pull():
        found.extend(grid.pull_messages([message_id]))

    all_ended([threading.Thread(target=pull) for _ in range(4)])
    assert sum(not reply.has_error() for reply in found) == 1
