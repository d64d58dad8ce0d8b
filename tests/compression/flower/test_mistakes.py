"""What a user gets wrong is said: at once where it can be, else at the end of the first round."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from compression import PayloadError, make_codec
from compression.flower import Compressed, CompressionMod
from simulation.grid import LocalGrid
from simulation.host import HostSpec
from simulation.workers import make_pool
from tests.compression.flower.federation import INT8, NODES, initial, run

CLIP = 0.1
PRIVATE = (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyServerSideFixedClipping)


def fedavg():
    return FedAvg(fraction_evaluate=0)


def app_with(mods, arrays=None, fails=None):
    """Return an app whose nodes move each tensor by a random step of their own."""
    app = ClientApp()

    @app.train(mods=mods)
    def train(message, context):
        node, number = (
            context.node_config["partition-id"],
            message.content["config"]["server-round"],
        )
        if fails and fails(node, number):
            raise RuntimeError("out of battery")
        draw = np.random.default_rng([node, number])
        moved = {
            name: Array(np.asarray(a.numpy() + draw.normal(size=a.shape), np.float32))
            for name, a in message.content["arrays"].items()
        }
        content = {"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}
        content |= arrays(moved) if arrays else {"arrays": ArrayRecord(moved)}
        return Message(RecordDict(content), reply_to=message)

    return app


def two_records(moved):
    names = list(moved)
    return {
        "first": ArrayRecord({name: moved[name] for name in names[:1]}),
        "second": ArrayRecord({name: moved[name] for name in names[1:]}),
    }


MISTAKES = {
    "no mod": ([], None, "give it mods=[CompressionMod(...)], before any other mod"),
    "two records": ([CompressionMod(INT8)], two_records, "one, the model, is expected"),
    "the mod after another": (
        [LocalDpMod(1.0, 1.0, 1.0, 0.5), CompressionMod(INT8)], None, "before any other mod",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_round_of_which_nothing_can_be_used_raises_with_the_reason(case):
    mods, arrays, reason = MISTAKES[case]
    with pytest.raises(PayloadError) as raised:
        run(Compressed(fedavg()), app_with(mods, arrays))
    assert str(raised.value).startswith(f"round 1: not one of {NODES} replies could be used: ")
    assert reason in str(raised.value)


def test_later_rounds_raise_too_unless_patience_is_asked_for():
    def fails(node, number):
        return number in (2, 3)

    app = app_with([CompressionMod(INT8)], fails=fails)
    with pytest.raises(PayloadError, match=r"round 2: .*out of battery"):
        run(Compressed(fedavg()), app)
    with pytest.raises(PayloadError, match="round 3: "):
        run(Compressed(fedavg(), patience=2), app)
    strategy, seen = Compressed(fedavg(), patience=3), []
    run(strategy, app, evaluate_fn=lambda r, arrays: seen.append(arrays["scale"].numpy()))
    assert seen[1] == seen[2] == seen[3] != seen[0]  # what it has learned is kept
    assert strategy.traffic.failures == 2 * NODES


def test_who_gets_no_answer_at_all_is_told_at_the_end():
    class Deaf(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return []

    grid = Deaf(make_pool(HostSpec(app_with([CompressionMod(INT8)]), 3, 1, {}), 1), 3)
    with pytest.raises(PayloadError, match="no node has answered: the model is as it was"):
        Compressed(fedavg()).start(grid, initial(), num_rounds=2)


def test_a_mod_without_its_other_half_says_so_once(caplog):
    with caplog.at_level(logging.WARNING, "edgewire"):
        run(fedavg(), app_with([CompressionMod(INT8)]))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "edgewire"]
    assert "nothing is compressed: wrap its strategy, Compressed(strategy)" in line


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Compressed(FedAvg), "not its class: Compressed(FedAvg())"),
        (lambda: Compressed("fedavg"), "flwr.serverapp.strategy"),
        (lambda: Compressed(fedavg(), downlink="int8"), 'make_codec(quantizer="int8")'),
        (lambda: Compressed(fedavg(), exact="head"), "list of patterns"),
        (lambda: Compressed(fedavg(), exact=None), "list of patterns"),
        (lambda: CompressionMod("int8"), 'make_codec(quantizer="int8")'),
        (lambda: CompressionMod(None), "needs a codec"),
    ],
)
def test_wrong_types_are_refused_at_once(make, part):
    with pytest.raises(TypeError) as raised:
        make()
    assert part in str(raised.value)


def test_a_strategy_of_the_old_api_is_refused():
    old = pytest.importorskip("flwr.server.strategy")
    with pytest.raises(TypeError, match="Flower's old API"):
        Compressed(old.FedAvg())


def test_a_wrapper_belongs_inside():
    outside = DifferentialPrivacyServerSideFixedClipping(Compressed(fedavg()), 1.0, CLIP, NODES)
    with pytest.raises(ValueError, match=r"Compressed\(Wrapper\(strategy\)\)"):
        run(outside, app_with([CompressionMod(INT8)]))


class Norms(FedAvg):
    """Notes how far each node's model is from the one it was sent."""

    def configure_train(self, server_round, arrays, config, grid):
        self.start_from, self.norms = arrays["flat"].numpy(), getattr(self, "norms", [])
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            model = reply.content["arrays"]["flat"].numpy()
            self.norms.append(np.linalg.norm(model.astype(float) - self.start_from))
        return super().aggregate_train(server_round, replies)


