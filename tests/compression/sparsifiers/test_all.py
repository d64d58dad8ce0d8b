"""Tests of all sparsifiers: number of entries, order of indices, options, and a falling loss."""

import numpy as np
import pytest

from edgewire.compression.make import make_codec
from edgewire.compression.per_tensor import count
from edgewire.compression.registry import names as methods
from tests.compression.sparsifiers.steps import make, run, update


@pytest.mark.parametrize("share", [0.001, 0.1, 0.29, 1.0])
def test_counts(share):
    assert count(share, 0) == 0
    assert count(share, 100) == max(1, round(share * 100))
    assert count(0.0, 100) == 0


@pytest.mark.parametrize("name", methods("sparsifier"))
def test_selections_are_in_order_and_never_change_the_update(name):
    for number, (g, (indices, values, _), _) in enumerate(run(make(name), 4, [3, 2, 1, 2])):
        np.testing.assert_array_equal(g, update(number))
        if indices is not None:
            assert indices.dtype == np.uint32
            assert (np.diff(indices.astype(np.int64)) > 0).all()
            assert values.shape == indices.shape
        assert values.dtype == np.float32
        assert values.flags.c_contiguous


@pytest.mark.parametrize("name", ["cesgd", "esgd"])
def test_a_loss_falls_only_between_two_known_losses(name):
    losses = [-1.0, -2.0, None, 5.0, 4.0, float("nan"), 3.0, float("inf"), 1.0]
    options = {"cap": 0.0} if name == "esgd" else {}
    same = [s.same for _, s, _ in run(make(name, **options), len(losses), losses)]
    assert same == [False, True, False, False, True, False, False, False, False]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("topk", {"density": 0.0}),
        ("topk", {"density": 1.1}),
        ("topk", {"density": float("nan")}),
        ("topk", {"scope": "layer"}),
        ("threshold", {"threshold": -1.0}),
        ("threshold", {"sent": "half"}),
        ("gradient_dropping", {"drop": 1.5}),
        ("gradient_dropping", {"cut": "rough"}),
        ("randomk", {"density": -0.1}),
        ("selective", {"pick": "best"}),
        ("selective", {"threshold": 0.1}),
        ("esgd", {"drop": 2.0}),
        ("esgd", {"residual": "sum"}),
        ("esgd", {"beta": 1.5}),
        ("esgd", {"cap": -1.0}),
        ("cesgd", {"operator": "both"}),
        ("cesgd", {"gain": float("inf")}),
        ("cesgd", {"speculative": 2.0}),
        ("cesgd", {"decay": 1.1}),
        ("cesgd", {"keep": "always"}),
        ("cesgd", {"scope": "layer"}),
        ("gradient_dropping", {"drop": 1.0}),
        ("esgd", {"drop": 1.0}),
        ("threshold", {"threshold": 0.0}),
        ("dgc", {"sparsity": 1.0}),
        ("dgc", {"layers": "fc"}),
        ("dgc", {"workers": -1}),
        ("dgc", {"warmup_steps": -1}),
        ("dgc", {"clip_norm": -1.0}),
        ("dgc", {"momentum": 1.1}),
    ],
)
def test_options_out_of_range_give_one_line(name, options):
    with pytest.raises(ValueError, match=f"option {next(iter(options))} of {name}") as error:
        make_codec(name, **options)
    assert "\n" not in str(error.value)
