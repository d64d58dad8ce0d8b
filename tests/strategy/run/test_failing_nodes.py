"""Nodes that fail repeatedly lose their place in a run, if a spare node is online."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.flower.server.failure_policy import (
    NOT_OPEN,
    FailurePolicy,
    FailurePolicyState,
)
from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.compression.flower.traffic import Traffic
from edgewire.conf.network import Network
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.membership import (
    LONGEST_PAUSE,
    REPEATED,
    SHORTEST_PAUSE,
    MembershipGrid,
    RunLineageState,
)
from edgewire.strategy.run.serialization import from_bytes, to_bytes
from tests.strategy.federation import Federation, Trainer, breaks


class Places(MembershipGrid):
    """A `MembershipGrid` on a clock that the test sets."""

    now = 0.0


@dataclass
class Strategy:
    """What a `MembershipGrid` reads of a strategy."""

    traffic: Traffic = field(default_factory=Traffic)

    state: FailurePolicyState = field(default_factory=FailurePolicyState)

    @property
    def failures(self):
        return FailurePolicy(self.traffic, state=self.state)

    @property
    def failed_nodes(self):
        return self.state.failed_nodes


class Rounds:
    """Rounds in which every node that takes part gets one message, which it may fail.

    `nodes`: by id, a function of the round that says whether the node fails. `online`: a function
    of the round that returns the nodes that are online. `idle`: rounds in which no node is asked.
    """

    def __init__(self, nodes, most, online=None, seconds=60.0, idle=()):
        self.nodes, self.seconds, self.idle = nodes, seconds, idle
        self.online = online or (lambda number: sorted(nodes))
        self.strategy, self.number = Strategy(), 0
        self.most = most
        self.asked = []  # by round, the nodes that took part
        self.grid = self.places(0.0)

    def get_node_ids(self):
        return self.online(self.number)

    def get_nodes(self):
        return []

    def places(self, now):
        grid = Places(self, 1, self.most)
        grid.now, grid.strategy = now, self.strategy
        return grid

    def resume(self):
        """Continue with a new grid, on another clock, that has only the state of a checkpoint."""
        state = from_bytes(RunLineageState, to_bytes(self.grid.state(self.number)))
        self.strategy.state = from_bytes(FailurePolicyState, to_bytes(self.strategy.state))
        self.grid = self.places(self.grid.now - 12_345.0)
        self.grid.load(state)

    def go(self, rounds):
        for _ in range(rounds):
            self.number += 1
            part = list(self.grid.get_node_ids())
            used = 0
            for node in part if self.number not in self.idle else ():
                if self.nodes[node](self.number):
                    self.strategy.failures.leave_out(node, "no power")
                else:
                    self.strategy.failures.succeeded(node)
                    used += 1
            self.strategy.traffic.client_updates += used
            self.asked.append(part)
            self.grid.now += self.seconds
        return self


def never(number):
    return False


def always(number):
    return True


def taking_part(rounds, node):
    """Return the rounds, from 1, in which a node took part."""
    return [number for number, part in enumerate(rounds.asked, 1) if node in part]


def test_a_spare_node_replaces_a_node_that_fails_until_it_succeeds_on_trial(caplog):
    nodes = {1: never, 2: lambda number: number < 20, 3: never}
    rounds = Rounds(nodes, 2).go(40)
    assert rounds.asked[:3] == [[1, 2]] * 3
    assert rounds.asked[3:13] == [[1, 3]] * 10  # ten minutes
    assert rounds.asked[13] == [1, 2]  # one message on trial
    assert rounds.asked[14:34] == [[1, 3]] * 20
    assert rounds.asked[34:] == [[1, 2]] * 6  # it has its place again
    said = [line for line in caplog.messages if "in a row" in line]
    assert said == [
        "node 2 has failed 3 times in a row: a spare node has its place for 10 minutes",
        "node 2 has failed 4 times in a row: a spare node has its place for 20 minutes",
    ]


def test_a_trial_lasts_until_the_node_has_failed_its_message():
    rounds = Rounds({1: never, 2: always, 3: never}, 2, idle=range(12, 20)).go(22)
    assert rounds.asked[3:13] == [[1, 3]] * 10
    assert rounds.asked[13:20] == [[1, 2]] * 7
    assert rounds.asked[20:] == [[1, 3]] * 2


def test_pauses_become_twice_as_long_up_to_a_day():
    nodes = {1: never, 2: always, 3: never}
    rounds = Rounds(nodes, 2, seconds=300.0).go(2000)
    trials = taking_part(rounds, 2)
    assert trials[:3] == [1, 2, 3]
    gaps = [300.0 * (b - a - 1) for a, b in pairwise(trials[2:])]
    expected = [min(SHORTEST_PAUSE * 2**power, LONGEST_PAUSE) for power in range(len(gaps))]
    assert gaps == expected
    assert gaps[-1] == LONGEST_PAUSE


@pytest.mark.parametrize("most", [None, 2])
def test_without_a_spare_node_it_stays_and_the_log_says_so_thrice(most, caplog):
    rounds = Rounds({1: never, 2: always}, most).go(150)
    assert rounds.asked == [[1, 2]] * 150
    assert [line for line in caplog.messages if "in a row" in line] == [
        f"node 2 has failed {count} times in a row: it keeps its place, because no spare node is "
        "online"
        for count in (3, 10, 100)
    ]


def test_a_spare_node_that_comes_later_gets_the_place():
    nodes = {1: never, 2: always, 3: never}
    rounds = Rounds(nodes, 2, lambda number: [1, 2] if number < 8 else [1, 2, 3]).go(12)
    assert rounds.asked == [[1, 2]] * 7 + [[1, 3]] * 5


def test_a_failing_node_takes_part_during_its_pause_if_the_spare_node_has_left():
    nodes = {1: never, 2: always, 3: never}
    rounds = Rounds(nodes, 2, lambda number: [1, 2] if number == 6 else [1, 2, 3]).go(8)
    assert rounds.asked == [[1, 2]] * 3 + [[1, 3]] * 2 + [[1, 2]] + [[1, 3]] * 2


def test_replies_to_no_message_are_not_consecutive_failures():
    strategy = Strategy()
    for _ in range(10):
        strategy.failures.leave_out(2, NOT_OPEN)
    assert strategy.failed_nodes[2].streak is None


@st.composite
def behaviours(draw, nodes):
    """Return for each node a function of the round that says whether the node fails."""
    kinds = st.sampled_from(["never", "always", "by turns", "twice of three", "for a while"])

    def made(kind, at):
        return {
            "never": never,
            "always": always,
            "by turns": lambda number: number % 2 == at % 2,
            "twice of three": lambda number: number % 3 != at % 3,
            "for a while": lambda number: at <= number < 2 * at + 4,
        }[kind]

    return {n: made(draw(kinds), draw(st.integers(0, 30))) for n in range(1, nodes + 1)}


@given(data=st.data())
def test_only_nodes_that_fail_lose_their_places_also_over_a_resume(data):
    count, most = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    nodes = data.draw(behaviours(count))
    seconds = data.draw(st.sampled_from([1.0, 59.0, 200.0, 700.0, 5000.0]))
    away = data.draw(st.sets(st.tuples(st.integers(1, 60), st.integers(most + 1, 7))))

    def online(number):  # spare nodes come and go
        return [node for node in nodes if (number, node) not in away]

    def rounds():
        return Rounds(nodes, most, online, seconds)

    whole = rounds().go(60)
    resumed = rounds()
    for stretch in data.draw(st.lists(st.integers(1, 20), max_size=4)):
        resumed.go(min(stretch, 60 - resumed.number))
        resumed.resume()
    assert resumed.go(60 - resumed.number).asked == whole.asked
    for number, part in enumerate(whole.asked, 1):
        assert part == sorted(part)
        assert len(part) == min(most, len(online(number)))
    for node in range(1, min(most, count) + 1):  # these have a place from the first round
        row = 0  # failures in a row so far
        for number, part in enumerate(whole.asked, 1):
            if node not in part:
                assert row >= REPEATED, (node, number)
            else:
                row = row + 1 if nodes[node](number) else 0


@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 10), st.integers(1, 40))
def test_no_node_goes_if_all_fail_at_once(most, spare, start, length):
    def outage(number):
        return start <= number < start + length

    nodes = dict.fromkeys(range(1, most + spare + 1), outage)
    assert Rounds(nodes, most).go(60).asked == [list(range(1, most + 1))] * 60


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 4))
def test_each_failing_node_gets_a_spare_node_while_there_are_some(good, bad, spare):
    nodes = {n: always if n <= bad else never for n in range(1, bad + good + spare + 1)}
    rounds = Rounds(nodes, good + bad).go(REPEATED + 1)
    replaced = min(bad, spare)
    kept = range(replaced + 1, bad + good + 1)  # in the order of the list
    assert rounds.asked[-1] == [*kept, *range(bad + good + 1, bad + good + replaced + 1)]


class Places3(MembershipGrid):
    """A `MembershipGrid` for three of a federation's four nodes."""

    next_change = None  # a server looks for nodes every few seconds, as in real time

    def __init__(self, federation):
        super().__init__(federation.grid, 1, 3)
        self.federation = federation

    @property
    def strategy(self):
        return getattr(self.federation, "strategy", None)

    @strategy.setter
    def strategy(self, strategy):
        """Ignore it: a federation makes its strategy when it starts."""


