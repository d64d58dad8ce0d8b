"""The local grid is a `TimedGrid` on a virtual clock; `timed` makes any grid a `TimedGrid`.

In real time no silent node blocks a call for ever; a time-out that a user sets is kept.
"""

import inspect
import re
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.flower import timed_grid
from edgewire.compression.flower.timed_grid import (
    FIRST,
    LEAST,
    AdaptiveTimeout,
    GridWrapper,
    PolledGrid,
    SlowestReply,
    TimedGrid,
    gathered,
    timed,
)
from edgewire.compression.validation import FOREVER
from edgewire.simulation.any_app.grid import GuestGrid
from edgewire.simulation.grid import LocalGrid
from tests.compression.flower.fleet import Fleet, Remote
from tests.grids import grid_of

DECLARED = {name: member for name, member in vars(TimedGrid).items() if not name.startswith("_")}


@pytest.fixture
def local():
    return grid_of()


@pytest.mark.parametrize("kind", [LocalGrid, GuestGrid, GridWrapper, PolledGrid])
@pytest.mark.parametrize("name", DECLARED)
def test_a_timed_grid_has_the_declared_methods(kind, name):
    """Each grid has the declared properties and methods; extra arguments have defaults."""
    declared, found = DECLARED[name], inspect.getattr_static(kind, name)
    assert isinstance(found, property) == isinstance(declared, property)
    if isinstance(declared, property):
        return
    wanted, there = (inspect.signature(f).parameters for f in (declared, found))
    for parameter, other in zip(wanted.values(), there.values(), strict=False):
        assert parameter.replace(annotation=0) == other.replace(annotation=0)
    assert all(p.default is not p.empty for p in list(there.values())[len(wanted) :])


def test_a_local_grid_is_used_as_it_is_and_others_are_polled(local):
    fleet, wrapper = Fleet([[3]]), GridWrapper(local)
    assert timed(local) is local
    assert timed(wrapper) is wrapper
    assert isinstance(timed(fleet), PolledGrid)
    assert timed(polled := timed(fleet)) is polled


@pytest.mark.parametrize("name", [n for n, m in DECLARED.items() if isinstance(m, property)])
def test_a_wrapper_has_the_properties_of_its_grid(local, name):
    local.follow(1000)
    if name == "run":
        assert GridWrapper(local).run.run_id == local.run.run_id
    else:
        assert getattr(GridWrapper(local), name) == getattr(local, name)


def test_other_nodes_are_ordered_by_registration():
    grid = GridWrapper(Fleet([[3, 7, 9], [3, 5, 7, 9]]))
    assert list(grid.get_node_ids()) == [9, 3, 7]
    assert list(grid.get_node_ids()) == [9, 3, 7, 5]
    assert grid.virtual_seconds is None


def test_polling_ends_with_the_first_replies(naps):
    remote = Remote(ready=8)
    assert timed(remote).pull_before(iter(["a", "b"]), float("inf")) == ["reply"]
    assert remote.polls == [["a", "b"]] * 8
    assert naps == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_polling_ends_at_the_deadline(naps):
    remote = Remote(ready=float("inf"))
    grid = timed(remote)
    assert grid.pull_before(["a"], 100.5) == []
    assert grid.now == pytest.approx(100.5)
    assert max(naps) <= 0.25
    polls = len(remote.polls)
    # Past the deadline, replies that have arrived are still returned.
    assert grid.pull_before(["a"], 99.0) == []
    assert len(remote.polls) == polls + 1
    assert grid.pull_before([], float("inf")) == []


def test_in_real_time_a_messages_ttl_ends_with_its_deadline():
    sent = []
    grid = timed(SimpleNamespace(push_messages=sent.extend))
    for ttl in (50.0, float("inf")):
        grid.push_messages([SimpleNamespace(metadata=SimpleNamespace(ttl=t)) for t in (60, 9)], ttl)
    assert [message.metadata.ttl for message in sent] == [50.0, 9, 60, 9]


class Clock:
    """A grid with a reply time for each node; a pull sets `now` to the next reply's time.

    If the deadline of the pull is earlier, it sets `now` to the deadline.
    """

    def __init__(self, moments, virtual=None):
        self.moments, self.virtual_seconds, self.now = moments, virtual, 0.0
        self.sent = {}

    def push_messages(self, messages, ttl=None):
        self.sent |= {str(number): message for number, message in enumerate(messages)}
        return list(self.sent)

    def pull_before(self, ids, deadline):
        when, first = min((self.moments[int(i)], i) for i in ids)
        self.now = min(max(when, self.now), deadline)
        if when > deadline:
            return []
        del self.sent[first]
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=first))]

    def drop_replies(self, ids):
        self.sent = {i: message for i, message in self.sent.items() if i not in set(ids)}


def messages(count):
    return [
        SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node, message_id=str(node)))
        for node in range(count)
    ]


@pytest.mark.parametrize(
    ("moments", "there", "until"),
    [
        ([1, 2, 3, 1e12], 3, 3 + LEAST),  # a silent node: one minute more
        ([10, 20, 30, 200], 4, 200),  # a slow node is waited for
        ([10, 20, 30, 1e6], 3, 30 + 300),
        ([5, 1e12, 1e12, 1e12], 1, FIRST),  # most replies are missing: the network may be down
    ],
)
def test_a_silent_node_is_not_waited_for(moments, there, until):
    grid = Clock(moments)
    assert len(gathered(grid, messages(4), FOREVER)) == there
    assert grid.now == until
    assert not grid.sent  # also what was not waited for


@given(
    st.lists(st.floats(0.01, 9e3) | st.just(1e12), min_size=1, max_size=5),
    st.just(0.0) | st.floats(0.01, 9e3),
    st.sampled_from([FOREVER, 30.0, 5e4]),
)
def test_awaited_nodes_are_named_and_each_wait_ends(moments, known, timeout):
    """`known`: the time of the slowest reply in earlier calls, 0 in the first call."""
    grid, slowest = Clock(moments), SlowestReply()
    slowest.took(known)
    with patch.object(timed_grid.log, "warning") as warning:
        found = gathered(grid, messages(len(moments)), timeout, slowest)
    said = [each.args[0] % each.args[1:] for each in warning.call_args_list]
    named = [[int(node) for node in re.findall(r"node (\d+)", line)] for line in said]
    missing = [node for node, when in enumerate(moments) if when > grid.now]
    assert len(found) == len(moments) - len(missing)
    assert [n for n, line in zip(named, said, strict=True) if "no reply within" in line] == (
        [missing] if missing else []
    )
    late = max(LEAST, 2 * known)
    waiting = [node for node, when in enumerate(moments) if when > late]
    assert [n for n, line in zip(named, said, strict=True) if "still waits" in line] == (
        [waiting] if grid.now > late else []
    )
    came = [when for when in moments if when <= grid.now]
    longest = max(FIRST, 11 * max(came, default=0.0), LEAST + max(came, default=0.0))
    if timeout < FOREVER:
        longest = timeout
    elif known:
        longest = max(10 * known, LEAST)
    assert grid.now <= longest


def test_a_time_out_that_a_user_sets_is_kept():
    grid = Clock([1, 2, 3, 500])
    assert len(gathered(grid, messages(4), 400.0)) == 3
    assert grid.now == 400


def test_on_a_virtual_clock_nothing_adapts():
    limit = AdaptiveTimeout(Clock([], virtual=0.0), FOREVER, 4)
    limit.received(3)
    assert limit.deadline == FOREVER
