"""A hostile server of a secure sum, with up to two colluding nodes, wants a single node's update.

Each test is an attack. Those with a cause (`attack`) still succeed, and docs/privacy.md says so.
"""
# ruff: noqa: SLF001

import contextlib
import copy
import functools
import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from edgewire.client.app import LocalError, app
from edgewire.client.node import node_of
from edgewire.client.training import Trainer
from edgewire.compression.base import PayloadError
from edgewire.compression.codec import Codec
from edgewire.compression.flower.headers import DownlinkHeader, TrainConfig, written
from edgewire.compression.flower.records import payload_of, payload_record
from edgewire.compression.flower.secure_messages import (
    MOST_LOSS,
    SECURE,
    SumOf,
    secure_record,
    secure_values,
)
from edgewire.compression.make import make_codec
from edgewire.compression.quantizers import grid
from edgewire.compression.quantizers.grid import MOST, OFFSET
from edgewire.compression.secure import Coordinator, Packing, Roster, SecureError
from edgewire.compression.secure.masks import PAIR, SEALED, SELF, Masks
from edgewire.compression.secure.terms import Peer, threshold_of
from edgewire.conf.check import codec_of
from edgewire.conf.load import load_config
from edgewire.conf.schema import ConfigError
from tests.conf.hostile import plain, submitted

WORDS = ["algorithm=fedavg_secure", "dataset=digits", "local_steps=2", "compression.levels=63"]
BLIND, FINE = MOST + OFFSET, OFFSET - 40  # scales of 2^128: all levels are 0; and of 2^-5 / 63
ONE = (1).to_bytes(8, "little")
V = 3  # the honest node whose update the server wants


def attack(cause):
    """Mark a test as an attack, which a node may end by refusing a message.

    `cause`: why it succeeds, so that the test is expected to fail; "": it does not.
    """

    def marked(test):
        @functools.wraps(test)
        def tried(*arguments, **options):
            with contextlib.suppress(PayloadError, ConfigError, LocalError):
                test(*arguments, **options)

        known = pytest.mark.xfail(strict=True, raises=AssertionError, reason=cause)
        return known(tried) if cause else tried

    return marked


def expect_hidden(found, wanted):
    assert not np.array_equal(found, wanted)


