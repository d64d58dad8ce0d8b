"""A table is drawn as a picture of points, and every point is visible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.make.scatter_plot import Point, Scatter, front


@pytest.mark.parametrize("least", [None, 78.0])
def test_a_point_below_the_axis_is_at_its_border_with_its_number(least):
    pytest.importorskip("matplotlib")
    points = [Point("FedAvg", 85.0, 1.0, (5e7, 5e7), least)]
    points += [Point("random-k", 70.7, 2.0, (3e5, 3e5), least)]
    for axes in Scatter(points).draw().axes:
        height = axes.containers[-1].lines[0].get_ydata()[0]
        assert height == (70.7 if least is None else least)
        names = [text.get_text() for text in axes.texts]
        assert names == ["1", "2" if least is None else "2: 70.7 ↓"]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_front_holds_the_points_that_no_other_beats(points, higher):
    sent, values = zip(*points, strict=True)
    found = front(sent, values, higher=higher)
    signed = [value if higher else -value for value in values]
    beaten = {
        i
        for i in range(len(sent))
        if any(
            sent[j] <= sent[i]
            and signed[j] >= signed[i]
            and (sent[j], signed[j]) != (sent[i], signed[i])
            for j in range(len(sent))
        )
    }
    assert {(sent[i], values[i]) for i in found} == {points[i] for i in range(len(sent))} - {
        points[i] for i in beaten
    }
    assert [sent[i] for i in found] == sorted({sent[i] for i in found})


@pytest.mark.parametrize("count", [1, 3])
def test_a_front_of_several_points_is_in_the_legend(count):
    pytest.importorskip("matplotlib")
    points = [Point(f"p{i}", 80.0 + i, None, (1e6 * (i + 1), 1e6)) for i in range(count)]
    labels = [line.get_label() for line in Scatter(points).draw().axes[0].lines]
    assert ("front" in labels) == (count > 1)
