"""The costs of layers, and cuts that balance them."""

from functools import partial
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewire.pipeline.costs import LayerCosts, balanced, costs_of, measure
from edgewire.pipeline.gradient_predictor import ModuleForm
from edgewire.pipeline.layers import parts_of
from edgewire.task.errors import TaskError
from edgewire.task.models import build_model

layer = st.builds(
    LayerCosts,
    st.floats(0.001, 1),
    st.floats(0, 0.1),
    st.integers(1, 1000),
    st.integers(0, 100),
)

IMAGES = torch.zeros(2, 1, 8, 8)


def stages(layers, cuts):
    bounds = [0, *cuts, len(layers)]
    for first, last in pairwise(bounds):
        row, ends = layers[first:last], last == len(layers)
        yield (
            sum(each.seconds for each in row) + (0 if ends else row[-1].module_seconds),
            sum(each.nbytes for each in row) + (0 if ends else row[-1].module_nbytes),
        )


@given(st.lists(layer, min_size=1, max_size=7), st.data())
def test_the_slowest_segment_is_as_fast_as_it_can_be(layers, data):
    segments = data.draw(st.integers(1, len(layers)))
    limits = data.draw(
        st.none() | st.lists(st.integers(1, 3000), min_size=segments, max_size=segments)
    )
    possible = [
        max(seconds for seconds, _ in stages(layers, cuts))
        for cuts in combinations(range(1, len(layers)), segments - 1)
        if limits is None
        or all(n <= m for (_, n), m in zip(stages(layers, cuts), limits, strict=True))
    ]
    if not possible:
        with pytest.raises(TaskError, match="no cut into"):
            balanced(layers, segments, limits)
        return
    cuts = balanced(layers, segments, limits)
    assert len(cuts) == segments - 1
    assert max(seconds for seconds, _ in stages(layers, cuts)) == pytest.approx(min(possible))
    if limits is not None:
        assert all(n <= m for (_, n), m in zip(stages(layers, cuts), limits, strict=True))


def test_more_segments_than_layers_are_refused():
    with pytest.raises(TaskError, match="2 layers cannot be cut into 3"):
        balanced([LayerCosts(1, 0, 1, 0)] * 2, 3)


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


def test_costs_of_layers_are_measured():
    make = partial(build_model, "four_layers", channels=1, size=8, classes=10)
    found = measure(make, torch.randn(16, 1, 8, 8), ModuleForm(hidden=32, classes=10))
    assert all(each.seconds > 0 for each in found)
    assert [each.module_seconds > 0 for each in found] == [True, True, True, False]
    assert found[1].nbytes >= 4 * 4 * (128 * 256 + 256)
    # A convolution's output, before pooling, is stored for the backward pass.
    assert found[0].nbytes >= 4 * 16 * 32 * 8 * 8
