"""What is usual is learned from what was used: one bad node can neither hide in it nor set it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compression import PayloadError
from compression.flower.screen import Screen, Screening, ScreenState, length

MODEL = np.ones(100, np.float32)  # of length 10


def screened(options, lengths):
    """Look at a round's lengths, then use each; return the shares, None for who is refused."""
    screen = Screen(options)
    return use(screen, lengths), screen


def use(screen, lengths):
    if not screen.knows:
        screen.look(lengths)
    found = []
    for node, long in enumerate(lengths):
        try:
            found.append(screen.share(node, long, MODEL))
        except PayloadError:
            found.append(None)
    return found


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=30))
def test_updates_of_about_one_length_are_all_used(lengths):
    assert screened(Screening(), lengths)[0] == [1.0] * len(lengths)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("huge", [1e4, 3e38, float("inf"), float("nan")])
def test_a_long_one_among_others_is_refused_whenever_it_comes(first, huge):
    lengths = [huge, 1.0, 1.1, 0.9] if first else [1.0, 1.1, 0.9, huge]
    found, _ = screened(Screening(), lengths)
    assert found[0 if first else -1] is None
    assert found.count(1.0) == 3


def test_a_first_update_far_longer_than_the_model_is_refused():
    with pytest.raises(PayloadError, match="as long as the model"):
        Screen().share(1, 101.0, MODEL)
    assert Screen().share(1, 99.0, MODEL) == 1
    assert Screen().share(1, 990.0, MODEL, rate=0.1) == 1


def test_late_in_a_run_an_update_as_at_its_beginning_is_used():
    _, screen = screened(Screening(refuse=3), [1.0] * 5)
    for _ in range(20):
        use(screen, [1e-6] * 5)
    assert use(screen, [1.0, *[1e-6] * 4]) == [1.0] * 5


def test_who_sends_often_does_not_set_what_is_usual():
    _, screen = screened(Screening(refuse=10), [1.0] * 5)
    for _ in range(100):
        screen.share(0, 9.0, MODEL)
    with pytest.raises(PayloadError, match=r"11 times as long as usual \(screen.refuse=10\)"):
        screen.share(1, 11.0, MODEL)


def test_clipping_shortens_to_so_many_times_the_usual_length():
    found, _ = screened(Screening(clip=2), [1.0, 1.0, 1.0, 8.0])
    assert found == [1.0, 1.0, 1.0, 0.25]


@pytest.mark.parametrize("node", [0, 3])
def test_no_weight_is_more_than_so_many_times_the_usual_one(node):
    weights = dict.fromkeys(range(4), 5.0) | {node: 1e18}
    assert Screen(Screening(weight=10)).weigh(weights)[node] == 50
    assert Screen(Screening(weight=None)).weigh(weights)[node] == 1e18
    assert Screen().weigh({0: 1e18, 1: 1.0})[0] == 1e18  # of two nobody knows which is usual


def test_lengths_beyond_float32_are_infinite_without_a_warning():
    assert length(np.full(10, 3e38, np.float32)) == float("inf")
    assert length(np.array([3, 0], np.float32), np.array([4], np.float32)) == 5


@given(st.dictionaries(st.integers(0, 9), st.floats(1e-3, 1e18), min_size=1))
def test_all_weigh_the_same_if_that_is_wanted(weights):
    assert set(Screen(Screening(equal=True)).weigh(weights).values()) == {1.0}


@pytest.mark.parametrize("options", [{"refuse": 0.5}, {"clip": float("nan")}, {"weight": -1}])
def test_factors_below_1_are_refused(options):
    with pytest.raises(ValueError, match="must be a number of at least 1"):
        Screening(**options)


def test_a_screen_goes_on_from_its_state():
    state = ScreenState()
    use(Screen(None, state), [1.0] * 4)
    with pytest.raises(PayloadError):
        Screen(None, state).share(9, 1e4, MODEL)
