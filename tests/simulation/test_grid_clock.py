"""The grid on its virtual clock: when replies arrive, how long pulls wait, what is lost."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from simulation.clock import VirtualClock
from simulation.message_size import size_of
from simulation.network import Network
from tests.simulation.grids import NODES, app, growth, messages, seen, sources


def test_a_pull_advances_to_the_next_arrival(grid):
    g = grid(2, Network(seconds_per_step=1.0))
    ids = g.push_messages(messages(g))
    times, nodes = [], []
    while ids:
        got = g.pull_messages(ids)
        assert got  # there is always a next arrival
        nodes += [r.metadata.src_node_id for r in got]
        done = {r.metadata.reply_to_message_id for r in got}
        ids = [i for i in ids if i not in done]
        times.append(g.virtual_seconds)
    assert times == [1, 2, 3, 4, 5, 6, 7]
    assert nodes == [1, 2, 3, 4, 5, 6, 7]
    assert g.pull_messages(["999"]) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pull_advances_no_further_than_its_deadline(grid, workers):
    g = grid(workers, Network(seconds_per_step=1.0))  # node n replies after n seconds
    ids = g.push_messages(messages(g)[2:5])
    steps = [(g.pull_before(ids, deadline), g.virtual_seconds) for deadline in (2.5, 3.0, 3.5)]
    assert [(sources(got), now) for got, now in steps] == [([], 2.5), ([3], 3.0), ([], 3.5)]
    assert sources(g.pull_before(ids, float("inf"))) == [4]
    assert g.virtual_seconds == 4.0


def test_a_later_pull_gets_a_late_reply_at_once(grid):
    g = grid(1, Network(seconds_per_step=1.0))
    ids = g.push_messages(messages(g))
    fast, slow = ids[:4], ids[4:]
    assert g.pull_before(slow, 3.0) == []
    assert g.pull_before([], 6.5) == []  # nothing to wait for: time passes
    assert sources(g.pull_before([slow[2], slow[1], *fast[:1], *slow[:1]], 8.0)) == [6, 1, 5]
    assert g.virtual_seconds == 6.5
    assert sources(g.pull_before(fast, 0.0)) == [2, 3, 4]  # this deadline is past
    assert g.virtual_seconds == 6.5
    assert sources(g.pull_messages(slow)) == [7]
    assert g.virtual_seconds == 7.0
    assert g.pull_before(ids, float("inf")) == []  # all are fetched
    assert g.virtual_seconds == 7.0


def test_all_replies_that_have_arrived_are_returned(grid):
    g = grid(1, Network(waiting="uniform", waiting_seconds=1.0))
    ids = g.push_messages(messages(g))
    assert g.pull_before([], 100.0) == []
    assert len(g.pull_before(ids, 200.0)) == NODES
    assert g.virtual_seconds == 100.0


def test_replies_of_one_moment_are_in_the_order_of_the_request(grid):
    g = grid(1, Network(latency_ms=500))
    ids = g.push_messages(messages(g)[:3])
    asked = [ids[2], ids[0], ids[2], ids[1]]
    assert sources(g.pull_before(asked, 9.0)) == [3, 1, 2]
    assert g.virtual_seconds == 1.0


def test_a_nodes_queue_is_in_the_order_sent(grid):
    g = grid(1, Network(seconds_per_step=1.0))
    first, second = (g.push_messages(messages(g)[1:2])[0] for _ in range(2))
    (reply,) = g.pull_before([second, first], float("inf"))
    assert reply.metadata.reply_to_message_id == first


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_two_rounds_with_a_slow_node(grid, workers):
    """The slow node's first reply arrives in the second round, its second reply after that."""
    g = grid(workers, Network(seconds_per_step=1.0))
    pending, rounds = [], []
    for deadline in (3.0, 6.0, 20.0):
        if deadline < 20:
            pending += g.push_messages(messages(g)[0:5:2])  # nodes 1, 3 and 5
        while got := g.pull_before(pending, deadline):
            done = {r.metadata.reply_to_message_id for r in got}
            pending = [i for i in pending if i not in done]
            rounds += [(g.virtual_seconds, n) for n in sources(got)]
    assert rounds == [(1, 1), (3, 3), (4, 1), (5, 5), (6, 3), (10, 5)]
    assert (pending, g.virtual_seconds) == ([], 20.0)


