"""A user's mistake raises an error at once where possible, else after the first round."""

import copy

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import decode
from edgewire.compression.flower import (
    CompressedGrid,
    CompressionMod,
    Screening,
    StatisticsAveraging,
    layout_of,
    to_vector,
)
from edgewire.compression.flower.privacy import within_clip
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.simulation.grid import LocalGrid
from tests.compression.flower.apps import counted, moving
from tests.compression.flower.federation import INT8, NODES, compressed_run, initial, run
from tests.grids import grid_of

CLIP = 0.1
PRIVATE = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyServerSideFixedClipping)


def fedavg():
    return FedAvg(fraction_evaluate=0)


def app_with(mods, records=lambda moved: {"arrays": moved}, fails=()):
    """Return an app whose nodes move each tensor by a random step; `fails`: failing messages."""

    def train(node, values, state):
        number = counted(state)
        if number in fails:
            raise RuntimeError("out of battery")
        draw = np.random.default_rng([node, number])
        return records(
            {n: np.float32(value + draw.normal(size=value.shape)) for n, value in values.items()}
        )

    return moving(train, mods)


def two_records(moved):
    first, *others = moved.items()
    return {"first": dict([first]), "second": dict(others)}


def looks(message, context, call_next):
    return call_next(message, context) if message.content["arrays"]["scale"] else None


