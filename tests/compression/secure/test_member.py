"""What a node refuses: with one line that holds no secret, and without a change of its state."""

from dataclasses import replace

import numpy as np
import pytest

from edgewire.compression.base import PayloadError
from edgewire.compression.secure import Coordinator, Member, Peer, Roster, SecureError, binding
from edgewire.compression.secure.terms import to_bitmap
from tests.compression.secure.group import Group, equal

NODE, NODES = 10, 7  # the node that refuses is the first of seven; the threshold is 5
OTHER = b"other bytes, 32 of them, as a key"[:32]


class Round:
    """A round that a node has come to; a refusal is a call of one of its methods."""

    def __init__(self) -> None:
        self.group = Group(NODES)
        self.member = self.group.members[NODE]
        self.values = self.group.values(NODE)
        self.terms, self.roster = self.group.terms(3), None

    def keyed(self):
        self.roster = self.group.roster()

    def shared(self, number=3):
        self.terms, self.roster, self.server = self.group.shared(number)
        self.sealed = self.server.sealed_for(NODE)

    def opened(self):
        self.shared()
        self.open()

    def masked(self):
        self.server = self.group.masked(3)

    def done(self):
        self.group.totals(3)

    def done_before(self):
        """The round is over, and another session begins."""
        self.done()
        self.session()

    def again(self):
        self.done()
        self.keyed()

    def next(self):
        self.shared(number=3)
        self.old = self.sealed
        self.shared(number=4)

    def session(self):
        """Another session begins."""
        self.group.run = b"another session!"
        for node, member in self.group.members.items():
            self.group.seen["run key"][node] = member.run_key(self.group.run)
        self.terms = self.group.terms(3)
        self.keyed()

    def floor(self):
        """The node's owner asks for six in the sum."""
        self.keyed()
        self.server = Coordinator(self.terms, self.roster)
        for node, member in self.group.members.items():
            least = 6 if node == NODE else 2
            self.server.take_shares(node, member.share(self.terms, self.roster, least))
        self.sealed = self.server.sealed_for(NODE)
        self.open()
        self.mask()

    def bare(self):
        self.group.bare(3)
        self.terms, self.roster = self.group.terms(3), self.group.roster(bare=True)

    def share(self, place=0, peer=None, roster=None, least=2, **terms):
        peers = [*(roster or self.roster).peers]
        peers[place] = peers[place]._replace(**peer or {})
        return self.member.share(replace(self.terms, **terms), Roster(tuple(peers)), least)

    def open(self, sealed=None):
        return self.member.opened(self.sealed if sealed is None else sealed)

    def mask(self, **terms):
        return self.member.masked(replace(self.terms, **terms), self.values)

    def send_bare(self, roster=None, **terms):
        terms = replace(self.terms, **terms)
        return self.member.masked_bare(terms, roster or self.roster, self.values)

    def unmask(self, *places, nodes=NODES, number=3):
        return self.member.unmask(to_bitmap(places, nodes), number)


def foreign(round_: Round, of: int) -> bytes:
    """Return the node's sealed shares with those of node `of` sealed for another node."""
    start = 50 * (of - 1)
    other = round_.server.sealed_for(round_.group.ids[6])
    own = round_.sealed
    return own[:start] + other[50 * of : 50 * (of + 1)] + own[start + 50 :]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