def huge(made):
    return made * 2**20


def federation(kind, tries, within=lambda grid: grid):
    """Return a federation of which node 2 fails its messages up to number `tries`.

    `within`: returns a grid around the federation's own.
    """
    spoil = {"raises": breaks, "always screened": huge}.get(kind)
    late = kind == "always late"
    trainer = Trainer(
        spoil={(2, number): spoil for number in range(1, tries + 1) if spoil},
        steps=lambda node, number: 10_000 if late and node == 2 else 60,
    )
    found = Federation(trainer, Network(seconds_per_step=1))
    found.grid = within(found.grid)
    found.grid = OrderedGrid(Places3(found))
    return found


def numbers(found, node):
    return sorted(number for each, number in found.seen if each == node)


KINDS = ("raises", "always screened", "always late")


@pytest.mark.parametrize("kind", KINDS)
def test_a_synchronous_run_goes_on_with_a_spare_node(kind, caplog):
    found = federation(kind, tries=9)
    found.run(12, timeout=90)
    assert "node 2 has failed 3 times in a row: a spare node has its place" in caplog.text
    assert len(numbers(found, 2)) <= REPEATED
    assert len(numbers(found, 4)) >= 5
    again = federation(kind, tries=9)
    again.run(12, timeout=90)
    assert [each.tobytes() for each in again.models] == [each.tobytes() for each in found.models]


