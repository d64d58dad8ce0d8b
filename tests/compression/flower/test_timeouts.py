"""Where time is real nobody silent stalls a call for ever; a time-out of one's own holds."""

from types import SimpleNamespace

import pytest

from compression.flower.timeouts import FOREVER, LEAST, AdaptiveTimeout, gathered


class Clock:
    """A grid whose replies come at moments given by node; it goes on to the next, or to the end."""

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
        ([1, 2, 3, 1e12], 3, 3 + LEAST),  # a silent one: a minute more
        ([10, 20, 30, 200], 4, 200),  # a slow one is waited for
        ([10, 20, 30, 1e6], 3, 30 + 300),
        ([5, 1e12, 1e12, 1e12], 1, FOREVER),  # most are missing: it may be the link
    ],
)
def test_who_is_silent_is_not_waited_for(moments, there, until):
    grid = Clock(moments)
    assert len(gathered(grid, messages(4), FOREVER)) == there
    assert grid.now == until


def test_a_time_out_of_ones_own_holds():
    grid = Clock([1, 2, 3, 500])
    assert len(gathered(grid, messages(4), 400.0)) == 3
    assert grid.now == 400


def test_on_a_virtual_clock_nothing_adapts():
    patience = AdaptiveTimeout(Clock([], virtual=0.0), FOREVER, 4)
    patience.came(3)
    assert patience.deadline == FOREVER
