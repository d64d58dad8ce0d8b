"""Cards of runs in a notebook: the curve, and texts as they are."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.report.notebook_card import BOTTOM, LEFT, RIGHT, TOP, card, curve_svg
from edgewire.task.metric import ACCURACY, LOSS


@given(st.lists(st.floats(width=32), max_size=30), st.sampled_from([ACCURACY, LOSS]))
def test_a_curve_lies_in_its_picture(values, metric):
    svg = curve_svg(list(enumerate(values)), metric)
    finite = [value for value in values if abs(value) < float("inf")]
    assert bool(svg) == (len(finite) > 1)
    if svg:
        ElementTree.fromstring(svg)
        pairs = re.search(r'points="([^"]*)"', svg)[1].split()
        assert len(pairs) == len(finite)
        for x, y in (map(float, pair.split(",")) for pair in pairs):
            assert LEFT <= x <= RIGHT
            assert TOP - 0.1 <= y <= BOTTOM + 0.1


@pytest.mark.parametrize("text", ["<b>", "a & b", '"x"', "</div><script>"])
def test_texts_are_no_markup(text):
    page = ElementTree.fromstring(card(text, rows={text: text}))
    assert [node.text for node in page.iter() if node.text] == [text] * 3