@pytest.mark.parametrize("kind", KINDS)
def test_an_asynchronous_run_goes_on_with_a_spare_node(kind, caplog):
    found = federation(kind, tries=99)
    found.push(30, timeout=90)
    assert "node 2 has failed 3 times in a row: a spare node has its place" in caplog.text
    assert len(numbers(found, 4)) >= 5
    assert found.strategy.failed_nodes[2].failures == REPEATED


class Away(GridWrapper):
    """A grid that does not list node 2 from second 100 to second 300."""

    def get_node_ids(self):
        """Return the nodes that are online."""
        return [n for n in super().get_node_ids() if n != 2 or not 100 < self.now < 300]


def test_a_spare_node_of_an_asynchronous_run_gives_a_returned_node_its_place_back():
    found = federation("well", tries=0, within=Away)
    found.push(60)
    asked = [node for node, _ in found.seen]
    spare = [place for place, node in enumerate(asked) if node == 4]
    assert 1 <= len(spare) <= 6  # replies in 200 s, of 60 s each
    after = asked[max(spare) + 1 :]
    assert len(after) >= 20
    assert set(after) == {1, 2, 3}


class RealTime(OrderedGrid):
    """A grid that does not tell that its clock is virtual."""

    virtual_seconds = next_change = None


def test_an_asynchronous_run_names_a_silent_node_and_gives_it_up_after_an_hour(caplog):
    found = federation("always late", tries=0)
    found.grid = RealTime(found.grid)
    found.push(250)
    waits = [line for line in caplog.messages if "still waits" in line]
    assert waits[0] == "the server still waits, at most 3600 s for a reply, for node 2"
    given_up = found.strategy.traffic.failures
    assert 2 <= given_up <= len(waits) <= given_up + 1
    assert "no reply in time (timeout=3600)" in caplog.text


@pytest.mark.parametrize("start", [Federation.run, Federation.push])
def test_a_run_without_failures_is_the_same_with_and_without_this_list(start, monkeypatch):
    models = []
    for _ in range(2):
        found = federation("", tries=0)
        start(found, 12, timeout=90)
        models.append([each.tobytes() for each in found.models])
        monkeypatch.setattr(Places3, "strategy", None)
    assert models[0] == models[1]
