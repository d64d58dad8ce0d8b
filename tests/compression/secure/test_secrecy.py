"""What the server sees tells nothing but the sum: statistics, colluding nodes, texts."""

import random
from hashlib import sha256
from itertools import permutations, product

import numpy as np
import pytest
from scipy.stats import chisquare

from edgewire.compression.secure import Packing, SecureError, masks, member, shamir, threshold_of
from edgewire.compression.secure.masks import PAIR, SELF, Masks
from edgewire.compression.secure.terms import from_bitmap, to_bitmap
from tests.compression.secure.group import UPDATE, Group

LEAST_P = 0.001
NODE, NODES = 13, 5
SECTIONS = ((20_000, 1),)


class Constant(Group):
    """All nodes send one value in all places."""

    value = 0

    def values(self, seed):
        return [np.full(count, self.value) for count, _ in self.sections]


def views(value: int) -> dict[str, np.ndarray]:
    """Return what the server sees of a node's words in two rounds, and can compute from it.

    If it called the node dropped it would remove the pair masks, and else the self mask.
    """
    found = {}
    packing = Packing(SECTIONS, NODES)

    def words(group, name):
        return packing.from_bytes(group.seen[name][NODE])

    group = Constant(NODES, SECTIONS, run=bytes(16))
    group.value = value
    for number in (1, 2):
        terms, roster, server = group.shared(number)
        state = dict(group.states[NODE])
        update = group.update(NODE, terms, server)
        seen = found[f"update {number}"] = packing.from_bytes(update)
        own, bound, crypto = state["own"], state["binding"], Masks(True)
        others = [place for place in range(NODES) if place != own]
        keys = [roster.peers[place].mask_key for place in others]
        pairs = dict(zip(others, crypto.secrets(state["mask_seed"], keys), strict=True))
        for name, secrets, use in (
            ("pair", pairs, PAIR),
            ("self", {own: state["self_seed"]}, SELF),
        ):
            rest = found[f"{name} masks removed {number}"] = seen.copy()
            crypto.add(rest, own, secrets, use, bound, -1)
    found["difference"] = found["update 2"] - found["update 1"]
    for number in (1, 2):
        group.bare(number + 2)
        found[f"bare update {number}"] = words(group, "masked")
    found["bare difference"] = found["bare update 2"] - found["bare update 1"]
    return {name: np.frombuffer(packing.to_bytes(each), np.uint8) for name, each in found.items()}


def p_values(value: int) -> dict[str, float]:
    """Return for each view the p-value of the hypothesis that its bytes are uniform."""
    return {
        name: chisquare(np.bincount(seen, minlength=256)).pvalue
        for name, seen in views(value).items()
    }


@pytest.fixture
def repeatable(monkeypatch):
    """Draw the nodes' secrets from a seed, so that the statistics are the same in each run."""
    monkeypatch.setattr(member, "urandom", random.Random(1).randbytes)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("value", [0, 1])
def test_masked_bytes_are_uniform(value):
    found = p_values(value)
    assert len(found) == 10
    assert min(found.values()) > LEAST_P, found


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("without", ["self mask", "pair mask", "bare mask", "binding"])
def test_they_are_not_without_a_mask_or_the_binding(without, monkeypatch):
    add, derive = Masks.add, masks.HKDF
    uses = {"self mask": SELF, "pair mask": PAIR, "bare mask": masks.BARE}

    def add_others(self, words, own, secrets, use, *more):
        return None if use == uses[without] else add(self, words, own, secrets, use, *more)

    def derive_unbound(algorithm, length, salt, info):
        return derive(algorithm, length, salt, info[:-32])

    if without == "binding":
        monkeypatch.setattr(masks, "HKDF", derive_unbound)
    else:
        monkeypatch.setattr(Masks, "add", add_others)
    assert min(p_values(1).values()) < LEAST_P


def seeds(group: Group, colluders: list[int], target: int) -> list[str]:
    """Return which of a node's seeds the server can join.

    The server has its own messages, and the colluding nodes' whole states.
    """
    place, known = group.ids.index(target), {"self_seed": {}, "mask_seed": {}}
    for x, node in enumerate(group.ids, 1):
        held = group.held.get(node, {}) if node in colluders else {}
        if held:
            both = held["shares"][34 * place : 34 * (place + 1)]
            known["self_seed"][x], known["mask_seed"][x] = both[:17], both[17:]
        elif node in group.seen["answer"]:
            alive = place in from_bitmap(group.seen["alive"][node], group.nodes)
            share = group.seen["answer"][node][17 * place : 17 * (place + 1)]
            known["self_seed" if alive else "mask_seed"][x] = share
    return [name for name, shares in known.items() if joins(shares, group, target, name)]


