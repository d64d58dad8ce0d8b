"""The costs of layers, and cuts that balance them."""

from functools import partial
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewire.pipeline.costs import Cost, balanced, costs_of
from edgewire.pipeline.gradient_predictor import ModuleForm
from edgewire.pipeline.layers import parts_of
from edgewire.task.errors import TaskError
from edgewire.task.models import build_model

layer = st.builds(Cost, st.floats(0.001, 1), st.floats(0.001, 1), st.floats(0, 0.1))
IMAGES = torch.zeros(2, 1, 8, 8)


def largest(layers, cuts):
    bounds = [0, *cuts, len(layers)]
    sums = [
        sum(each.forward + each.backward for each in layers[first:last])
        + (layers[last - 1].module if last < len(layers) else 0)
        for first, last in pairwise(bounds)
    ]
    return max(sums)


@given(st.lists(layer, min_size=1, max_size=7), st.data())
def test_the_largest_segment_is_as_small_as_it_can_be(layers, data):
    segments = data.draw(st.integers(1, len(layers)))
    possible = combinations(range(1, len(layers)), segments - 1)
    cuts = balanced(layers, segments)
    assert len(cuts) == segments - 1
    assert largest(layers, cuts) == pytest.approx(min(largest(layers, c) for c in possible))


def test_more_segments_than_layers_are_refused():
    with pytest.raises(TaskError, match="2 layers cannot be cut into 3"):
        balanced([Cost(1, 1, 0)] * 2, 3)


def test_costs_are_shares_that_add_up_to_1():
    make = partial(build_model, "four_layers", channels=1, size=8, classes=10)
    costs = costs_of(
        make, parts_of(make, (1, 2), IMAGES), IMAGES, ModuleForm(hidden=32, classes=10)
    )
    assert sum(cost.forward + cost.backward for cost in costs) == pytest.approx(1)
    assert all(cost.module > 0 for cost in costs[:-1])
    assert costs[-1].module == 0
    alone = costs_of(make, parts_of(make, (), IMAGES), IMAGES, None)
    # A dense layer needs two products in the backward pass, the first layer no input gradient.
    assert 1.5 < alone[0].backward / alone[0].forward <= 2
    layers = costs_of(make, parts_of(make, (1, 2, 3), IMAGES), IMAGES, None)
    assert sum(cost.forward for cost in layers) == pytest.approx(alone[0].forward)
    assert balanced(layers, 2) == (2,)  # the layer of 256 x 256 is the largest
