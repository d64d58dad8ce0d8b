"""docs/which-method.md shows the stored runs."""

import pytest

from report.advise.page import PAGE, page
from report.errors import ResultsError
from report.run_archive import ROOT


def test_the_page_is_up_to_date():
    text = page(ROOT)
    assert (ROOT / PAGE).read_text() == text, "run: python -m report.advise --write-page"
    assert "{{" not in text


def test_without_stored_runs_there_is_no_page(tmp_path):
    with pytest.raises(ResultsError):
        page(tmp_path)
