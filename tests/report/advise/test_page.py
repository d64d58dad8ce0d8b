"""docs/which-method.md shows the stored runs."""

import pytest

from edgewire.report.advise.page import PAGE, page, worst_case
from edgewire.report.errors import ResultsError
from papers.make.run_archive import ROOT


def test_the_page_is_up_to_date():
    text = page(ROOT)
    assert (ROOT / PAGE).read_text() == text, "run: python -m edgewire.report.advise --write-page"
    assert "{{" not in text


@pytest.mark.parametrize(
    ("missed", "largest", "said"),
    [
        (0, 1.18, ["The largest ratio is 1.18."]),
        (1, 1.18, ['1 case (a row with "-")', "worse than any ratio", "1.18"]),
        (2, 1.18, ['2 cases (rows with "-")', "worse than any ratio", "1.18"]),
        (3, None, ["In no case"]),
    ],
)
def test_a_missed_goal_stands_beside_the_largest_ratio(missed, largest, said):
    text = worst_case({"missed": missed, "largest_ratio": largest})
    assert all(part in text for part in said)
    assert text.count(". ") == 0  # one sentence


def test_without_stored_runs_there_is_no_page(tmp_path):
    with pytest.raises(ResultsError):
        page(tmp_path)
