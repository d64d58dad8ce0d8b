"""Totals are exact for every pattern of dropped nodes, with and without masks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.secure import Coordinator, Packing, SecureError, roster_of, threshold_of
from edgewire.compression.secure.masks import Masks
from tests.compression.secure.group import ANSWER, NEVER, SHARES, UPDATE, Group, equal

STEPS = {UPDATE: "sent masked updates", ANSWER: "answered to the end"}
DROPS = st.lists(
    st.sampled_from([SHARES, *STEPS, NEVER, NEVER, NEVER, NEVER]), min_size=1, max_size=11
).map(lambda given: [*given, NEVER, NEVER])
SECTIONS = st.lists(
    st.tuples(st.integers(0, 70), st.sampled_from([1, 7, 127, 10**6, 2**40])), max_size=3
)


@given(DROPS, SECTIONS, st.booleans())
def test_the_total_is_the_sum_of_the_nodes_that_sent_updates(when, sections, masks):
    """Fewer than the threshold at a step: an error names the step.

    The threshold is of the nodes that have shared.
    """
    group = Group(len(when), tuple(sections), masks)
    drops = dict(zip(group.ids, when, strict=True))
    due = threshold_of(sum(d > SHARES for d in when))
    failed = [step for step in STEPS if sum(d > step for d in when) < due]
    if not failed:
        there = [node for node in group.ids if drops[node] > UPDATE]
        assert equal(group.totals(1, drops), group.expected(there))
        return
    there = sum(d > failed[0] for d in when)
    with pytest.raises(SecureError, match=f"^{there} of .* {STEPS[failed[0]]}, and {due} must$"):
        group.totals(1, drops)


@given(st.lists(st.booleans(), min_size=2, max_size=9), st.booleans())
def test_no_node_gets_shares_unless_all_have_shared(shares, masks):
    """The round begins again without the missing nodes, also if it had gone on at some nodes."""
    group = Group(2 + len(shares), masks=masks)
    there = [*group.ids[: len(shares)], *group.ids[-2:]]
    gone = [node for node, shared in zip(there, shares, strict=False) if not shared]
    terms, _, full = group.shared()
    server = Coordinator(terms, full._roster, masks)  # noqa: SLF001
    for node in group.ids:
        if node not in gone:
            server.take_shares(node, group.seen["shares"][node])
    for node in group.ids:
        if gone:
            with pytest.raises(SecureError, match=f"of {group.nodes} nodes shared"):
                server.sealed_for(node)
        else:
            assert server.sealed_for(node) == full.sealed_for(node)
    group.members[group.ids[0]].opened(full.sealed_for(group.ids[0]))
    left = [node for node in group.ids if node not in gone]
    assert equal(group.totals(1, dict.fromkeys(gone, SHARES)), group.expected(left))


@given(st.integers(2, 12), SECTIONS, st.booleans())
def test_rounds_in_mode_bare_are_exact(nodes, sections, masks):
    group = Group(nodes, tuple(sections), masks)
    for number in (1, 2):
        assert equal(group.bare(number), group.expected(group.ids))


def test_a_lost_node_loses_a_round_in_mode_bare_and_the_next_one_is_exact():
    group = Group(4)
    terms, roster = group.terms(), group.roster(bare=True)
    server = Coordinator(terms, roster)
    for node in group.ids[:3]:
        server.take_masked(node, group.members[node].masked_bare(terms, roster, group.values(node)))
    with pytest.raises(SecureError, match=r"3 of 4 nodes sent .* and 4 must"):
        server.totals()
    assert equal(group.bare(2), group.expected(group.ids))


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("nodes", [2, 9, 30])
def test_bytes_equal_the_formula_with_and_without_masks(nodes, masks):
    group = Group(nodes, masks=masks)
    group.totals()
    seen = {name: {len(each) for each in of.values()} for name, of in group.seen.items()}
    packed = Packing(group.sections, nodes).nbytes
    up = [seen[name] for name in ("mask key", "shares", "answer", "masked")]
    assert up == [{32}, {50 * (nodes - 1)}, {17 * nodes}, {packed}]
    assert [seen["sealed"], seen["alive"]] == [{50 * (nodes - 1)}, {(nodes + 7) // 8}]


def test_ten_nodes_dropping_at_any_step_leave_the_next_round_whole():
    group = Group(10)
    for number, step in enumerate((SHARES, UPDATE, ANSWER, NEVER)):
        drops = dict.fromkeys(group.ids[2:5], step)
        there = [node for node in group.ids if drops.get(node, NEVER) > UPDATE]
        assert equal(group.totals(number, drops), group.expected(there))


@pytest.mark.parametrize("dropped", [(), (16,), (10, 16, 22)])
def test_wrong_shares_give_no_total(dropped):
    """Of ten nodes seven are needed: with three dropped only a mask key tells, as none is left."""
    group = Group(10)
    server = group.masked(1, dict.fromkeys(dropped, UPDATE))
    for node in (node for node in group.ids if node not in dropped):
        answer = group.members[node].unmask(server.alive(), 1)
        server.take_unmasked(node, bytes(170) if node == 13 else answer)
    with pytest.raises(SecureError, match="shares of a node's secret do not fit"):
        server.totals()


def test_a_dropped_node_whose_shares_are_not_of_its_key_is_named(monkeypatch):
    group, split = Group(4), Masks.split
    terms, roster = group.terms(), group.roster()
    server = Coordinator(terms, roster)
    for node in group.ids:
        with monkeypatch.context() as patch:
            if node == 10:
                patch.setattr(Masks, "split", lambda m, s, *to: split(m, [s[0], bytes(16)], *to))
            server.take_shares(node, group.members[node].share(terms, roster))
    for node in group.ids[1:]:
        server.take_masked(node, group.update(node, terms, server))
    for node in group.ids[1:]:
        server.take_unmasked(node, group.members[node].unmask(server.alive(), 1))
    with pytest.raises(SecureError, match="a node's secret do not fit"):
        server.totals()


def test_an_update_that_comes_after_the_list_of_the_sum_is_left_out():
    """Its node is called dropped by then, and its mask key's shares are asked for."""
    group = Group(4)
    server = group.masked(1, {16: UPDATE})
    alive, late = server.alive(), group.update(16, group.terms(), server)
    with pytest.raises(SecureError, match="not in this step"):
        server.take_masked(16, late)
    there = [node for node in group.ids if node != 16]
    for node in there:
        server.take_unmasked(node, group.members[node].unmask(alive, 1))
    assert equal(server.totals(), group.expected(there))


