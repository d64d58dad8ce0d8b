"""False BatchNorm statistics are refused; honest ones are used unchanged."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.batchnorm import scale_of
from edgewire.compression.flower.server.statistics_screen import StatisticsScreen, StatisticsState
from edgewire.compression.layout import Layout
from edgewire.compression.screening import Screening
from edgewire.strategy.run.serialization import from_bytes, to_bytes

MODEL = np.ones(100, np.float32)  # of norm 10
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
