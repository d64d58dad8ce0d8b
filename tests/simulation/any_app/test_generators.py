"""Global random generators are seeded for a node's work and restored after it."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from edgewire.simulation.any_app.generators import seeded


def draws():
    return random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002


def test_equal_seeds_draw_equal_numbers_and_others_differ():
    found = []
    for entropy in ((0, 1), (0, 1), (1, 1), (0, 2), (0,)):
        with seeded(*entropy):
            found.append(draws())
    assert found[0] == found[1]
    for one, other in pairwise(found[1:]):
        assert all(a != b for a, b in zip(one, other, strict=True))


def test_later_draws_are_unchanged():
    with seeded(3):
        draws()
        expected = draws()
    with seeded(3):
        draws()
        with seeded(4):
            draws()
        assert draws() == expected


@pytest.mark.parametrize("used", [True, False])
def test_gpus_that_torch_uses_have_their_states_back(used, monkeypatch):
    set_again = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["first", "second"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", set_again.extend)
    with seeded(3):
        assert not set_again
    assert set_again == ["first", "second"] * used
