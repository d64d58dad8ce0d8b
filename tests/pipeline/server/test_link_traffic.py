"""A cut model's segments report the seconds that they worked; impossible values do not count."""

import pytest

from edgewire.pipeline.server.link_traffic import Links


@pytest.mark.parametrize("bad", [1.7e308, float("inf"), float("nan"), -1.0, 5, True, "1", None])
def test_impossible_seconds_are_not_counted(bad):
    links = Links()
    links.begin(2)
    links.worked(0, 0.5, 1)
    for _ in range(20):
        links.worked(0, bad, 1)
    assert links.as_dict()["seconds_by_segment"] == [0.5, 0.0]