MISTAKES = {
    "no mod": (app_with([]), "give the ClientApp mods=[CompressionMod(...)], before any other mod"),
    "the mod after one that looks for a tensor": (
        app_with([looks, CompressionMod(INT8)]),
        "KeyError: 'scale'; if it found a payload in place of the model's arrays, give the ",
    ),
    "two records": (
        app_with(CompressionMod(INT8), two_records),
        "none of them 'arrays', the model",
    ),
    "the mod after another": (
        app_with([LocalDpMod(1.0, 1.0, 1.0, 0.5), CompressionMod(INT8)]),
        "before any other mod",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_round_without_a_usable_reply_raises_with_the_reason(case):
    app, reason = MISTAKES[case]
    with pytest.raises(PayloadError) as raised:
        compressed_run(app)
    assert str(raised.value).startswith("no update could be used in round 1: ")
    assert reason in str(raised.value)


def test_a_run_without_any_reply_raises_at_its_end():
    class Deaf(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return []

    compressed = CompressedGrid(grid_of(app_with(CompressionMod(INT8)), kind=Deaf))
    fedavg().start(compressed, initial(), num_rounds=2)
    with pytest.raises(PayloadError, match=r"no update could be used \(no reply\)"):
        compressed.end()


def test_a_mod_without_a_compressed_grid_at_the_server_warns_once(logged):
    run(app_with(CompressionMod(INT8)))
    (line,) = logged()
    assert "nothing is compressed: start its strategy with CompressedGrid(grid)" in line


def compressed(**options):
    return CompressedGrid(LocalGrid(None, 1), **options)


WRONG_TYPES = [
    *((lambda given=given: StatisticsAveraging(given), "flwr.serverapp.strategy")
      for given in (FedAvg, "fedavg")),
    (lambda: CompressedGrid("grid"), "wraps a Grid"),
    (lambda: CompressedGrid(compressed()), "wraps a Grid of Flower"),
    (lambda: compressed(downlink=8), '"int8" say, not 8'),
    (lambda: CompressionMod(None), '"int8" say, not None'),
    (lambda: CompressionMod(INT8, density=0.1), "density: give options to make_codec"),
    (lambda: CompressionMod("topk", sparsifier="dense"),
     "'topk' is a sparsifier: sparsifier='dense' is another"),
]  # fmt: skip
WRONG_VALUES = [
    (lambda: CompressionMod("int9"), "no method is called 'int9'; there are cesgd, "),
    (lambda: compressed(downlink="zip2"), "no method is called 'zip2'"),
    (lambda: CompressionMod("topk", levels=4), "option levels does not go with sparsifier topk"),
    *((lambda given=given: Screening(**given), "must be a number of at least 1")
      for given in ({"refuse": True}, {"refuse": 0.5}, {"clip": float("nan")}, {"weight": -1})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "make", "part"),
    [
        *((TypeError, *case) for case in WRONG_TYPES),
        *((ValueError, *case) for case in WRONG_VALUES),
    ],
)
def test_wrong_options_are_refused_at_once(error, make, part):
    with pytest.raises(error) as raised:
        make()
    assert part in str(raised.value)


def test_attributes_of_a_wrapped_strategy_are_set_on_it():
    inner = fedavg()
    wrapper = StatisticsAveraging(inner, weighted_by_key="rows")
    wrapper.fraction_train, wrapper.exact = 0.3, ("a",)
    assert (inner.fraction_train, wrapper.fraction_train) == (0.3, 0.3)
    assert inner.weighted_by_key == "num-examples"
    assert not hasattr(inner, "exact")
    assert copy.deepcopy(wrapper).fraction_train == 0.3


def test_a_strategy_of_the_old_api_is_refused():
    old = pytest.importorskip("flwr.server.strategy")
    with pytest.raises(TypeError, match="Flower's old API"):
        StatisticsAveraging(old.FedAvg())


class Norms(FedAvg):
    """A FedAvg that records the norm of each node's update."""

    def configure_train(self, server_round, arrays, config, grid):
        self.layout, self.norms = layout_of(arrays), getattr(self, "norms", [])
        self.start_from = to_vector(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            model = to_vector(reply.content["arrays"], self.layout)
            self.norms.append(np.linalg.norm(model.astype(float) - self.start_from))
        return super().aggregate_train(server_round, replies)


KEEP = {
    "float32": {}, "float16": {"quantizer": "float16"}, "bfloat16": {"quantizer": "bfloat16"},
    "int8": {"quantizer": "int8"}, "selective": {"sparsifier": "selective", "density": 0.1},
}  # fmt: skip
DO_NOT = {
    "topk": {"sparsifier": "topk"}, "esgd": {"sparsifier": "esgd"},
    "dgc": {"sparsifier": "dgc", "momentum": 0.0},
    "randomk": {"sparsifier": "randomk", "rescale": True}, "qsgd": {"quantizer": "qsgd"},
    "ternary": {"quantizer": "ternary"}, "drive": {"quantizer": "drive"},
    "int8 with feedback": {"quantizer": "int8", "feedback": True},
    "values beside changes": {"quantizer": "int8", "exact": ["conv.bias"]},
    "sign": {"quantizer": "sign"}, "powersgd": {"quantizer": "powersgd"},
}  # fmt: skip


def without_scalars():
    """Return a model without 0-d tensors, because Flower never clips these."""
    return ArrayRecord({name: a for name, a in initial().items() if a.shape})


def clipped(codec, inner, **options):
    """Train with Flower's client-side clipping to the norm CLIP; return the traffic."""
    options = {"arrays": without_scalars(), **options}
    strategy = DifferentialPrivacyClientSideFixedClipping(inner, 0.0, CLIP, NODES)
    app = app_with([CompressionMod(codec), fixedclipping_mod])
    return compressed_run(app, strategy=strategy, **options)[1]


@pytest.mark.parametrize("name", KEEP)
def test_methods_that_preserve_a_clipped_norm(name):
    inner = Norms(fraction_evaluate=0)
    assert clipped(make_codec(**KEEP[name]), inner).failures == 0
    assert len(inner.norms) == 3 * NODES
    assert max(inner.norms) <= CLIP * (1 + 1e-5)


@pytest.mark.parametrize("name", DO_NOT)
def test_methods_that_do_not_preserve_a_clipped_norm_are_refused(name):
    with pytest.raises(PayloadError, match="does not keep the norm to which this node clips"):
        clipped(make_codec(**DO_NOT[name]), fedavg())


def test_int8_rounding_of_a_clipped_update_stays_within_the_clip():
    """Plain int8 rounding would raise an update's norm above CLIP; `within_clip` prevents this."""
    codec, delta = make_codec(quantizer="int8"), np.full(100_000, 0.51, np.float32)
    delta[0] = 127
    delta *= np.float32(CLIP / np.linalg.norm(delta))
    layout = Layout(("w",), ((len(delta),),), ("float32",))

    def norm(values):
        return np.linalg.norm(decode(codec.encode(values, layout), layout)[0].astype(float))

    assert norm(delta) > 1.5 * CLIP
    assert norm(within_clip(codec, delta, layout, CLIP, 0)) <= CLIP * (1 + 1e-6)


def with_extra(extra):
    kind = np.int64 if extra == "steps" else np.float32
    return ArrayRecord({**initial(), extra: Array(np.ones(3, kind))})


@pytest.mark.parametrize("wrapper", PRIVATE)
@pytest.mark.parametrize("extra", ["bn.running_var", "steps"])
def test_methods_that_the_noise_does_not_cover_are_refused(wrapper, extra):
    strategy = StatisticsAveraging(wrapper(fedavg(), 1.0, CLIP, NODES))
    with pytest.raises(ValueError, match="take a model without"):
        compressed_run(app_with([]), strategy=strategy, arrays=with_extra(extra))


def test_values_at_a_node_that_clips_are_refused():
    with pytest.raises(PayloadError, match="take a model without"):
        clipped(INT8, fedavg(), arrays=with_extra("bn.running_var"))
