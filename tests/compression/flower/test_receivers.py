"""Each method that the library accepts ends near the uncompressed model; others are refused."""

from functools import cache

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from edgewire.compression.flower import CompressedGrid, CompressionMod
from edgewire.compression.flower.node.state import NodeState
from edgewire.compression.make import make_codec
from edgewire.compression.registry import get, names, options_of
from edgewire.conf.load import compose_config, to_config
from edgewire.conf.schema import ConfigError
from edgewire.strategy.factory import made
from tests.compression.flower.apps import moving, record_of, values_of
from tests.grids import grid_of

NODES, NEAR = 3, 0.3
# After few rounds the model shows how much of each update was applied. A method that discards parts
# of updates is slower, and is compared when the model changes no more.
FEW, MANY = 12, 25
SHAPES = {"a": (10, 10), "b": (20,)}
DRAW = np.random.default_rng(3)
SPEED = DRAW.uniform(0.5, 1.5, (NODES, 120))
TARGET = 0.2 * DRAW.normal(size=(NODES, 120)) + DRAW.normal(size=120)
# About half of the entries is sent, so that a method's own error is small after a few rounds.
HALF = {"density": 0.5, "drop": 0.5, "sparsity": 0.5, "speculative": 0.2}


def train(node, values, state):
    """Take one step on the node's quadratic loss."""
    model = flat(values)
    found = np.float32(model - 0.1 * SPEED[node] * (model - TARGET[node]))
    return {"arrays": {"a": found[:100].reshape(10, 10), "b": found[100:]}}


def flat(values):
    return np.concatenate([values[name].reshape(-1) for name in SHAPES])


def trained(rounds, mod=None):
    """Return the model after a run of FedAvg, plus the mean of what the nodes have not sent."""
    states = {}

    def note(message, context, call_next):
        states[context.node_id] = context.state
        return call_next(message, context)

    grid = grid_of(moving(train, [note, *([mod] if mod else [])]), NODES)
    start = record_of({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
    over = CompressedGrid(grid) if mod else grid
    result = FedAvg(fraction_evaluate=0).start(over, start, num_rounds=rounds)
    model = flat(values_of(result.arrays))
    if mod is None or not mod.codec.keeps:
        return model
    key = mod.codec.sparsifier.residual_key or "error"
    return model + np.mean([NodeState(each).memory[key] for each in states.values()], axis=0)


plain = cache(trained)  # the uncompressed model after so many rounds


def distance(mod, rounds=None):
    rounds = rounds or (FEW if mod.codec.sends_all else MANY)
    return np.linalg.norm(trained(rounds, mod) - plain(rounds)) / np.linalg.norm(plain(rounds))


def half(stage, name):
    found = {option: HALF[option] for option in options_of(get(stage, name)) if option in HALF}
    return found | ({"threshold": 0.3} if name == "threshold" else {})


REFUSED = {"dgc", "ef21", "context"}
VARIANTS = [
    ("dgc", {"momentum": 0.0}), ("esgd", {"residual": "ema"}), ("selective", {"pick": "random"}),
    ("topk", {"residual_decay": 0.95, "scope": "tensor"}), ("threshold", {"sent": "value"}),
    ("gradient_dropping", {"cut": "sampled"}), ("randomk", {"rescale": True}),
    *(("cesgd", {"operator": operator}) for operator in ("gradient", "proportional", "largest")),
    *(("topk", {"quantizer": quantizer}) for quantizer in ("sign", "powersgd", "ternary", "eden")),
]  # fmt: skip
STAGES = ("sparsifier", "quantizer", "coder")


@pytest.mark.few(15)
@pytest.mark.parametrize(
    ("stage", "name", "more"),
    [*((stage, name, {}) for stage in STAGES for name in names(stage)),
     *(("sparsifier", *variant) for variant in VARIANTS)],
    ids=str,
)  # fmt: skip
def test_each_method_is_right_for_fedavg_or_refused(stage, name, more):
    options = half(stage, name) | more
    if name not in REFUSED or more:
        assert distance(CompressionMod(name, **options)) < NEAR
        return
    with pytest.raises(ValueError, match=name):
        CompressionMod(name, **options)
    if stage != "coder":
        assert distance(CompressionMod(name, receiver=None, **options), FEW) > 2 * NEAR


def test_the_receiver_says_what_it_takes():
    assert CompressionMod("dgc", receiver="gradients").codec.sparsifier.momentum == 0.9
    assert CompressionMod("dgc", momentum=0).codec.sends_all
    with pytest.raises(ValueError, match="option receiver of a codec must be one of models, grad"):
        CompressionMod("dgc", receiver="gradient")


def test_a_downlink_refuses_methods_that_are_wrong_for_differences():
    with pytest.raises(ValueError, match="further from a difference"):
        CompressedGrid(grid_of(moving(train), 2), downlink=make_codec("randomk", rescale=True))


SENDS = "downlink=plain downlink.sparsifier="
RUNS = {  # a run's overrides, and a part of the error; "" if the run is right
    "algorithm=fedavg compression=dgc": "compression: sparsifier=dgc counts each update up to 10",
    "algorithm=fedavg_topk compression=dgc": "up to 10 times",
    "algorithm=fedavg compression=dgc compression.momentum=0": "",
    "algorithm=dgc": "",
    "algorithm=dgc strategy/optimizer=momentum": "a server without momentum",
    "algorithm=dgc strategy/optimizer=momentum compression.momentum=0": "",
    "algorithm=one_bit_adam compression=dgc": "up to 10 times",
    "algorithm=asgd compression=dgc": "",
    "algorithm=fedbuff compression=dgc": "up to 10 times",
    f"algorithm=fedavg_topk {SENDS}dgc": "downlink: sparsifier=dgc counts",
    f"algorithm=fedavg {SENDS}dgc": "",
    "algorithm=fedavg compression=ef21": "sparsifier=ef21 sends changes",
    "algorithm=sgd compression=ef21": "sparsifier=ef21 sends changes",
    "algorithm=ef21_sgdm": "",
    "algorithm=ef21_sgdm compression=topk": "adds up changes",
    f"algorithm=ef21_sgdm {SENDS}topk": "",
    f"algorithm=ef21_sgdm {SENDS}esgd": "give downlink=average",
    f"algorithm=fedavg {SENDS}ef21": "downlink: sparsifier=ef21 sends changes",
    f"algorithm=fedavg {SENDS}randomk downlink.rescale=true": "further from a difference",
    f"algorithm=fedavg_topk {SENDS}randomk downlink.rescale=true": "",
    f"algorithm=qafel {SENDS}randomk downlink.rescale=true": "further from a difference",
    "algorithm=split_backprop compression@gradients=ef21": "gradients: sparsifier=ef21",
}


@pytest.mark.few(7)
@pytest.mark.parametrize("words", RUNS)
def test_a_run_is_checked_in_the_same_way(words):
    config = to_config(compose_config(words.split()))
    if not (part := RUNS[words]):
        made(config)
        return
    with pytest.raises(ConfigError) as raised:
        made(config)
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)
