"""Any bytes in place of a message: they are refused in one line, or they are a valid message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.secure import Coordinator, Member, Roster, roster_of
from edgewire.compression.secure.terms import from_bitmap
from tests.compression.secure.group import Group, equal

GROUP = Group(4)  # one group for all examples: states are copied
NODE = GROUP.ids[0]
ROSTER = GROUP.roster()
KEYED = dict(GROUP.states[NODE])
TERMS, SHARED_ROSTER, SERVER = GROUP.shared()
SHARED, SEALED = dict(GROUP.states[NODE]), SERVER.sealed_for(NODE)
GROUP.update(NODE, TERMS, SERVER)
MASKED = dict(GROUP.states[NODE])

MESSAGES = {
    "sealed shares": (SHARED, SEALED, lambda m, x: m.opened(x)),
    "nodes in the sum": (MASKED, b"\x0f", lambda m, x: m.unmask(x, 1)),
    "nonce": (KEYED, GROUP.run, lambda m, x: m.run_key(x)),
    "roster": (KEYED, ROSTER.to_bytes(), lambda m, x: m.share(TERMS, Roster.from_bytes(x))),
    "bitmap": ({}, b"\x0f", lambda m, x: from_bitmap(x, 4)),
}


@st.composite
def damaged(draw, message: bytes):
    """Draw any bytes, or a message with some bytes changed, cut off or added."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=300))
    data = bytearray(message)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


@pytest.mark.parametrize("kind", MESSAGES)
@given(st.data())
def test_a_node_refuses_any_bytes_or_takes_them_whole(kind, data):
    before, message, do = MESSAGES[kind]
    state = dict(before)
    try:
        do(Member(state), data.draw(damaged(message)))
    except PayloadError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert state == before


KEYS = st.one_of(st.binary(max_size=33), st.binary(min_size=32, max_size=32), st.just(bytes(32)))


@given(st.dictionaries(st.integers(0, 9), st.tuples(KEYS, KEYS)))
def test_the_server_takes_any_keys(found):
    """A node is in the roster or left out; the honest ones are in it."""
    valid = {peer.node: peer[1:] for peer in ROSTER.peers}
    roster, refused = roster_of(valid | found)
    assert [peer.node for peer in roster.peers][:4] == GROUP.ids
    assert len(roster) + len(refused) == 4 + len(found)


@given(st.data())
def test_the_server_takes_any_answers(data):
    """Whatever one node of four sends, the round ends with an error or with sums."""
    group = Group(4)
    server = group.masked()
    for node in group.ids:
        answer = group.members[node].unmask(server.alive(), 1)
        if node == NODE:
            answer = data.draw(damaged(answer))
        try:
            server.take_unmasked(node, answer)
        except PayloadError:
            assert len(answer) != 68
    try:
        assert [each.shape for each in server.totals()] == [(40,), (1,)]
    except PayloadError as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("take", ["take_shares", "take_masked", "take_unmasked"])
@given(st.data())
def test_a_refused_answer_leaves_the_round_as_it_was(take, data):
    """The right answer is taken after the refused one, and the sum is exact."""
    group = Group(4)
    server = Coordinator(*group.shared()[:2])

    answers = {
        "take_shares": lambda node: group.seen["shares"][node],
        "take_masked": lambda node: group.update(node, group.terms(), server),
        "take_unmasked": lambda node: group.members[node].unmask(server.alive(), 1),
    }
    for name, answer_of in answers.items():
        for node in group.ids:
            answer = answer_of(node)
            if (name, node) == (take, NODE):
                try:
                    getattr(server, name)(node, data.draw(damaged(answer)))
                except PayloadError:
                    pass
                else:
                    return
            getattr(server, name)(node, answer)
    assert equal(server.totals(), group.expected(group.ids))
