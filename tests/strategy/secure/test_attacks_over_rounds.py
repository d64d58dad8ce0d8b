"""A hostile server of a secure sum over several rounds, and what nodes draw in each.

The owners' floor is `secure=sum secure-least=5`. With `BLIND` the levels of a node's update are 0,
and with lr=0 a later update is 0. So a later sum shows what nodes have kept.
"""
# ruff: noqa: SLF001

from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from edgewire.client.app import LocalError
from edgewire.compression.flower.node.mod import CompressionMod
from edgewire.compression.flower.node.secure import SecureMod
from edgewire.compression.flower.secure_messages import SumOf
from edgewire.compression.quantizers import grid
from edgewire.compression.quantizers.grid import OFFSET
from edgewire.compression.quantizers.scaling import round_by_chance
from edgewire.conf.schema import ConfigError
from edgewire.task.rng import IsolatedRng, stream_seed
from tests.conf.hostile import plain, submitted
from tests.strategy.secure.test_attacks import (
    BLIND,
    FINE,
    WORDS,
    Server,
    V,
    attack,
    encoded,
    expect_hidden,
    to_nearest,
)

__all__ = ["encoded", "to_nearest"]
GROWS = "a model can be made with which one update is larger than all others together"


class Rounds(Server):
    """A `Server` of nodes with their owners' floor."""

    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        for context in self.contexts.values():
            context.node_config |= {"secure": "sum", "secure-least": "5"}

    def configure(self, nodes, *words):
        """Tell nodes another configuration than that of the run."""
        values = submitted(plain(*WORDS, *words, f"nodes={len(self.contexts)}"))
        for i in nodes:
            self.contexts[i].run_config = values


LOW_RANK = ["compression=lowrank", "compression.rank=2", "compression.levels=63"]
GONE = {"applied": 0}  # the last reply was not applied


@pytest.mark.parametrize("words", [[], LOW_RANK], ids=["grid", "lowrank"])
@pytest.mark.parametrize(
    "first",
    [
        {"common": BLIND},
        {"common": FINE},
        {"common": FINE, "unasked": (V, 8, 9)},
        {"common": FINE, "drop": (V,)},
    ],
    ids=["large scale", "small scale", "some give no shares", "V drops"],
)
def test_no_part_of_an_update_is_in_a_later_sum(identity, words, first):
    """Whatever a server says of earlier rounds, a node has nothing of them to add."""
    server, every = Rounds(*words), range(10)
    server.round(1, every, lr=0.1, **first)
    for number, header in enumerate((GONE, {"applied": 1}, {"undecided": 1}), 2):
        header_of = partial(lambda said, node: said, header)
        total = server.round(number, every, common=FINE - 160, header_of=header_of)
        assert not total.any()


def test_what_a_node_stores_does_not_depend_on_its_updates(identity):
    """The records of two nodes with other samples are equal, but for keys and secrets."""
    server, every = Rounds(), range(10)
    server.round(1, every, common=FINE, lr=0.1)
    stored = [{**server.contexts[i].state} for i in (0, V)]
    for records in stored:
        assert records.keys() == {"edgewire-secure", "edgewire-volatile"}
        assert records["edgewire-secure"].keys() == {"run", "keys", "terms"}
    assert stored[0]["edgewire-secure"] == stored[1]["edgewire-secure"]


def test_a_codec_that_keeps_something_is_refused(identity):
    trainer = Server().trainer
    mod = CompressionMod("grid", coder="raw", layout=trainer.layout)
    of = SumOf.of(mod.codec, trainer.layout, "sum")
    with pytest.raises(ValueError, match="must keep nothing: give feedback=False"):
        SecureMod(mod, of, trainer.layout, least=3, masks=True, simulated=bool, counted=False)


@pytest.mark.parametrize(("floor", "equal"), [("sum", False), ("1", True)])
def test_a_server_cannot_know_how_levels_are_rounded(identity, monkeypatch, floor, equal):
    """It could ask for a round in which those of all other nodes are rounded down to 0."""
    monkeypatch.setattr(grid, "round_by_chance", round_by_chance)
    sums = []
    for _ in range(2):
        server = Rounds()
        for context in server.contexts.values():
            context.node_config["secure"] = floor
        sums.append(server.round(1, range(10), common=FINE, lr=0.1))
    assert np.array_equal(*sums) == equal


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["personal=[1.bias]"], "personal="),
        (["local=kept_optimizer"], "local=plain"),
        (
            ["strategy/optimizer=one_bit_adam", "strategy.update=gradient", "local_steps=null"],
            "updates that are changes",
        ),
    ],
)
def test_a_configuration_with_which_one_node_alone_keeps_something(identity, words, why):
    """The server makes the state of V differ from that of all others, so that V alone is summed.

    It trains all nodes but V until their personal layer is dead, or V alone until it has momentum,
    or tells V alone that the warm-up is not over. A node refuses these configurations.
    """
    server = Rounds()
    server.configure([V], *words)
    with pytest.raises((ConfigError, LocalError)) as refused:
        server.ask(V, "keys", "keys", run=server.run)
    assert why in str(refused.value.__cause__ or refused.value)