KEEP = {
    "float32": {}, "float16": {"quantizer": "float16"}, "bfloat16": {"quantizer": "bfloat16"},
    "int8": {"quantizer": "int8"}, "selective": {"sparsifier": "selective", "density": 0.1},
}  # fmt: skip
DO_NOT = {
    "topk": {"sparsifier": "topk"}, "dgc": {"sparsifier": "dgc"}, "esgd": {"sparsifier": "esgd"},
    "randomk": {"sparsifier": "randomk", "rescale": True}, "qsgd": {"quantizer": "qsgd"},
    "ternary": {"quantizer": "ternary"}, "drive": {"quantizer": "drive"},
    "int8 with feedback": {"quantizer": "int8", "feedback": True},
    "values beside changes": {"quantizer": "int8", "exact": ["scale"]},
    "sign": {"quantizer": "sign"}, "powersgd": {"quantizer": "powersgd"},
}  # fmt: skip


def clipped(codec, inner):
    """Train with nodes that clip to CLIP, and no noise."""
    strategy = DifferentialPrivacyClientSideFixedClipping(inner, 0.0, CLIP, NODES)
    strategy = Compressed(strategy)
    run(strategy, app_with([CompressionMod(codec), fixedclipping_mod]))
    return strategy


@pytest.mark.parametrize("name", KEEP)
def test_methods_that_keep_a_clip(name):
    inner = Norms(fraction_evaluate=0)
    strategy = clipped(make_codec(**KEEP[name]), inner)
    assert strategy.traffic.failures == 0
    assert len(inner.norms) == 3 * NODES
    assert max(inner.norms) <= CLIP * (1 + 1e-5)


@pytest.mark.parametrize("name", DO_NOT)
def test_methods_that_do_not_are_refused(name):
    with pytest.raises(PayloadError, match="does not keep the norm to which this node clips"):
        clipped(make_codec(**DO_NOT[name]), fedavg())


def test_the_worst_that_rounding_to_int8_can_do_is_within_the_clip():
    """A large entry, and all others half a level: each would become a whole one."""
    codec, delta = make_codec(quantizer="int8"), np.full(100_000, 0.51, np.float32)
    delta[0] = 127
    delta *= np.float32(CLIP / np.linalg.norm(delta))
    from compression import Layout, decode
    from compression.flower.privacy import within_clip

    layout = Layout(("w",), ((len(delta),),), ("float32",))

    def norm(values):
        return np.linalg.norm(decode(codec.encode(values, layout), layout)[0].astype(float))

    assert norm(delta) > 1.5 * CLIP
    assert norm(within_clip(codec, delta, layout, CLIP, 0)) <= CLIP * (1 + 1e-6)


@pytest.mark.parametrize("wrapper", PRIVATE)
@pytest.mark.parametrize("extra", ["bn.running_var", "steps"])
def test_what_noise_would_not_cover_is_refused(wrapper, extra):
    arrays = initial()
    kind = np.int64 if extra == "steps" else np.float32
    arrays[extra] = Array(np.ones(3, kind))
    grid = LocalGrid(make_pool(HostSpec(app_with([]), NODES, 1, {}), 1), NODES)
    with pytest.raises(ValueError, match="take a model without"):
        Compressed(wrapper(fedavg(), 1.0, CLIP, NODES)).start(grid, arrays)


@pytest.mark.parametrize("name", ["topk", "qsgd"])
def test_where_the_server_clips_any_method_will_do(name):
    inner = Norms(fraction_evaluate=0)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, CLIP, NODES)
    run(Compressed(strategy), app_with([CompressionMod(make_codec(**DO_NOT[name]))]))
    assert len(inner.norms) == 3 * NODES
    assert max(inner.norms) <= CLIP * (1 + 1e-5)
