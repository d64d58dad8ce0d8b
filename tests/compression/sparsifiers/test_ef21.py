"""EF21: its algorithm step by step, and its refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.decoder import decode_update
from edgewire.compression.make import make_codec
from tests.compression.sparsifiers.steps import LAYOUT, N, make, run
from tests.local_runs import local_run
from tests.runs import result_of


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
    words = ["algorithm=ef21_sgdm", "dataset=digits", "nodes=4", "rounds=300", "eval_every=300"]
    words += ["lr=0.3", "schedule=constant"]
    local_run(tmp_path / "all", *words)
    local_run(tmp_path / "lost", *words, "network.loss=0.05", "timeout=5")
    assert result_of(tmp_path / "lost")["failures"] > 10
    assert result_of(tmp_path / "lost")["loss"] < 1.3 * result_of(tmp_path / "all")["loss"]