def joins(shares, group, target, name) -> bool:
    """Return whether shares give the secret; tries as many as the threshold, and all of fewer."""
    first = dict(list(shares.items())[: threshold_of(group.nodes)])
    return bool(first) and shamir.join(first) == group.secrets[target][name]


@pytest.mark.parametrize(("colluding", "more"), [(4, []), (5, ["other"])])
def test_colluders_below_the_threshold_learn_one_seed_of_a_node(colluding, more):
    """7 nodes, a threshold of 5. Of a node in the sum it is the self mask's, of a dropped one's
    the mask key's: either mask alone hides the update, which the server may have got too late."""
    group = Group(7)
    colluders = group.ids[7 - colluding :]
    group.totals(1, {group.ids[1]: UPDATE})
    in_sum, dropped = (seeds(group, colluders, node) for node in group.ids[:2])
    assert in_sum == ["self_seed"] + ["mask_seed"] * len(more)
    assert dropped == ["self_seed"] * len(more) + ["mask_seed"]


@pytest.mark.parametrize(("colluding", "both"), [(2, False), (3, True)])
def test_a_server_that_shows_two_lists_needs_2t_minus_n_colluders(colluding, both):
    """7 nodes, a threshold of 5: 3 colluders. The target answers to the list that holds it."""
    group, found = Group(7), []
    target, *honest = group.ids[: 7 - colluding]
    for number in range(1, len(honest) + 2):
        group.seen["answer"].clear()
        group.masked(number)
        for i, node in enumerate([target, *honest]):
            alive = to_bitmap(range(0 if i < number else 1, 7), 7)
            group.seen["alive"][node] = alive
            group.seen["answer"][node] = group.members[node].unmask(alive, number)
        found.append(len(seeds(group, group.ids[7 - colluding :], target)) == 2)
    assert any(found) == both


def test_the_seeds_of_dropped_nodes_open_no_sealed_share():
    """Shares are sealed with mask keys and run keys: one of both opens none."""
    group, crypto = Group(4), Masks(True)
    _, roster, server = group.shared()
    own = group.secrets[19]
    sealed = server.sealed_for(19)[:50]
    (run,) = crypto.secrets(own["run_seed"], [roster.peers[0].run_key])
    first, mask = crypto.secrets(own["mask_seed"], [*roster.peers[0][1:3]])
    bound = sha256(own["binding"]).digest()
    assert len(crypto.open(mask + run, bound, (0, 3), sealed)) == 34
    for secret in (run, mask, mask + mask, mask + first, run + run):
        with pytest.raises(SecureError):
            crypto.open(secret, bound, (0, 3), sealed)


def test_a_key_has_one_purpose_direction_and_round():
    crypto, secret, shares = Masks(True), b"s" * 32, bytes(34)
    ways = [(b"1" * 32, (0, 1)), (b"2" * 32, (0, 1)), (b"1" * 32, (1, 0))]
    sealed = [crypto.seal(secret, *way, shares) for way in ways]
    for other, way in permutations(range(3), 2):
        with pytest.raises(SecureError, match=r"a share of place . does not open"):
            crypto.open(secret, *ways[way], sealed[other])
    uses = [(SELF, b"1" * 32), (PAIR, b"1" * 32), (masks.BARE, b"1" * 32), (SELF, b"2" * 32)]
    assert len({added(0, 0, secret, *use).tobytes() for use in uses}) == len(uses)


def added(own: int, other: int, secret: bytes, use: bytes, bound: bytes) -> np.ndarray:
    """Return what a node adds to nine words for a secret that it has with another."""
    words = np.zeros(9, np.uint64)
    Masks(True).add(words, own, {other: secret}, use, bound)
    return words


@pytest.mark.parametrize("use", [SELF, PAIR, masks.BARE])
def test_a_mask_is_of_two_places_and_cancels_between_them(use):
    """Two nodes may have one secret with a third, as a key has two encodings; see `test_attacks`.

    One's masks would cancel those of the other if they were equal.
    """
    secret, bound, seen = b"s" * 32, b"1" * 32, set()
    places = [0, 1, 2, 255, 256, 257]
    for own, other in product(places, repeat=2):
        words = added(own, other, secret, use, bound)
        if own != other:
            assert not (words + added(other, own, secret, use, bound)).any()
        seen.add(min(words.tobytes(), (-words).tobytes()))
    assert len(seen) == len(places) * (len(places) + 1) // 2


def test_texts_hold_no_secret():
    group = Group(3)
    server = group.masked()
    shown = (*group.members.values(), server, group.terms(), Masks(True))
    texts = "".join(repr(each) + str(each) for each in shown)
    for state in group.secrets.values():
        for secret in (state[name] for name in ("run_seed", "mask_seed", "self_seed", "shares")):
            for text in (secret.hex(), repr(secret)[2:-1], str(int.from_bytes(secret, "little"))):
                assert text not in texts
