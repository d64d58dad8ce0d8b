"""EF21: its algorithm step by step, and its refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.decoder import decode_update
from edgewire.compression.make import make_codec
from edgewire.conf.load import to_config
from edgewire.conf.schema import ConfigError
from edgewire.strategy.factory import scheme_of
from tests.compression.sparsifiers.steps import LAYOUT, N, make, run
from tests.local_runs import local_run
from tests.runs import composed, result_of


@given(eta=st.floats(0.05, 1), density=st.sampled_from([0.01, 0.2, 1.0]))
def test_ef21_follows_its_algorithm(eta, density):
    """The sent values are those of v - h, where h is the sum of all that was sent."""
    v, h = np.zeros(N), np.zeros(N)
    for g, (indices, values, _), memory in run(make("ef21", eta=eta, density=density), 8):
        v = (1 - eta) * v + eta * g
        expected = np.sort(np.argsort(-np.abs(v - h), kind="stable")[: len(indices)])
        sizes = np.abs(v - h)
        assert sizes[indices].sum() == pytest.approx(sizes[expected].sum(), rel=1e-4)
        np.testing.assert_allclose(values, (v - h)[indices], rtol=1e-3, atol=1e-4)
        h[indices] += values
        np.testing.assert_allclose(memory["residual"], v - h, rtol=1e-3, atol=1e-4)


def test_with_all_entries_it_is_sgd(tmp_path):
    words = ["dataset=digits", "nodes=3", "rounds=20", "lr=0.1", "eval_every=20"]
    whole = ["compression.density=1", "compression.eta=1", "compression.quantizer=float32"]
    local_run(tmp_path / "ef21", "algorithm=ef21_sgdm", *whole, *words)
    local_run(tmp_path / "sgd", "algorithm=sgd", *words)
    ours, theirs = result_of(tmp_path / "ef21"), result_of(tmp_path / "sgd")
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


@given(
    st.sampled_from(["float16", "int8", "int4", "ternary", "sign", "lloyd", "drive", "qsgd"]),
    st.integers(0, 2**20),
)
def test_the_receivers_sum_is_what_the_nodes_have_sent(quantizer, seed):
    """The sum of decoded payloads plus the residual is the momentum v, with any quantizer."""
    codec = make_codec("ef21", quantizer, "raw", density=0.2, eta=0.5)
    draw, memory = np.random.default_rng(seed), {}
    received = np.zeros(N, np.float32)
    for number in range(1, 6):
        g = draw.normal(size=N).astype(np.float32)
        payload = codec.encode(g, LAYOUT, memory=memory, seed=number, number=number)
        update = decode_update(payload, LAYOUT)
        received[slice(None) if update.indices is None else update.indices] += update.values
        total = received + memory["residual"]
        np.testing.assert_allclose(total, memory["momentum"], rtol=1e-3, atol=1e-3)


def test_a_lost_reply_is_no_change(tmp_path):
    """With lost replies the loss falls as without them; the estimate does not drift away."""
    words = ["algorithm=ef21_sgdm", "dataset=digits", "nodes=4", "rounds=100", "eval_every=100"]
    words += ["lr=0.3", "schedule=constant"]
    local_run(tmp_path / "all", *words)
    local_run(tmp_path / "lost", *words, "network.loss=0.05", "timeout=5")
    assert result_of(tmp_path / "lost")["failures"] > 5
    assert result_of(tmp_path / "lost")["loss"] < 1.3 * result_of(tmp_path / "all")["loss"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm=sgd", "downlink=average", "compression=ef21"], "adds up"),
        (["algorithm=ef21_sgdm", "compression=topk"], "adds up"),
        (["algorithm=fedavg", "compression=ef21"], "adds up"),
        (["algorithm=fedbuff", "compression=ef21"], "adds up"),
        (["algorithm=synthetic_gradients", "compression=ef21"], "adds up"),
        (["algorithm=sgd", "downlink=topk", "downlink.sparsifier=ef21"], "choose topk"),
        (["algorithm=ef21_sgdm", "strategy.fraction_train=0.5"], "fraction_train=1"),
        (["algorithm=ef21_sgdm", "strategy.quorum=0.5"], "quorum=1"),
        (["algorithm=ef21_sgdm", "strategy.mean=median"], "mean=mean"),
        (["algorithm=ef21_sgdm", "strategy.sender_exponent=0.5"], "sender_exponent=0"),
        (
            ["algorithm=ef21_sgdm", "strategy.follow=weights", "downlink=topk"],
            "strategy.follow=steps",
        ),
        (["algorithm=ef21_sgdm", "strategy.weighted_by_key=num-steps"], "weighted_by_key=null"),
        (["algorithm=ef21_sgdm", "screen.clip=2"], "clip=null"),
        (
            ["algorithm=ef21_sgdm", "downlink=edgewire", "downlink.coder=entropy"],
            "downlink=average",
        ),
        (["algorithm=ef21_sgdm", "downlink=qsgd"], "downlink=average"),
        (["algorithm=ef21_sgdm", "downlink=topk"], "downlink=average"),
        (["algorithm=ef21_sgdm", "compression.residual_decay=0.9"], "residual_decay"),
        (["algorithm=ef21_sgdm", "compression.exact=[*weight]"], "option exact"),
        (["algorithm=ef21_sgdm", "compression.feedback=false"], "feedback=false"),
        (["algorithm=ef21_sgdm", "compression.eta=0"], "eta"),
    ],
)
def test_changes_are_refused_where_they_are_not_added_up(words, said):
    with pytest.raises(ConfigError, match=said):
        scheme_of(to_config(composed(*words)))