@attack("equal seeds make equal draws")
def test_a_second_run_of_one_seed_without_a_node(identity, encoded):
    """In a new run the states of nodes are empty, so all nodes but V train as they did before."""
    server, every = Rounds(), range(10)
    first = server.round(1, every, common=FINE, lr=0.1)
    for i, old in server.contexts.items():
        server.contexts[i] = Context(2, i + 1, old.node_config, RecordDict(), old.run_config)
    second = server.round(1, [i for i in every if i != V], common=FINE, lr=0.1)
    expect_hidden(first - second, server.levels(encoded[V], FINE))


class Frozen(SumOf):
    """What is summed of a model with frozen parameters."""

    def said(self, header, orders, model, natives):
        return super().said(header, orders, model, self.natives)


@attack("")
def test_a_round_in_which_dropout_leaves_one_node_alone(identity, encoded):
    """A server knows all draws of layers: it asks for a round in which V alone keeps an input."""
    rate = 0.99
    server = Rounds(
        "adapter=lora", f"adapter.lora_dropout={rate}", "adapter.target_modules=['1']",
        "batch_size=1", "local_steps=1",
    )  # fmt: skip
    initial = server.trainer.uplink._mod._initial
    server.of = Frozen(*server.of)
    server.of.natives = initial.arrays
    server.model = np.random.default_rng(1).normal(size=server.size).astype(np.float32)

    def kept(node, number):
        with IsolatedRng(torch.device("cpu"), stream_seed(server.config.seed, node, number) ^ 1):
            return torch.nn.functional.dropout(torch.ones(1, 64), rate)[0].numpy() > 0

    number = next(
        k for k in range(1, 10**6) if all(kept(i, k).any() == (i == V) for i in server.contexts)
    )
    total = server.round(
        number, range(10), common=FINE - 8 * 9, lr=0.1,
        header_of=lambda i: {"initial": initial.checksum},
    )  # fmt: skip
    wanted = server.levels(encoded[V], FINE - 8 * 9)
    inputs = total[: 8 * 64].reshape(8, 64).any(axis=0)  # of which A's columns have a gradient
    assert not (np.array_equal(total, wanted) and np.array_equal(inputs, kept(V, number)))


@attack(GROWS)
def test_only_the_node_with_most_steps_has_an_update(identity, encoded):
    """Weight decay of 11 / lr turns and multiplies each parameter by 10 in each step.

    So the update of the node with most samples has levels, and those of all others are 0. V has 18
    mini-batches, and the others of the server's choice have at most 16.
    """
    server = Rounds(
        "local_steps=null", "local_epochs=1", "optimizer.momentum=0", "optimizer.weight_decay=110",
        "partition=dirichlet", "partition.alpha=3",
    )  # fmt: skip
    draws = np.random.default_rng(1).normal(size=server.size).astype(np.float32)
    server.model = draws * np.float32(1e-18)
    first = slice(128 * 64)
    server.model[first] = 0
    server.model[first.stop : 128 * 65] = 1e-18  # all units are active
    total = server.round(1, range(9), common=FINE + 24, lr=0.1)
    wanted = server.levels(encoded[V], FINE + 24)
    expect_hidden(total[first], wanted[first])


@attack(GROWS)
def test_trainings_that_diverge_leave_the_update_of_one_node(identity, encoded):
    """With small parameters and a large learning rate an update grows by a factor in each step.

    After 60 steps it is 73 times as large at one node as at any other, whose levels are 0.
    """
    server = Rounds("local_steps=60", "optimizer.momentum=0")
    draws = np.random.default_rng(1).normal(size=server.size)
    server.model, common = (draws * 1e-20).astype(np.float32), OFFSET - 249
    first = slice(128 * 64)
    total = server.round(1, range(10), common=common, lr=3.0)[first]
    largest = max(encoded, key=lambda each: np.abs(each[first]).max())
    wanted = server.levels(largest, common)[first]
    expect_hidden(total, np.where(wanted.any(), wanted, np.inf))
