"""The server fetches late replies, and forgets the replies that can no longer arrive."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from edgewire.strategy.collector import LEAST, Stragglers

NODES = 3


class Answers:
    """A grid that stores replies until they are fetched."""

    now = 0.0

    def __init__(self):
        self.there, self.looks, self.asked, self.discarded = set(), 0, [], 0

    def pull_before(self, ids, deadline):
        assert deadline == self.now
        self.looks += len(ids)
        self.asked = list(ids)
        found = [i for i in ids if i in self.there]
        self.there -= set(found)
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=i)) for i in found]

    def discard(self, reply):
        self.discarded += 1


@given(st.lists(st.tuples(st.sampled_from(["late", "comes", "in time"]), st.integers(1, NODES))))
def test_only_replies_that_may_still_arrive_are_awaited(events):
    grid = Answers()
    late, owed, sent = Stragglers(), {node: [] for node in range(1, NODES + 1)}, 0
    came = 0
    for what, node in events:
        if what == "late":
            sent += 1
            owed[node].append(sent)
            late.add(grid, str(sent), node, sent)
        elif what == "comes" and owed[node]:
            number = owed[node].pop()  # replies to earlier messages are lost
            owed[node].clear()
            grid.there.add(str(number))
            came += 1
        elif what == "in time":
            sent += 1
            owed[node].clear()
            late.answered(node, sent)
    late.clear(grid)
    assert not grid.there
    assert grid.discarded == came  # their bytes are counted
    kept = {str(number) for numbers in owed.values() for number in numbers}
    assert len(late.messages) == len(kept)
    late.clear(grid)
    assert set(grid.asked) == kept


def test_each_late_reply_is_polled_only_a_few_times():
    grid = Answers()
    late = Stragglers()
    for number in range(10_000):
        late.add(grid, str(number), number, 1)
    assert grid.looks < 10 * 10_000
    for number in range(10_000):
        late.answered(number, 1)
    late.clear(grid)
    assert len(late.messages) == 0
    late.add(grid, "x", 1, 2)
    assert len(late.messages) <= LEAST