def lossy_run(g):
    """Run three rounds with deadlines, one with a time-out; return which nodes replied when."""
    pending, trace = [], []
    for deadline in (5.0, 10.0, 40.0):
        pending += g.push_messages(messages(g))
        while got := g.pull_before(pending, deadline):
            trace.append((g.virtual_seconds, seen(got)))
        trace.append(g.virtual_seconds)
    trace.append(seen(g.send_and_receive(messages(g), timeout=6.0)))
    return [*trace, g.virtual_seconds]


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_loses_the_same_replies(grid, workers):
    network = Network(seconds_per_step=1.0, latency_ms=10, loss=0.4)
    one, many = (lossy_run(grid(count, network, seed=3)) for count in (1, workers))
    assert many == one
    pulled = sum(len(entry[1]) for entry in one if isinstance(entry, tuple))
    assert 0 < pulled < 3 * NODES
    assert one[-1] == 46.0


def test_lost_replies_are_waited_for(grid):
    g = grid(1, Network(seconds_per_step=1.0, loss=1 - 1e-9))
    ids = g.push_messages(messages(g))
    assert g.pull_messages(ids) == []
    assert g.virtual_seconds == 0.0  # no reply will ever arrive
    for deadline in (2.0, 9.0):  # the server does not know this
        assert g.pull_before(ids, deadline) == []
        assert g.virtual_seconds == deadline
    assert list(g.send_and_receive(messages(g), timeout=5.0)) == []
    assert g.virtual_seconds == 14.0
    assert list(g.send_and_receive(messages(g))) == []
    assert g.virtual_seconds == 14.0


