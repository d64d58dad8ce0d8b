"""In real time no silent node blocks a call for ever; a time-out that a user sets is kept."""

from types import SimpleNamespace

import pytest

from edgewire.compression.flower.timeouts import LEAST, AdaptiveTimeout, gathered
from edgewire.compression.validation import FOREVER


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


def messages(count):
    return [SimpleNamespace(node=node) for node in range(count)]


@pytest.mark.parametrize(
    ("moments", "there", "until"),
    [
        ([1, 2, 3, 1e12], 3, 3 + LEAST),  # a silent node: one minute more
        ([10, 20, 30, 200], 4, 200),  # a slow node is waited for
        ([10, 20, 30, 1e6], 3, 30 + 300),
        ([5, 1e12, 1e12, 1e12], 1, FOREVER),  # most replies are missing: the network may be down
    ],
)
def test_a_silent_node_is_not_waited_for(moments, there, until):
    grid = Clock(moments)
    assert len(gathered(grid, messages(4), FOREVER)) == there
    assert grid.now == until


def test_a_time_out_that_a_user_sets_is_kept():
    grid = Clock([1, 2, 3, 500])
    assert len(gathered(grid, messages(4), 400.0)) == 3
    assert grid.now == 400


def test_on_a_virtual_clock_nothing_adapts():
    limit = AdaptiveTimeout(Clock([], virtual=0.0), FOREVER, 4)
    limit.received(3)
    assert limit.deadline == FOREVER
