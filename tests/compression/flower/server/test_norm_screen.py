"""The filter learns the usual norm from the used updates; one bad node cannot shift this norm."""

from contextlib import nullcontext

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import CompressedGrid, CompressionMod
from edgewire.compression.flower.native_tensors import ByKind
from edgewire.compression.flower.server.norm_screen import (
    NormScreen,
    NormScreenState,
    Screens,
    UpdateNorms,
    norms_of,
)
from edgewire.compression.flower.server.statistics_screen import LEAST, norm_of
from edgewire.compression.flower.tensor_split import Model, form_of_updates
from edgewire.compression.layout import Layout
from edgewire.compression.screening import Screening
from tests.compression.flower.apps import moving, spoiling, to_targets
from tests.compression.flower.federation import initial
from tests.grids import grid_of

MODEL = np.ones(100, np.float32)  # of norm 10


def screened(options, norms):
    """Pass updates with these norms to a filter; return their factors and the filter.

    The factor of a refused update is None.
    """
    screen = NormScreen(options)
    return use(screen, norms), screen


def use(screen, norms):
    if not screen.knows:
        screen.observe(dict(enumerate(norms)))
    found = []
    for node, long in enumerate(norms):
        try:
            found.append(screen.clip_factor(node, long, MODEL))
        except PayloadError:
            found.append(None)
    return found


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=30))
def test_updates_of_similar_norms_are_all_used(norms):
    assert screened(Screening(), norms)[0] == [1.0] * len(norms)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("huge", [1e4, 3e38, float("inf"), float("nan")])
def test_an_update_of_large_norm_is_refused_at_any_position(first, huge):
    norms = [huge, 1.0, 1.1, 0.9] if first else [1.0, 1.1, 0.9, huge]
    found, _ = screened(Screening(), norms)
    assert found[0 if first else -1] is None
    assert found.count(1.0) == 3


def test_a_first_update_of_far_larger_norm_than_the_model_is_refused():
    with pytest.raises(PayloadError, match="as long as the model"):
        NormScreen().clip_factor(1, 101.0, MODEL)
    assert NormScreen().clip_factor(1, 99.0, MODEL) == 1
    assert NormScreen().clip_factor(1, 990.0, MODEL, rate=0.1) == 1


def test_first_updates_are_compared_with_the_first_model():
    screen = NormScreen()
    assert screen.clip_factor(1, 99.0, MODEL) == 1
    with pytest.raises(PayloadError, match="as long as the model"):
        screen.clip_factor(2, 101.0, 100 * MODEL)


def test_an_update_as_large_as_the_first_ones_is_used_late_in_a_run():
    _, screen = screened(Screening(refuse=3), [1.0] * 5)
    for _ in range(20):
        use(screen, [1e-6] * 5)
    assert use(screen, [1.0, *[1e-6] * 4]) == [1.0] * 5


def test_a_node_that_sends_often_does_not_set_the_usual_norm():
    _, screen = screened(Screening(refuse=10), [1.0] * 5)
    for _ in range(100):
        screen.clip_factor(0, 9.0, MODEL)
    with pytest.raises(PayloadError, match=r"11 times as long as usual \(screen.refuse=10\)"):
        screen.clip_factor(1, 11.0, MODEL)