@pytest.mark.few(2)
@pytest.mark.parametrize("loss", [0.0, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("timeout", [5.0, None])
def test_lost_late_and_fetched_replies_are_forgotten(grid, timeout, loss):
    g = grid(1, Network(seconds_per_step=1.0, loss=loss))
    assert growth(lambda: list(g.send_and_receive(messages(g, size=10), timeout=timeout))) < 99


def test_replies_that_were_fetched_are_forgotten(grid):
    g = grid(1, Network(seconds_per_step=1.0, loss=0.5), seed=1)

    def fetch():
        ids = g.push_messages(messages(g, size=10))
        while g.pull_messages(ids):
            pass

    assert growth(fetch) < 99


def test_a_message_that_expires_at_a_busy_node_is_forgotten(grid):
    g = grid(1, Network(waiting="fixed", waiting_seconds=1e9), nodes=1)
    g.push_messages(messages(g, size=10))

    def expire():
        ids = g.push_messages(messages(g, size=10), ttl=1.0)
        assert g.pull_before(ids, g.virtual_seconds + 3.0) == []

    assert growth(expire) < 99


def test_without_a_time_out_a_round_ends_with_its_last_arrival(grid):
    g = grid(1, Network(seconds_per_step=1.0, loss=0.5), seed=1)
    arrived = sources(g.send_and_receive(messages(g)))
    assert 0 < len(arrived) < NODES
    assert g.virtual_seconds == max(arrived)


def test_a_time_out_counts_from_the_end_of_the_round_before(grid):
    g = grid(1, Network(seconds_per_step=1.0))
    g.send_and_receive(messages(g))  # the replies are not read: 7 s
    assert sources(g.send_and_receive(messages(g), timeout=3.0)) == [1, 2, 3]
    assert g.virtual_seconds == 10.0


def test_a_reply_after_the_time_out_is_left_out(grid):
    g = grid(1, Network(seconds_per_step=1.0))
    replies = g.send_and_receive(messages(g), timeout=3.5)
    assert [r.metadata.src_node_id for r in replies] == [1, 2, 3]
    assert g.virtual_seconds == 3.5


def test_a_round_takes_as_long_as_its_slowest_link(grid):
    g = grid(1, Network(up_mbps=0.8, down_mbps=8.0, latency_ms=100))
    sent = messages(g, size=100_000)
    reply = g.send_and_receive(sent)[0]
    down, up = (size_of(each.content) for each in (sent[0], reply))
    assert g.virtual_seconds == pytest.approx(0.1 + down / 1e6 + up / 1e5 + 0.1)
    assert 100_200 > up > down > 100_000


class Watched(VirtualClock):
    """A clock that counts the replies for which the grid has waited."""

    answers = 0

    def answer(self, task, steps, up):
        self.answers += 1
        return super().answer(task, steps, up)


def asked_by_the_clock(g, count):
    """Keep one message under way to each node; return each reply's time, node and call number."""
    flight, trace = [], []
    for message in messages(g, size=10):
        flight += g.push_messages([message])
    while len(trace) < count:
        replies = g.pull_messages(flight)
        for reply in replies:
            flight.remove(reply.metadata.reply_to_message_id)
            node = reply.metadata.src_node_id
            trace.append((g.virtual_seconds, node, reply.content["metrics"]["calls"]))
            flight += g.push_messages(messages(g, size=10)[node - 1 : node])
    return trace


def watching():
    """Return a list of the nodes that replied in this process, and the app that fills this list."""
    computed = []

    def client(message, context):
        computed.append(message.metadata.dst_node_id)
        return app(message, context)

    return computed, client


@pytest.mark.parametrize("workers", [1, 3])
def test_only_replies_that_could_be_the_next_are_waited_for(grid, workers):
    network = Network(waiting="uniform", waiting_seconds=1.0)
    clock = Watched(network)
    trace = asked_by_the_clock(grid(workers, clock=clock), 50)
    assert trace == in_turn(VirtualClock(network), 50)
    assert clock.answers == 50  # no reply was waited for before its time


def in_turn(clock, count):
    """Return what `asked_by_the_clock` should return if no message takes local steps."""
    due = [(clock.arrival(node, 0.0, 0, 0, 0), node, 1) for node in range(1, NODES + 1)]
    expected = []
    for _ in range(count):
        due.sort()
        when, node, call = due.pop(0)
        expected.append((when, node, call))
        due.append((clock.arrival(node, when, 0, 0, 0), node, call + 1))
    return expected


@pytest.mark.parametrize("limits", [{"up_mbps": 1e-4}, {"server_mbps": 1e-4}])
def test_where_bytes_decide_possibly_earlier_replies_are_waited_for(grid, limits):
    network = Network(waiting="exponential", waiting_seconds=1.0, seconds_per_step=0.5, **limits)
    traces = [asked_by_the_clock(grid(workers, network), 40) for workers in (1, 2, 3)]
    assert traces[0] == traces[1] == traces[2]
    assert [when for when, *_ in traces[0]] == sorted(when for when, *_ in traces[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_message_not_begun_in_time_is_lost_and_takes_no_time(grid, workers):
    """Node 3 works three seconds on a message; of four that expire after five, it begins two."""
    g = grid(workers, Network(seconds_per_step=1.0))
    ids = [g.push_messages(messages(g)[2:3], ttl=5.0)[0] for _ in range(4)]
    arrived = []
    while replies := g.pull_messages(ids):
        arrived += [(g.virtual_seconds, ids.index(r.metadata.reply_to_message_id)) for r in replies]
    assert arrived == [(3.0, 0), (6.0, 1)]
    assert sources(g.send_and_receive(messages(g)[2:3])) == [3]
    assert g.virtual_seconds == 9.0


def test_bounds_hold_where_waiting_messages_are_lost(grid):
    """If a node drops an expired message, its later replies may arrive earlier."""
    network = Network(waiting="fixed", waiting_seconds=3.0)
    g = grid(1, network)
    ids = [g.push_messages(messages(g)[:1], ttl=ttl)[0] for ttl in (9.0, 1.0, 9.0)]
    ids += [g.push_messages(messages(g)[1:2])[0] for _ in range(3)]
    seen_at = []
    while replies := g.pull_messages(ids):
        seen_at.append((g.virtual_seconds, sources(replies)))
    assert seen_at == [(3.0, [1, 2]), (6.0, [1, 2]), (9.0, [2])]


def promising(g, steps):
    """Return messages with declared local steps: partition n replies after n + 1 s."""
    sent = []
    for node, count in steps.items():
        content = RecordDict(dict(messages(g)[node - 1].content))
        content["config"] = ConfigRecord({"num-steps": count})
        sent.append(Message(content, node, "train"))
    return sent


def test_a_message_with_declared_steps_is_not_computed_before_its_turn(grid):
    computed, client = watching()
    g = grid(1, Network(seconds_per_step=1.0), client=client)
    ids = g.push_messages(promising(g, {1: 1.0, 5: 5.0}))
    assert sources(g.pull_messages(ids)) == [1]
    assert computed == [1]  # the other reply cannot arrive before 5
    again = g.push_messages(promising(g, {1: 1.0}))
    assert sources(g.pull_messages([*ids[1:], *again])) == [1]
    assert g.virtual_seconds == 2.0
    assert sources(g.pull_messages(ids[1:])) == [5]
    assert g.virtual_seconds == 5.0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_node_that_took_fewer_steps_than_declared_still_takes_their_time(grid, workers):
    g = grid(workers, Network(seconds_per_step=1.0))
    sent = promising(g, {1: 4.0, 3: 2.0})
    sent[1].content["config"]["raise-at"] = 2  # the partition of node 3
    ids = g.push_messages(sent)
    (first,) = g.pull_messages(ids)
    assert first.has_error()
    assert g.virtual_seconds == 2.0
    assert sources(g.pull_messages(ids[:1])) == [1]
    assert g.virtual_seconds == 4.0
