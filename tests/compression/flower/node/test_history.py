"""Nodes of a secure sum agree, from notes that all see, whose residuals no sum can single out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.flower.node.history import History, agreed
from edgewire.compression.secure.terms import MOST_NODES, NOTE, threshold_of

OLD, YOUNG, NEW = History(b"c" * 16, 9, 5), History(b"c" * 16, 1, 5), History(bytes(16), 0, 5)
OTHER = History(b"d" * 16, 9, 5)
NOTES = st.builds(
    History, st.sampled_from([b"c" * 16, b"d" * 16]), st.integers(0, 3), st.sampled_from([2, 5, 7])
)


def decided(*histories):
    notes = [each.note() for each in histories]
    return [agreed(notes, each) for each in notes]


@given(st.lists(NOTES, min_size=2, max_size=40))
def test_what_a_node_keeps_enough_others_keep(histories):
    found = decided(*histories)
    kept = [each for each in found if each.rounds]
    for before, after in zip(histories, found, strict=True):
        assert len(after.note()) == NOTE
        assert History.of(after.note()) == after
        assert after in (before, before._replace(chain=after.chain, rounds=0))
        alike = [k for k in kept if k.chain == after.chain and k.rounds >= after.rounds]
        assert not after.rounds or len(alike) >= max(after.least, 2)
    chains = {each.chain for each in found}
    assert chains <= {each.chain for each in kept or found}


@pytest.mark.parametrize(
    ("histories", "kept"),
    [
        ([OLD] * 9 + [NEW], 9),
        ([OLD] * 9 + [YOUNG], 10),  # the others have the rounds of this one, too
        ([OLD] * 8 + [YOUNG] * 2, 0),  # the old ones delete theirs, so the young ones must
        ([YOUNG] * 9 + [OLD], 9),
        ([OLD] * 9 + [OTHER], 9),
        ([OLD._replace(least=7)] * 9 + [OLD], 0),
        ([OLD._replace(least=7)] + [OLD] * 9, 9),
    ],
)
def test_who_keeps_a_residual(histories, kept):
    found = decided(*histories)
    assert sum(each.rounds > 0 for each in found) == kept
    after = [each.after(b"bound") for each in found]
    assert len({each.chain for each in after}) == 1
    # Whoever deleted its residual keeps the next one.
    assert sum(each.rounds > 0 for each in decided(*after)) >= 9 or 7 in [a.least for a in after]


def test_no_lists_of_the_dropped_leave_fewer_than_the_least():
    """Each node lets n - max(t, least) others drop out; of each t nodes must say so.

    Colluding nodes say it of all, and count as nodes with the same residual.
    """
    for nodes in range(3, MOST_NODES + 1):
        due = threshold_of(nodes)
        bad = min(2, 2 * due - nodes - 1)
        for least in {3, 4, 5, 8, due, nodes} - {*range(nodes + 1, 9)}:
            one = History(b"c" * 16, 1, least)
            rest = [one._replace(rounds=0)] * nodes
            needed = next((k for k in range(nodes + 1) if decided_alone(one, k, rest[k:])), None)
            if needed is None:  # all delete their residuals
                continue
            hidden = (nodes - bad) * (nodes - max(due, least)) // (due - bad)
            assert needed - hidden >= least
            assert needed - hidden - bad >= 2


def decided_alone(one, count, rest):
    notes = [each.note() for each in [one] * count + rest]
    return bool(agreed(notes, one.note()).rounds)
