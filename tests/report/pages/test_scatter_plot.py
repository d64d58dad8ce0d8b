"""A table is drawn as a picture of points, and every point is visible."""

import pytest

from report.pages.scatter_plot import Point, Scatter


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