def bitmap(nodes, count=10):
    return sum(1 << i for i in nodes).to_bytes((count + 7) // 8, "little")


class Server:
    """A hostile server and its nodes, each with its own `Context`, as on real devices."""

    def __init__(self, *words, nodes=10, config=None):
        self.values = submitted({**plain(*WORDS, *words, f"nodes={nodes}"), **(config or {})})
        self.config = load_config(self.values, nodes, {})
        self.trainer = Trainer(self.config)
        self.layout, self.size = self.trainer.layout, self.trainer.layout.size
        self.of = SumOf.of(codec_of(self.config), self.layout, self.config.secure.mode)
        self.tensors = self.of.quantizer.tensors(self.of.parts)
        self.contexts = {
            i: Context(1, i + 1, {"partition-id": i, "num-partitions": nodes}, RecordDict(),
                       self.values)
            for i in range(nodes)
        }  # fmt: skip
        self.model = self.trainer.flat.state.detach().cpu().numpy().copy()
        self.run, self.keys, self.count = b"r" * 16, {}, 0

    def send(self, node, action, **records):
        message = Message(RecordDict(records), 1, action)
        self.count += 1
        message.metadata.__dict__["_message_id"] = str(self.count)
        return app(message, self.contexts[node]).content

    def ask(self, node, kind, answer, **said):
        found = self.send(node, f"query.secure_{kind}", **{SECURE: secure_record(**said)})
        return secure_values(found, answer)[0]

    def whole(self, vector):
        return payload_record(make_codec().encode(vector, self.layout))

    def message(self, node, sealed, header, orders, model=None, **more):
        config = {**orders.config(), **more.pop("config", {})}
        return self.send(
            node, more.pop("action", "train.step"), **more.pop("first", {}),
            arrays=more.pop("arrays", None) or self.whole(self.model if model is None else model),
            config=ConfigRecord(config), edgewire=written(header), **more,
            **{SECURE: secure_record(sealed=sealed)},
        )  # fmt: skip

    def begin(self, header, orders, nodes):
        """Let nodes share their keys for a round; return the coordinator."""
        keys = {i: self.ask(i, "keys", "keys", run=self.run) for i in nodes}
        self.keys |= {i: each[:32] for i, each in keys.items()}
        every = b"".join(self.keys.get(i, bytes([i + 1] * 32)) for i in sorted(self.contexts))
        roster = Roster(tuple(Peer(i, keys[i][:32], keys[i][32:]) for i in sorted(nodes)))
        said = self.of.said(header, orders, self.model, {})
        sum_of = Coordinator(self.of.terms(self.run, said), roster)
        shared = {"terms": said, "keys": bytes(4) + every}
        shared["roster"] = bitmap(nodes, len(self.contexts))
        shared["masks"] = b"".join(peer.mask_key for peer in roster.peers)
        for i in nodes:
            sum_of.take_shares(i, self.ask(i, "shares", "sealed", **shared))
        return sum_of

    def round(self, number, nodes, *, common, lr=0.0, seed=None, drop=(), unasked=(),
              header_of=lambda i: {}, message_of=lambda i: {}):  # fmt: skip
        """Run a round; return the sums of its levels and the nodes in it."""
        header = DownlinkHeader(number, common=self.common(common))
        orders = TrainConfig(lr, number if seed is None else seed)
        sum_of = self.begin(header, orders, nodes)
        there = [i for i in nodes if i not in drop]
        sealed = {i: sum_of.sealed_for(i) for i in nodes}
        for i in there:
            mine = header._replace(**header_of(i))
            found = self.message(i, sealed[i], mine, orders, **message_of(i))
            sum_of.take_masked(i, payload_of(found)[1])
        alive = sum_of.alive()
        for i in there:
            if i not in unasked:
                ending = {"alive": alive, "round": number.to_bytes(8, "little")}
                sum_of.take_unmasked(i, self.ask(i, "unmask", "shares", **ending))
        return sum_of.totals()[0]

    def common(self, size):
        """Return what nodes have in common, with this size of all tensors."""
        quantizer, draws = self.of.quantizer, np.random.default_rng(0)
        found = quantizer.first_common(self.model, self.of.parts, draws)
        first = len(found) > self.tensors  # the side of a basis
        found[first : first + self.tensors] = [size] * self.tensors
        return found

    def levels(self, values, common):
        """Return the levels of a vector at these scales."""
        scales = self.of.quantizer.scales_of(np.full(self.tensors, common - OFFSET))
        each = np.repeat(scales, np.diff(self.of.parts.segments))
        return np.clip(np.rint(values / each), -63, 63)


@pytest.fixture(autouse=True)
def to_nearest(monkeypatch):
    """Round levels to the nearest, so that a test knows those of an update."""

    def rounded(scaled, top, generator, draws):
        np.clip(np.rint(scaled, out=scaled), -top, top, out=scaled)

    monkeypatch.setattr(grid, "round_by_chance", rounded)


@pytest.fixture
def encoded(monkeypatch):
    """Return by node the vectors that it has encoded, of which the server must learn only sums."""
    found, encode = [], Codec.encode

    def noting(self, vector, *arguments, **options):
        if isinstance(self.quantizer, grid.SummableQuantizer):
            found.append(np.array(vector))
        return encode(self, vector, *arguments, **options)

    monkeypatch.setattr(Codec, "encode", noting)
    return found


def test_an_honest_server_gets_the_sum(identity, encoded):
    """What the attacks change is all that keeps the server from a result."""
    server = Server()
    total = server.round(1, range(10), common=FINE, lr=0.1)
    assert np.abs(total).max() > 0
    assert (total == sum(server.levels(each, FINE) for each in encoded)).all()
    assert np.abs(server.round(2, range(10), common=FINE, lr=0.1)).max() > 0


@attack("")
def test_one_round_repeated_without_a_node(identity, encoded):
    """The same model and `orders.number` give the same updates."""
    server, every = Server(), range(10)
    first = server.round(1, every, common=FINE, lr=0.1, seed=1)
    second = server.round(3, [i for i in every if i != V], common=FINE, lr=0.1, seed=1)
    expect_hidden(first - second, server.levels(encoded[V], FINE))


@attack("")
def test_a_second_model_in_the_message_saturates_the_others(identity, encoded):
    """With the type `train` the change is from the first payload, and the hash is of `arrays`."""
    server = Server()
    far = server.whole(server.model - np.float32(1e6))

    arrays = ArrayRecord({"model": Array(server.model)})

    def message_of(i):
        near = server.whole(server.model)
        return {"action": "train", "first": {"base": near if i == V else far}, "arrays": arrays}

    total = server.round(1, range(10), common=FINE, lr=0.1, message_of=message_of)
    expect_hidden(total - 9 * 63, server.levels(encoded[V], FINE))


@attack("")
def test_the_type_of_a_message_turns_the_sign(identity, encoded):
    """A reply to `train` has the sign that a reply to `train.step` has not."""
    server = Server()
    total = server.round(
        1, range(10), common=FINE, lr=0.1,
        message_of=lambda i: {"action": "train" if i == V else "train.step"},
    )  # fmt: skip
    levels = [server.levels(each, FINE) for each in encoded]
    expect_hidden(total, sum(levels))  # of V it is the change, of the others the opposite


@attack("")
def test_gradients_of_one_node_and_nothing_of_the_others(identity, encoded):
    """With strategy.update=gradient, `train` obeys lr=0 and `train.step` does not."""
    server = Server("strategy.update=gradient")
    total = server.round(
        1, range(10), common=FINE, lr=0.0,
        message_of=lambda i: {"action": "train.step" if i == V else "train"},
    )  # fmt: skip
    expect_hidden(total, server.levels(encoded[V], FINE))


def test_the_clipping_norm_is_no_setting_of_a_secure_sum(identity):
    """An error would say whether the update's norm is at most `clipping_norm`."""
    server, every = Server(), range(10)
    header, orders = DownlinkHeader(1, common=[FINE] * server.tensors), TrainConfig(0.1, 1)
    sealed = server.begin(header, orders, every).sealed_for(V)
    with pytest.raises(SecureError, match="other settings"):
        server.message(V, sealed, header, orders, config={"clipping_norm": 1.0})


def volatile(server, node):
    """Return the secrets of a colluding node."""
    return server.contexts[node].state.get("edgewire-volatile", {})


@attack("")
def test_a_short_list_of_the_nodes_that_shared(identity):
    """With a list of seven, lists of the dropped that are allowed would open one node's update."""
    server, every = Server(), range(10)
    header, orders = DownlinkHeader(1, common=[FINE] * server.tensors), TrainConfig(0.1, 1)
    sealed = server.begin(header, orders, every).sealed_for(V)
    for few in (sealed[:-SEALED], sealed + sealed[:SEALED], sealed[SEALED:] + sealed[:SEALED]):
        with pytest.raises(SecureError):
            server.message(V, few, header, orders)


def test_lists_of_the_dropped_open_no_single_update():
    """The fewest honest nodes whose sum different lists open, counted for each number of colluders.

    For a sum of k of h honest nodes the server needs the mask keys of h - k others, and for each of
    them t - c honest nodes that are told that it has dropped. A node can be told of n - t.
    """
    for nodes in range(5, 201):
        due = threshold_of(nodes)
        for bad in range(2 * due - nodes):
            honest, told = nodes - bad, nodes - due
            fewest = next(
                k for k in range(1, honest + 1) if (honest - k) * (due - bad) <= honest * told
            )
            assert fewest >= 2, (nodes, bad)


@attack("no consistency check of the lists of dropped nodes")
def test_a_sum_of_fewer_nodes_than_the_threshold(identity, encoded):
    """Without colluding nodes the server opens the sum of six of ten nodes, and t is 7.

    Each node is told that three of the other four have dropped, so seven show each mask key.
    """
    server, every, six, four = Server(), range(10), range(6), (6, 7, 8, 9)
    header, orders = DownlinkHeader(1, common=[FINE] * server.tensors), TrainConfig(0.1, 1)
    sum_of = server.begin(header, orders, every)
    sealed = {i: sum_of.sealed_for(i) for i in every}
    masked = {i: server.message(i, sealed[i], header, orders) for i in every}
    spared = dict(zip(every, [6, 6, 7, 7, 8, 9, 6, 7, 8, 9], strict=True))
    dropped = {i: {*four} - {spared[i]} for i in every}
    shown = {
        i: server.ask(i, "unmask", "shares", alive=bitmap({*every} - dropped[i]), round=ONE)
        for i in every
    }

    def seed(place, among):
        shares = {i: shown[i][17 * place : 17 * place + 17] for i in among}
        return masks.join(dict([*shares.items()][:7]))

    masks, bound, peers = sum_of._masks, sum_of._bound, sum_of._roster.peers
    words = sum(sum_of._packing.from_bytes(payload_of(masked[i])[1]) for i in six)
    keys = {j: seed(j, [i for i in every if j in dropped[i]]) for j in four}
    for i in six:
        pairs = {j: masks.secrets(keys[j], [peers[i].mask_key])[0] for j in four}
        masks.add(words, i, pairs, PAIR, bound, -1)
        masks.add(words, i, {i: seed(i, every)}, SELF, bound, -1)
    wanted = sum(server.levels(encoded[i], FINE) for i in six)
    expect_hidden(sum_of._packing.totals(words, 6)[0], wanted)


def test_two_encodings_of_one_key_have_two_masks():
    """X25519 ignores the top bit; if the masks were equal, a node would add and subtract them."""
    masks, seed = Masks(True), bytes(16)
    key = masks.public_key(b"1" * 16)
    twin = key[:31] + bytes([key[31] ^ 128])
    one, two = masks.secrets(seed, [key, twin])
    assert one == two
    words = np.zeros(50, np.uint64)
    masks.add(words, 3, {0: one, 9: two}, PAIR, bytes(32))
    assert (words != 0).all()


@attack("")
def test_a_round_of_three_with_two_colluding_nodes(identity, encoded):
    """The server says which nodes are in a round, and secure.least is 3 by default."""
    server = Server()
    total = server.round(1, [0, 1, V], common=FINE, lr=0.1)
    known = sum(server.levels(encoded[i], FINE) for i in (0, 1))
    expect_hidden(total - known, server.levels(encoded[2], FINE))


@attack("an error tells that one node's loss is infinite")
def test_an_error_tells_of_one_node(identity):
    """A model in which one bright pixel gives infinity: only the nodes with such a sample fail.

    So each round compares a pixel's largest value at each node with a bound of the server's choice.
    """
    server, told, pixel = Server("local_steps=15"), {}, 24
    values = [
        server.trainer.samples.of(node_of(each), held_back=False)[0].reshape(-1, 64)[:, pixel]
        for each in server.contexts.values()
    ]
    most = [float(each.max()) for each in values]
    bound = (min(most) + max(most)) / 2
    server.model = np.zeros(server.size, np.float32)
    server.model[pixel], server.model[64 * 128] = 1e30, -1e30 * bound
    server.model[64 * 128 + 128] = 1e30
    header, orders = DownlinkHeader(1, common=[FINE] * server.tensors), TrainConfig(1e-9, 1)
    sum_of = server.begin(header, orders, range(10))
    for i in range(10):
        try:
            server.message(i, sum_of.sealed_for(i), header, orders)
            told[i] = False
        except PayloadError:
            told[i] = True
    expect_hidden([*told.values()], [each > bound for each in most])


@attack("without a floor a node takes any configuration")
def test_masks_false_for_one_node(identity, encoded):
    """A SuperLink that tells V another configuration than the others gets its levels as they are.

    `--node-config secure=1` refuses that, and not `secure: bare` in place of sum.
    """
    server, header, orders = Server(), DownlinkHeader(1, common=None), TrainConfig(0.1, 1)
    header = header._replace(common=[FINE] * server.tensors)
    config = json.loads(server.values["config"])
    config["secure"]["masks"] = False
    server.contexts[V].run_config = submitted(config)
    sum_of = server.begin(header, orders, range(10))
    answer = server.message(V, sum_of.sealed_for(V), header, orders)
    words = sum_of._packing.from_bytes(payload_of(answer)[1])
    expect_hidden(sum_of._packing.totals(words, 1)[0], server.levels(encoded[0], FINE))


@attack("")
def test_the_owner_asks_for_sum_and_gets_bare(identity):
    """The page says that secure=bare protects nothing from an active server."""
    server = Server("secure=bare")
    server.contexts[V].node_config["secure"] = "sum"
    key = server.ask(V, "keys", "keys", run=server.run)
    expect_hidden(len(key), 32)


def at_once(server, node, ask):
    """Return two answers of a node, each from the state before both.

    Flower's SuperNode gives each task the newest state that a finished task has stored, and starts
    a task while another one of the run is under way. EdgeWire's own node takes one at a time.
    """
    state = copy.deepcopy(server.contexts[node].state)
    first = ask(0)
    server.contexts[node].state = state
    return first, ask(1)


@attack("")
def test_two_messages_for_training_at_once(identity, encoded):
    """Both replies have the same masks, and one has the other sign: V alone is needed."""
    server, every = Server(), range(10)
    header, orders = DownlinkHeader(1, common=[FINE] * server.tensors), TrainConfig(0.1, 1)
    sum_of = server.begin(header, orders, every)

    def answer(turn):
        kind, sealed = ("train.step", "train")[turn], sum_of.sealed_for(V)
        return payload_of(server.message(V, sealed, header, orders, action=kind))[1]

    plus, minus = at_once(server, V, answer)
    packing = sum_of._packing
    words = packing.from_bytes(plus) - packing.from_bytes(minus)  # twice the levels' digits
    most = (server.size, 63), (server.tensors, OFFSET), (1, MOST_LOSS)
    words += packing.words([np.full(*each) for each in most])
    found = packing.totals(words, 2)[0]
    expect_hidden(found, 2 * server.levels(encoded[0], FINE))


@attack("a state may be used twice")
def test_two_messages_for_shares_at_once(identity):
    """A node shows both secrets of one peer, in two answers to lists of which one lacks it."""
    server, every = Server(), range(10)
    header, orders = DownlinkHeader(1, common=[FINE] * server.tensors), TrainConfig(0.1, 1)
    sum_of = server.begin(header, orders, every)
    server.message(0, sum_of.sealed_for(0), header, orders)
    lists = [bitmap(every), bitmap({*every} - {V})]
    both = at_once(server, 0, lambda turn: server.ask(
        0, "unmask", "shares", alive=lists[turn], round=ONE)[17 * V : 17 * V + 17])  # fmt: skip
    expect_hidden(both[0] != both[1], True)


def test_levels_above_63():
    """`Packing.words` adds `most` to int8 levels as int8: 1 + 127 is -128, and the sum is wrong."""
    packing = Packing([(3, 127)], 2)
    words = packing.words([np.array([1, -1, 127], np.int8)])
    assert packing.totals(words, 1)[0].tolist() == [1, -1, 127]