NO_KEY, DUE, OVER = "key is missing in the roster", "late, early or repeated", "round . is over"
OPEN, DIFFER, LEFT = (
    "a share of place . does not open",
    "the model or the terms differ",
    "nodes are left",
)
TWO, LACK = "one id or one key", "the nodes to sum lack this node"
REFUSED = {
    "no run key": ("no key for this run", None, lambda r: type(r.member)({}).mask_key()),
    "no run key, bare": ("no key for this run", None, lambda r: type(r.member)({}).masked_bare(
        r.terms, r.group.roster(bare=True), r.values)),
    "a short nonce": ("nonce: 16 bytes", None, lambda r: r.member.run_key(b"short")),
    "share before a mask key": (DUE, None, lambda r: r.member.share(r.terms, r.roster)),
    "opened before a share": (DUE, "keyed", lambda r: r.open(b"")),
    "masked before a share": (DUE, "keyed", lambda r: r.mask()),
    "masked before opened": (DUE, "shared", lambda r: r.mask()),
    "unmask before opened": (DUE, "shared", lambda r: r.unmask(*range(7))),
    "unmask before masked": (DUE, "opened", lambda r: r.unmask(*range(7))),
    "a second share": (DUE, "shared", lambda r: r.share()),
    "a share after opened": (DUE, "opened", lambda r: r.share()),
    "a second opened": (DUE, "opened", lambda r: r.open()),
    "opened after masked": (DUE, "masked", lambda r: r.open(b"")),
    "a second masked": (DUE, "masked", lambda r: r.mask()),
    "a second unmask": (DUE, "done", lambda r: r.unmask(*range(7))),
    "opened after the round": (DUE, "done", lambda r: r.open(b"")),
    "masked after the round": (DUE, "done", lambda r: r.mask()),
    "a round again": (OVER, "again", lambda r: r.share()),
    "a round again in another session": (OVER, "done_before", lambda r: r.share()),
    "a round before, in another session": (OVER, "done_before", lambda r: r.share(round=2)),
    "a round before": (OVER, "again", lambda r: r.share(round=2)),
    "another run": ("of another run", "keyed", lambda r: r.share(run=b"r" * 16)),
    "its key missing": (NO_KEY, "keyed", lambda r: r.share(roster=Roster(r.roster.peers[1:]))),
    "its run key changed": (NO_KEY, "keyed", lambda r: r.share(peer={"run_key": OTHER})),
    "its mask key changed": (NO_KEY, "keyed", lambda r: r.share(peer={"mask_key": OTHER})),
    "two nodes with its key": (
        TWO, "keyed", lambda r: r.share(1, {"run_key": r.roster.peers[0].run_key})),
    "two nodes with its id": (TWO, "keyed", lambda r: r.share(1, {"node": NODE})),
    "a node without a mask key": (
        TWO, "keyed", lambda r: r.share(1, {"mask_key": bytes(32)})),
    "a key of low order": ("key is invalid", "keyed", lambda r: r.share(1, {"run_key": bytes(32)})),
    "a roster without mask keys": (
        NO_KEY, "keyed", lambda r: r.share(roster=r.group.roster(bare=True))),
    "fewer nodes than the owner asks for": (
        "the owner asks for 8", "keyed", lambda r: r.share(least=8)),
    "a changed share": (OPEN, "shared", lambda r: r.open(flipped(r.sealed, 60))),
    "a share for another node": (OPEN, "shared", lambda r: r.open(foreign(r, 3))),
    "shares in another order": (
        OPEN, "shared", lambda r: r.open(r.sealed[50:100] + r.sealed[:50] + r.sealed[100:])),
    "a share of another round": (OPEN, "next", lambda r: r.open(r.old)),
    "a share of another configuration": (OPEN, "shared", lambda r: Member(
        r.group.states[NODE], config=b"c" * 32).opened(r.sealed)),
    "zeros for a node that has not shared": (
        OPEN, "shared", lambda r: r.open(bytes(50) + r.sealed[50:])),
    "a missing share": (
        "sealed shares: 300 bytes are taken, not 250", "shared", lambda r: r.open(r.sealed[50:])),
    "a share too many": (
        "300 bytes are taken, not 350", "shared", lambda r: r.open(r.sealed + r.sealed[:50])),
    "no shares": ("300 bytes are taken, not 0", "shared", lambda r: r.member.opened(b"")),
    "text for shares": ("300 bytes are taken, not str", "shared", lambda r: r.open("shares")),
    "another model": (DIFFER, "opened", lambda r: r.mask(given=b"m" * 32)),
    "other sections": (DIFFER, "opened", lambda r: r.mask(sections=((41, 1), (1, 1000)))),
    "another round": (DIFFER, "opened", lambda r: r.mask(round=4)),
    "another session's terms": (DIFFER, "opened", lambda r: r.mask(run=b"r" * 16)),
    "too few in the sum": (LEFT, "masked", lambda r: r.unmask(*range(4))),
    "it is not in the sum": (LACK, "masked", lambda r: r.unmask(*range(1, 7))),
    "an eighth node of seven": (
        "more than the 7", "masked", lambda r: r.unmask(*range(8), nodes=8)),
    "a sum below the owner's floor": ("6 are needed", "floor", lambda r: r.unmask(*range(5))),
    "unmask of another round": (
        "round 2 is not the one", "masked", lambda r: r.unmask(*range(7), number=2)),
    "a bitmap of another roster": ("a bitmap of nodes", "masked", lambda r: r.unmask(0, nodes=9)),
    "bare, a round again": (OVER, "bare", lambda r: r.send_bare()),
    "bare, a round before": (OVER, "bare", lambda r: r.send_bare(round=2)),
    "bare, after a round of sums": (
        OVER, "done", lambda r: r.send_bare(r.group.roster(bare=True))),
    "bare, after a round of another session": (OVER, "done_before", lambda r: r.send_bare(
        r.group.roster(bare=True))),
    "bare, another run": (OVER, "bare", lambda r: r.send_bare(round=4, run=b"r" * 16)),
    "bare, its key missing": (
        NO_KEY, "bare", lambda r: r.send_bare(Roster(r.roster.peers[1:]), round=4)),
    "bare, a roster with mask keys": (
        NO_KEY, "bare", lambda r: r.send_bare(Roster(tuple(
            p._replace(mask_key=p.run_key[::-1]) for p in r.roster.peers)), round=4)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_refuses(name):
    say, come_to, do = REFUSED[name]
    round_ = Round()
    if come_to:
        getattr(round_, come_to)()
    before = dict(round_.group.states[NODE])
    with pytest.raises(SecureError, match=say) as caught:
        do(round_)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 160
    for secret in (x for x in before.values() if isinstance(x, bytes)):
        for text in (repr(secret)[2:-1], secret.hex(), secret[:16].hex()):
            assert text not in said + repr(caught.value)
    assert round_.group.states[NODE] == before


@pytest.mark.parametrize("name", ["a changed share", "no shares", "masked before opened"])
def test_a_refusal_spoils_nothing(name):
    """The same round is exact when the right message comes after the refused one."""
    group = Group(NODES)
    round_ = Round()
    round_.group, round_.member = group, group.members[NODE]
    round_.shared()
    with pytest.raises(SecureError):
        REFUSED[name][2](round_)
    for node in group.ids:
        round_.server.take_masked(node, group.update(node, round_.terms, round_.server))
    for node in group.ids:
        round_.server.take_unmasked(node, group.members[node].unmask(round_.server.alive(), 3))
    assert equal(round_.server.totals(), group.expected(group.ids))


def test_values_beyond_the_terms_are_refused_and_the_round_goes_on():
    round_ = Round()
    round_.opened()
    before = dict(round_.group.states[NODE])
    for values in ([np.full(40, 2), np.zeros(1, int)], [np.zeros(40, int)]):
        with pytest.raises(PayloadError):
            round_.member.masked(round_.terms, values)
    assert round_.group.states[NODE] == before
    assert round_.mask()


@pytest.mark.parametrize("nodes", [0, 1, 201])
def test_a_sum_of_one_node_or_too_many_is_refused(nodes):
    peers = (Peer(1, b"r" * 32, b"m" * 32),) * nodes
    with pytest.raises(SecureError, match=f"takes 2 to 200 nodes, not {nodes}"):
        Roster(peers)


WRONG = {"run": b"short", "given": "text", "round": 1 << 63, "sections": ((1,),)}


@pytest.mark.parametrize("name", WRONG)
def test_terms_of_a_wrong_type_or_size_are_refused(name):
    with pytest.raises(SecureError):
        replace(Group(2).terms(), **{name: WRONG[name]})


def test_a_session_has_one_key_and_another_session_another():
    group = Group(2)
    member, first = group.members[10], group.seen["run key"][10]
    assert member.run_key(group.run) == first
    other = member.run_key(b"another session!")
    assert member.run_key(b"another session!") == other != first
    assert member.run_key(group.run) not in (first, other)


def test_rounds_rise_over_sessions_and_a_later_one_is_exact():
    """Two sums of one round, with and without a node, would tell its update.

    The session before may have ended after the masked updates, or in mode `bare`.
    """
    for bare in (False, True):
        round_ = Round()
        (round_.bare if bare else round_.masked)()
        round_.session()
        group = round_.group
        assert all(state["last"] == 3 for state in group.states.values())
        assert equal(group.bare(4), group.expected(group.ids))
        assert equal(group.totals(5), group.expected(group.ids))


def test_in_mode_bare_another_configuration_gives_no_sum():
    """The server does not know the configuration, and the nodes' masks do not cancel."""
    group = Group(4)
    terms, roster = group.terms(), group.roster(bare=True)
    server = Coordinator(terms, roster)
    for node in group.ids:
        member = Member(group.states[node], config=b"c" * 32 if node == NODE else b"")
        server.take_masked(node, member.masked_bare(terms, roster, group.values(node)))
    with pytest.raises(PayloadError, match="the sum is impossible"):
        server.totals()


def test_after_a_round_the_state_holds_the_runs_key_alone():
    """Also of a round that is given up, whose node then makes a new key.

    A node that has sent its masked update holds no seed of a mask of its own.
    """
    group = Group(3)
    kept = {node: dict(state) for node, state in group.states.items()}
    group.totals(1)
    for node, state in group.states.items():
        assert state == kept[node] | {"last": 1}
    group.masked(2)
    held = {"stage", "own", "nodes", "least", "shares"}
    assert group.states[10].keys() == kept[10].keys() | held
    mask_key = group.members[10].mask_key()
    assert mask_key != group.seen["mask key"][10]
    assert group.states[10].keys() == kept[10].keys() | {"stage", "mask_seed"}


@pytest.mark.parametrize("come_to", ["keyed", "shared", "opened", "masked", "done"])
def test_a_round_that_begins_again_has_a_new_mask_key(come_to):
    """The masks of two rosters would else be equal."""
    round_ = Round()
    getattr(round_, come_to)()
    keys = {round_.group.seen["mask key"][NODE], round_.member.mask_key()}
    assert len(keys | {round_.member.mask_key()}) == 3


def test_a_state_goes_through_a_config_record():
    """The caller stores it between messages, and another process makes the next answer."""
    record = pytest.importorskip("flwr.app").ConfigRecord
    group, rows = Group(4), {}

    def stored():
        for node in group.ids:
            rows[node] = record(dict(group.states[node]))
            group.states[node] = rows[node]
            group.members[node] = type(group.members[node])(rows[node])

    terms, _, server = group.shared()
    stored()
    for node in group.ids:
        group.members[node].opened(server.sealed_for(node))
    stored()
    for node in group.ids:
        server.take_masked(node, group.members[node].masked(terms, group.values(node)))
    stored()
    for node in group.ids:
        server.take_unmasked(node, group.members[node].unmask(server.alive(), 1))
    assert equal(server.totals(), group.expected(group.ids))


def test_a_roster_survives_its_bytes():
    for bare in (False, True):
        roster = Group(5).roster(bare)
        assert Roster.from_bytes(roster.to_bytes()) == roster


def test_every_field_and_key_changes_the_binding():
    group = Group(4)
    terms, roster = group.terms(), group.roster()
    changes = [{"run": b"r" * 16}, {"round": 2}, {"sections": ((40, 1),)}, {"given": b"m" * 32}]
    found = [binding(replace(terms, **change), roster) for change in changes]
    for change in ({"node": 11}, {"run_key": OTHER}, {"mask_key": OTHER}):
        first = roster.peers[0]._replace(**change)
        found += [binding(terms, Roster((first, *roster.peers[1:])))]
    found += [binding(terms, roster), binding(terms, Roster(roster.peers[::-1]))]
    found += [binding(terms, group.roster(bare=True))]
    assert len(set(found)) == len(found) == 10
