"""The grid on its virtual clock: when replies arrive, how long pulls wait, what is lost."""

import random

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgewire.compression.flower.message_size import size_of
from edgewire.conf.network import WAITING, Network
from edgewire.simulation.clock import NEVER, VirtualClock
from tests.simulation.grids import NODES, app, growth, messages, sources


def asked(g, nodes):
    return [messages(g, size=10)[node - 1] for node in nodes]


class Arrivals:
    """What the grid should do: it knows the arrival of every reply when the message is sent."""

    def __init__(self, network):
        self.clock, self.now, self.due = VirtualClock(network), 0.0, {}

    def push(self, ids, nodes, ttl=NEVER):
        for name, node in zip(ids, nodes, strict=True):
            task = self.clock.send(node, self.now, 0)._replace(expires=self.now + ttl)
            self.due[name] = self.clock.answer(task, node, 0)  # node n takes n steps

    def pull(self, ids, deadline):
        ids = [name for name in dict.fromkeys(ids) if self.due.get(name, NEVER) < NEVER]
        first = min([deadline, *(self.due[name] for name in ids)])
        self.now = max(self.now, first) if first < NEVER else self.now
        found = [name for name in ids if self.due[name] <= self.now]
        for name in found:
            del self.due[name]
        return found

    def round(self, ids, nodes, timeout):
        deadline = self.now + timeout
        self.push(ids, nodes, timeout)
        arrivals = {name: self.due.pop(name) for name in ids}
        ends = [end for end in (min(each, deadline) for each in arrivals.values()) if end < NEVER]
        self.now = max([self.now, *ends])
        return [name for name in ids if arrivals[name] < NEVER and arrivals[name] <= deadline]


SECONDS = st.integers(0, 12).map(float) | st.just(NEVER)
SOME = st.lists(st.integers(1, NODES), max_size=6)
EVENTS = st.one_of(
    st.tuples(st.just("push"), SOME, SECONDS),
    st.tuples(st.just("pull"), st.randoms(use_true_random=False), SECONDS),
    st.tuples(st.just("wait"), st.none(), SECONDS),
    st.tuples(st.just("round"), SOME, SECONDS),
)
NETWORKS = st.builds(
    Network,
    seconds_per_step=st.sampled_from([0.0, 1.0]),
    latency_ms=st.sampled_from([0.0, 500.0]),
    waiting=st.sampled_from(WAITING),
    waiting_seconds=st.sampled_from([0.0, 3.0]),
    loss=st.sampled_from([0.0, 0.4, 1 - 1e-9]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(network=NETWORKS, events=st.lists(EVENTS, max_size=12))
@example(
    network=Network(seconds_per_step=1.0, waiting="uniform", waiting_seconds=1.0),
    events=[("round", [1, 5], 3.0), ("push", [2, 1, 2], NEVER), ("wait", None, 50.0),
            ("pull", random.Random(1), NEVER)],
)  # fmt: skip
def test_replies_come_when_and_in_the_order_in_which_they_arrive(grid, network, events):
    g, expected, sent = grid(1, network), Arrivals(network), ["999"]
    for name, what, seconds in events:
        found, wanted = [], []
        if name in ("pull", "wait"):
            ids = what.choices(sent, k=len(sent)) if what else []
            deadline = max(expected.now, seconds)
            found, wanted = g.pull_before(ids, deadline), expected.pull(ids, deadline)
        elif name == "push":
            ids = g.push_messages(asked(g, what), ttl=seconds)
            expected.push(ids, what, seconds)
            sent += ids
        else:
            made = asked(g, what)
            found = list(g.send_and_receive(made, timeout=seconds))
            wanted = expected.round([each.metadata.message_id for each in made], what, seconds)
        assert [each.metadata.reply_to_message_id for each in found] == wanted
        assert g.virtual_seconds == pytest.approx(expected.now)


def test_a_pull_whose_deadline_is_past_gets_what_has_arrived(grid):
    g = grid(1, Network(seconds_per_step=1.0))
    ids = g.push_messages(messages(g))
    assert g.pull_before(ids[4:], 3.0) == []
    assert sources(g.pull_before(ids[:4], 0.0)) == [1, 2, 3]
    assert g.virtual_seconds == 3.0


@pytest.mark.few(1)
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
