"""EF21: its algorithm step by step, and its refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf import ConfigError
from conf.load import to_config
from strategy.factory import scheme_of
from tests.compression.sparsifiers.steps import N, make, run
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm=sgd", "downlink=average", "compression=ef21"], "adds them up"),
        (["algorithm=ef21_sgdm", "compression=topk"], "adds them up"),
        (["algorithm=fedavg", "compression=ef21"], "adds them up"),
        (["algorithm=fedbuff", "compression=ef21"], "adds them up"),
        (["algorithm=synthetic_gradients", "compression=ef21"], "adds them up"),
        (["algorithm=sgd", "downlink=topk", "downlink.sparsifier=ef21"], "choose topk"),
        (["algorithm=ef21_sgdm", "strategy.fraction_train=0.5"], "fraction_train=1"),
        (["algorithm=ef21_sgdm", "strategy.quorum=0.5"], "quorum=1"),
        (["algorithm=ef21_sgdm", "strategy.mean=median"], "mean=mean"),
        (["algorithm=ef21_sgdm", "strategy.sender_exponent=0.5"], "sender_exponent=0"),
        (["algorithm=ef21_sgdm", "compression.residual_decay=0.9"], "residual_decay"),
    ],
)
def test_changes_are_refused_where_they_are_not_added_up(words, said):
    with pytest.raises(ConfigError, match=said):
        scheme_of(to_config(composed(*words)))