REFUSED = [
    (0, "not in this step", lambda s: s.take_shares(22, bytes(150))),
    (0, "answered before", lambda s: s.take_shares(10, bytes(150))),
    (0, "sealed shares: 150 bytes", lambda s: s.take_shares(19, bytes(149))),
    (0, "3 of 4 nodes shared", lambda s: s.sealed_for(10)),
    (0, "not in this step", lambda s: s.take_masked(10, b"")),
    (0, "not in this step", lambda s: s.take_unmasked(10, bytes(68))),
    (0, "0 of 4 nodes sent masked", lambda s: s.alive()),
    (0, "0 of 4 nodes sent masked", lambda s: s.totals()),
    (1, "answered before", lambda s: s.take_shares(19, bytes(150))),
    (1, "not in this step", lambda s: s.sealed_for(22)),
    (1, "not in this step", lambda s: s.take_masked(22, b"")),
    (1, "bytes in this round", lambda s: s.take_masked(19, b"")),
    (1, "answered before", lambda s: s.take_masked(10, b"")),
    (1, "not in this step", lambda s: s.take_unmasked(10, bytes(68))),
    (1, "for the sum: 68 bytes", lambda s: (s.alive(), s.take_unmasked(10, b""))),
    (1, "0 of 4 nodes answered", lambda s: s.totals()),
    (2, "not in this step", lambda s: s.take_masked(10, b"")),
    (2, "not in this step", lambda s: s.take_masked(19, b"")),
    (2, "not in this step", lambda s: s.take_unmasked(19, bytes(68))),
    (2, "answered before", lambda s: s.take_unmasked(10, bytes(68))),
]


@pytest.mark.parametrize(("step", "say", "do"), REFUSED)
def test_the_server_refuses_what_is_not_due_and_the_round_goes_on(step, say, do):
    """Node 22 is not in the roster; node 19 shares its keys last, and drops before its update."""
    group = Group(5)
    terms, roster, _ = group.shared(1, {22: SHARES})
    server = Coordinator(terms, roster)
    for node in group.ids[:3]:
        server.take_shares(node, group.seen["shares"][node])

    def refuse(now):
        if now == step:
            with pytest.raises(PayloadError, match=say):
                do(server)

    refuse(0)
    server.take_shares(19, group.seen["shares"][19])
    for node in group.ids[:3]:
        server.take_masked(node, group.update(node, terms, server))
    refuse(1)
    for node in group.ids[:3]:
        server.take_unmasked(node, group.members[node].unmask(server.alive(), 1))
    refuse(2)
    assert equal(server.totals(), group.expected(group.ids[:3]))


def test_a_node_with_an_invalid_or_anothers_key_is_left_out_of_the_roster():
    group = Group(3)
    keys = {p.node: p[1:] for p in group.roster().peers}
    low = bytes(32)
    bad = {1: (keys[10][0], b"k" * 32), 2: (b"r" * 32, keys[10][1]), 3: (low, b"m" * 32)}
    bad |= {4: (b"r" * 32, low), 5: (b"r" * 31, b"m" * 32), 6: (b"r" * 32, "m")}
    bad |= {7: (b"x" * 32, b"x" * 32)}
    roster, refused = roster_of(keys | bad)
    assert [peer.node for peer in roster.peers] == group.ids
    assert refused.keys() == bad.keys()
    with pytest.raises(SecureError, match="takes 2 to 200 nodes, not 1"):
        roster_of({10: keys[10]} | bad)
