"""The filter learns the usual norm from the used updates; one bad node cannot shift this norm."""

import numpy as np
import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from compression import PayloadError
from compression.batchnorm import scale_of
from compression.flower import CompressedGrid, CompressionMod
from compression.flower.server.update_filter import (
    StatisticsScreen,
    StatisticsState,
    UpdateFilter,
    UpdateFilterState,
    length,
)
from compression.layout import Layout
from compression.screening import Screening
from strategy.run.serialization import from_bytes, to_bytes
from tests.compression.flower.apps import grid_of, moving, to_targets
from tests.compression.flower.federation import initial

MODEL = np.ones(100, np.float32)  # of norm 10


def screened(options, lengths):
    """Pass updates with these norms to a filter; return their factors and the filter.

    The factor of a refused update is None.
    """
    screen = UpdateFilter(options)
    return use(screen, lengths), screen


def use(screen, lengths):
    if not screen.knows:
        screen.observe(lengths)
    found = []
    for node, long in enumerate(lengths):
        try:
            found.append(screen.clip_factor(node, long, MODEL))
        except PayloadError:
            found.append(None)
    return found


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=30))
def test_updates_of_similar_norms_are_all_used(lengths):
    assert screened(Screening(), lengths)[0] == [1.0] * len(lengths)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("huge", [1e4, 3e38, float("inf"), float("nan")])
def test_an_update_of_large_norm_is_refused_at_any_position(first, huge):
    lengths = [huge, 1.0, 1.1, 0.9] if first else [1.0, 1.1, 0.9, huge]
    found, _ = screened(Screening(), lengths)
    assert found[0 if first else -1] is None
    assert found.count(1.0) == 3


def test_a_first_update_of_far_larger_norm_than_the_model_is_refused():
    with pytest.raises(PayloadError, match="as long as the model"):
        UpdateFilter().clip_factor(1, 101.0, MODEL)
    assert UpdateFilter().clip_factor(1, 99.0, MODEL) == 1
    assert UpdateFilter().clip_factor(1, 990.0, MODEL, rate=0.1) == 1


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


def test_clipping_limits_the_norm_to_a_multiple_of_the_usual_norm():
    found, _ = screened(Screening(clip=2), [1.0, 1.0, 1.0, 8.0])
    assert found == [1.0, 1.0, 1.0, 0.25]


@pytest.mark.parametrize("node", [0, 3])
def test_a_weight_is_limited_to_a_multiple_of_the_usual_weight(node):
    weights = dict.fromkeys(range(4), 5.0) | {node: 1e18}
    assert UpdateFilter(Screening(weight=10)).cap_weights(weights)[node] == 50
    assert UpdateFilter(Screening(weight=None)).cap_weights(weights)[node] == 1e18
    assert (
        UpdateFilter().cap_weights({0: 1e18, 1: 1.0})[0] == 1e18
    )  # two nodes are too few to tell which weight is usual


def test_evaluation_weights_have_their_own_usual_weight():
    screen = UpdateFilter(Screening(weight=10))
    screen.cap_weights(dict.fromkeys(range(4), 1000.0))
    weights = dict.fromkeys(range(4), 5.0) | {2: 1e18}
    assert screen.cap_weights(weights, evaluated=True)[2] == 50


@pytest.mark.parametrize("lies", ["train", "evaluate"])
def test_a_false_number_of_samples_is_limited(lies, caplog):
    """A false `num-examples` must not decide the mean metrics of training or evaluation."""

    def told(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 0 and message.metadata.message_type == lies:
            reply.content["metrics"]["num-examples"] = 1 << 62
            reply.content["metrics"]["loss"] = 0.0
        return reply

    app = moving(to_targets, None, lambda node, values, state: {})
    nodes = ClientApp(mods=[told, CompressionMod("int8")])
    nodes.train()(lambda message, context: app(message, context))
    nodes.evaluate()(lambda message, context: app(message, context))
    link = CompressedGrid(grid_of(nodes, 10))
    result = FedAvg(fraction_evaluate=1).start(link, initial(), num_rounds=2)
    found = {"train": result.train_metrics_clientapp, "evaluate": result.evaluate_metrics_clientapp}
    assert found[lies][2]["loss"] == pytest.approx(9 / 19)  # node 0 counts as 10 of 19 nodes
    assert "its num-examples of 4.61169e+18 counts as 20" in caplog.text
    assert link.traffic.failures == 0


def test_norms_beyond_float32_are_infinite_without_a_warning():
    assert length(np.full(10, 3e38, np.float32)) == float("inf")
    assert length(np.array([3, 0], np.float32), np.array([4], np.float32)) == 5


@given(st.dictionaries(st.integers(0, 9), st.floats(1e-3, 1e18), min_size=1))
def test_equal_gives_all_nodes_the_same_weight(weights):
    assert set(UpdateFilter(Screening(equal=True)).cap_weights(weights).values()) == {1.0}


@pytest.mark.parametrize("options", [{"refuse": 0.5}, {"clip": float("nan")}, {"weight": -1}])
def test_factors_below_1_are_refused(options):
    with pytest.raises(ValueError, match="must be a number of at least 1"):
        Screening(**options)


def test_a_screen_continues_from_its_state():
    state = UpdateFilterState()
    use(UpdateFilter(None, state), [1.0] * 4)
    with pytest.raises(PayloadError):
        UpdateFilter(None, state).clip_factor(9, 1e4, MODEL)


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


def test_a_model_that_was_shifted_may_return():
    screen, found = StatisticsScreen(), reports(0, 10)
    take(screen, found)
    astray, back = lie(9, found[0]), lie(8, found[0])
    assert screen.taken(1, BN, back, astray, None) is back
    with pytest.raises(PayloadError, match="running statistics"):
        screen.taken(2, BN, astray, back, None)


def test_clipping_moves_statistics_to_the_limit():
    screen, found = StatisticsScreen(Screening(statistics=None, clip=2)), reports(0, 10)
    found[3] = lie(1e5, found[3])
    taken = take(screen, found)
    assert all(one is other for one, other in zip(taken, found, strict=True) if one is not taken[3])
    middle = np.median(np.delete(found, 3, axis=0), axis=0).astype(np.float32)
    scale = scale_of(BN)
    move = scale.distance(middle, START, middle)
    assert scale.distance(taken[3], middle, middle) == pytest.approx(2 * move, rel=0.3)


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


def test_first_statistics_of_far_larger_norm_than_the_model_are_refused():
    with pytest.raises(PayloadError, match="many times the model's"):
        StatisticsScreen().taken(1, BN, lie(1e4, START), START, MODEL)