@given(st.lists(st.floats(0.1, 50), min_size=LEAST, max_size=9), st.floats(1, 4))
def test_a_clipped_update_is_stored_with_the_norm_that_is_used(norms, clip):
    state = NormScreenState()
    factors = use(NormScreen(Screening(refuse=None, clip=clip), state), norms)
    for node, (norm, factor) in enumerate(zip(norms, factors, strict=True)):
        assert state.norms[node] == pytest.approx(norm * factor)
    usual = np.sort(norms)[(len(norms) - 1) // 2]
    assert norms[0] * factors[0] == pytest.approx(min(norms[0], clip * usual))


def test_a_usual_norm_is_known_from_the_updates_of_three_nodes():
    for nodes in (LEAST - 1, LEAST):
        norms = [*[1.0] * (nodes - 1), 4.0]
        found, screen = screened(Screening(clip=2), norms)
        assert found[-1] == (1.0 if nodes < LEAST else 0.5)
        assert screen.knows == (nodes == LEAST)


@pytest.mark.parametrize("nodes", [4, 12, 20])
def test_the_usual_norm_is_computed_anew_after_a_quarter_as_many_updates_as_nodes(nodes):
    norms = dict(enumerate([1.0, 3.0] * (nodes // 2)))
    state = NormScreenState(norms=norms, usual=1.0)
    for turn in (1, 2):
        for used in range(1, nodes // 4 + 1):
            NormScreen(None, state).clip_factor(0, 3.0 * turn, MODEL)  # 3 is the median now
            assert state.usual == (3.0 if turn == 2 or used == nodes // 4 else 1.0)
            assert state.since == used % (nodes // 4)


def test_the_usual_norm_of_a_first_round_is_used_for_this_round_alone():
    screen = NormScreen(Screening(refuse=None, clip=1))
    screen.observe(dict.fromkeys(range(4), 9.0))
    assert [screen.clip_factor(node, 2.0, MODEL) for node in range(3)] == [1.0] * 3
    screen.observe(dict.fromkeys(range(4), 9.0))
    assert screen.clip_factor(3, 4.0, MODEL) == 0.5


def test_the_norms_are_of_trained_entries_of_native_tensors_and_of_no_statistics():
    layout = Layout(
        ("w", "n.running_mean", "m.running_mean", "i"), ((2,),) * 4,
        ("float32", "float32", "float64", "int64"),
    )  # fmt: skip
    form = form_of_updates(layout)

    def model(*values):
        arrays = {
            name: Array(np.full(2, value, dtype))
            for name, value, dtype in zip(layout.names, values, layout.dtypes, strict=True)
        }
        return form.model(ArrayRecord(arrays))

    found = norms_of(form, model(3, 20, 30, 5), form, model(2, 0, 10, 1))
    assert found.vector == pytest.approx(np.sqrt(2))
    assert found.natives == pytest.approx((0, 4 * np.sqrt(2)))
    np.testing.assert_array_equal(found.statistics, [20, 20, 30, 30])
    np.testing.assert_array_equal(found.sent, [0, 0, 10, 10])


@pytest.mark.parametrize(
    "odd", [{"vector": 21.0}, {"natives": ByKind(21.0, 2.0)}, {"natives": ByKind(2.0, 21.0)}]
)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_first_update_is_compared_with_those_of_the_same_round(odd, place):
    screens, statistics = Screens(Screening(refuse=10)), np.empty(0, np.float32)
    layout = Layout((), (), ())
    norms = [UpdateNorms(2.0, ByKind(2.0, 2.0), statistics, statistics)] * 5
    norms[place] = norms[place]._replace(**odd)
    screens.observe({layout: dict(enumerate(norms))})
    for node, each in enumerate(norms):
        with pytest.raises(PayloadError) if node == place else nullcontext():
            screens.screen(node, layout, each, 10 * MODEL)


def test_the_norm_of_a_reply_in_another_dtype_is_that_of_the_values_in_this_dtype():
    narrow, wide = (
        form_of_updates(Layout(("w",), ((2,),), (dtype,))) for dtype in ("float16", "float32")
    )
    start, theirs = Model(np.zeros(2, np.float32)), Model(np.array([1 + 1e-4, 0], np.float32))
    assert norms_of(narrow, theirs, wide, start).vector == 1  # the nearest number in float16
    other = form_of_updates(Layout(("v",), ((2,),), ("float32",)))
    assert norms_of(other, theirs, wide, start) is None


@pytest.mark.parametrize("node", [0, 3])
def test_a_weight_is_limited_to_a_multiple_of_the_usual_weight(node):
    weights = dict.fromkeys(range(4), 5.0) | {node: 1e18}
    assert NormScreen(Screening(weight=10)).cap_weights(weights)[node] == 50
    assert NormScreen(Screening(weight=None)).cap_weights(weights)[node] == 1e18
    # Two nodes are too few to tell which weight is usual.
    assert NormScreen().cap_weights({0: 1e18, 1: 1.0})[0] == 1e18


@pytest.mark.parametrize("lies", ["train", "evaluate"])
def test_a_false_number_of_samples_is_limited(lies, caplog):
    """A false `num-examples` must not decide the mean metrics of training or evaluation."""

    def lie(reply):
        if ("arrays" in reply.content) == (lies == "train"):
            reply.content["metrics"] = MetricRecord({"num-examples": 1 << 62, "loss": 0.0})

    app = moving(to_targets, CompressionMod("int8"), lambda node, values, state: {})
    compressed = CompressedGrid(grid_of(spoiling(app, lie), 10))
    result = FedAvg(fraction_evaluate=1).start(compressed, initial(), num_rounds=2)
    found = {"train": result.train_metrics_clientapp, "evaluate": result.evaluate_metrics_clientapp}
    assert found[lies][2]["loss"] == pytest.approx(9 / 19)  # node 0 counts as 10 of 19 nodes
    assert "its num-examples of 4.61169e+18 counts as 20" in caplog.text
    assert compressed.traffic.failures == 0


def test_norms_beyond_float32_are_infinite_without_a_warning():
    assert norm_of(np.full(10, 3e38, np.float32)) == float("inf")
    assert norm_of(np.array([3, 0], np.float32), np.array([4], np.float32)) == 5


def test_a_screen_continues_from_its_state():
    state = NormScreenState()
    use(NormScreen(None, state), [1.0] * 4)
    with pytest.raises(PayloadError):
        NormScreen(None, state).clip_factor(9, 1e4, MODEL)
