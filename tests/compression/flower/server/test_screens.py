"""The screens learn what is usual from the used updates; one bad node cannot shift this."""

from contextlib import nullcontext

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.batchnorm import scale_of
from edgewire.compression.flower import CompressedGrid, CompressionMod
from edgewire.compression.flower.native_tensors import ByKind
from edgewire.compression.flower.server.norm_screen import (
    NormScreen,
    NormScreenState,
    Screens,
    UpdateNorms,
    norms_of,
)
from edgewire.compression.flower.server.statistics_screen import (
    LEAST,
    StatisticsScreen,
    StatisticsState,
    norm_of,
)
from edgewire.compression.flower.tensor_split import Model, form_of_updates
from edgewire.compression.layout import Layout
from edgewire.compression.screening import Screening
from edgewire.strategy.run.serialization import from_bytes, to_bytes
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


BN = Layout(("n.running_mean", "n.running_var"), ((8,), (8,)), ("float32",) * 2)
START = np.repeat(np.float32([0, 1]), 8)


def reports(seed, nodes, *, move=1.0, spread=0.1):
    """Return the BatchNorm statistics of nodes that moved from `START` to similar values."""
    draw = np.random.default_rng(seed)
    there = np.repeat(np.float32([0.3 * move, np.exp(-move)]), 8)
    return [
        np.asarray(there * np.exp(draw.normal(0, spread, 16)), np.float32) for _ in range(nodes)
    ]


def take(screen, found, sent=START):
    """Pass nodes' BatchNorm statistics to the filter `screen`; return those used (else None)."""
    screen.observe(BN, [(report, sent) for report in found])
    taken = []
    for node, report in enumerate(found):
        try:
            taken.append(screen.taken(node, BN, report, sent, None))
        except PayloadError:
            taken.append(None)
    return taken


def lie(mean, report):
    return np.concatenate([np.full(8, mean, np.float32), report[8:]])


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize("mean", [5, -5, 1e5, 3e38])
def test_false_statistics_are_refused_at_any_position(place, mean):
    screen, found = StatisticsScreen(), reports(0, 10)
    found[place] = lie(mean, found[place])
    for turn in range(4):
        taken = take(screen, found)
        assert [each is None for each in taken] == [node == place for node in range(10)]
        found = reports(turn + 1, 10)
        found[place] = lie(mean, found[place])


@pytest.mark.parametrize("variance", [0, 1e-12, 1e6, 3e38])
def test_a_false_variance_is_refused(variance):
    found = reports(0, 10)
    found[3] = np.concatenate([found[3][:8], np.full(8, variance, np.float32)])
    assert take(StatisticsScreen(), found)[3] is None


@given(st.integers(0, 99), st.floats(0.01, 5), st.floats(0.001, 0.5), st.integers(1, 20))
def test_honest_statistics_are_used_unchanged(seed, move, spread, nodes):
    screen = StatisticsScreen()
    for turn in range(3):
        found = reports(seed + turn, nodes, move=move, spread=spread)
        assert all(one is other for one, other in zip(take(screen, found), found, strict=True))


def test_a_false_first_report_is_outvoted_by_later_ones():
    screen, honest = StatisticsScreen(), reports(0, 10)
    # The first report has nothing to compare with.
    screen.taken(0, BN, lie(5, honest[0]), START, None)
    for node in range(1, 10):
        screen.taken(node, BN, honest[node], START, None)
    with pytest.raises(PayloadError, match=r"away from the other nodes' \(screen.statistics=5\)"):
        screen.taken(0, BN, lie(5, honest[0]), START, None)


@given(st.floats(0.3, 3), st.floats(1, 4), st.floats(0.1, 30))
def test_clipped_statistics_are_within_a_multiple_of_the_usual_change(usual, clip, far):
    nodes, scale = range(5), scale_of(BN)
    state = StatisticsState(
        list(BN.names), dict.fromkeys(nodes, START), dict.fromkeys(nodes, usual), usual, START
    )
    report = lie(far, START)
    taken = StatisticsScreen(Screening(statistics=None, clip=clip), state).taken(
        0, BN, report, START, None
    )
    expected = min(scale.distance(report, START, START), clip * usual)
    assert scale.distance(taken, START, START) == pytest.approx(expected, rel=1e-4)


def test_every_report_of_a_first_round_is_compared_with_the_centre_of_this_round():
    screen, few, most = StatisticsScreen(), lie(1, START), lie(9, START)
    found = [few, few, most, most, most]
    assert all(one is other for one, other in zip(take(screen, found), found, strict=True))


def test_statistics_of_another_model_begin_anew():
    screen, names, wide = StatisticsScreen(), BN.names, np.repeat(START, 2)
    take(screen, reports(0, 10))
    other = Layout(names, ((16,), (16,)), ("float32",) * 2)
    assert screen.taken(1, other, wide, wide, None) is wide
    assert not screen.knows


def test_the_centre_of_a_first_round_is_used_for_this_round_alone():
    """Six reports of the first round are not used; the next round must not follow them."""
    screen, used, unused = StatisticsScreen(), lie(1, START), lie(9, START)
    screen.observe(BN, [(each, START) for each in [used] * 4 + [unused] * 6])
    for node in range(4):
        assert screen.taken(node, BN, used, START, None) is used
    screen.observe(BN, [(unused, START)] * 6)
    with pytest.raises(PayloadError, match="running statistics"):
        screen.taken(4, BN, unused, START, None)


@pytest.mark.parametrize("clips", [True, False])
def test_a_model_that_was_shifted_may_return(clips):
    screening = Screening(statistics=None, clip=1) if clips else None
    screen, found = StatisticsScreen(screening), reports(0, 10)
    take(screen, found)
    astray, back = lie(9, found[0]), lie(8, found[0])
    assert screen.taken(1, BN, back, astray, None) is back
    with nullcontext() if clips else pytest.raises(PayloadError, match="running statistics"):
        assert (screen.taken(2, BN, astray, back, None)[:8] < 8).all()


def test_screening_of_statistics_can_be_switched_off():
    found = reports(0, 10)
    found[3] = lie(1e5, found[3])
    assert take(StatisticsScreen(Screening(statistics=None)), found)[3] is found[3]


def test_a_screen_of_statistics_continues_from_its_state():
    state = StatisticsState()
    take(StatisticsScreen(None, state), reports(0, 10))
    one, other = (StatisticsScreen(None, from_bytes(StatisticsState, to_bytes(state)))
                  for _ in range(2))  # fmt: skip
    found = [*reports(1, 9), lie(5, reports(1, 1)[0])]
    assert [x is None for x in take(one, found)] == [x is None for x in take(other, found)]
    with pytest.raises(PayloadError, match="running statistics"):
        other.taken(10, BN, found[-1], START, None)
    assert len(state.reports) <= 15


def test_first_statistics_are_compared_with_the_first_model():
    screen = StatisticsScreen()
    with pytest.raises(PayloadError, match="many times the model's"):
        screen.taken(1, BN, lie(50, START), START, MODEL)
    screen.taken(1, BN, START, START, MODEL)
    with pytest.raises(PayloadError, match="many times the model's"):
        screen.taken(2, BN, lie(50, START), START, 100 * MODEL)
