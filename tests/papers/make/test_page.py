"""Pages of results: what no page in the repository shows, such as settings that were not run.

`tests/papers/make/test_results.py` compares all other texts and tables with the repository's pages.
"""

import pytest

from papers.make.results import main, outputs
from tests.papers.make.made_pages import PAGE, define, rows_of, run, written


def test_one_seed_is_marked_and_missing_runs_are_named(root):
    define(root, PAGE)
    run(root, {"lr=1": (0.8,)})
    text = written(root)
    rows = rows_of(text)
    assert rows["A"]["accuracy, %"] == "80.00 (one seed)"
    assert rows["A"]["remarks"] == ""
    assert rows["C"] == {
        "paper's accuracy, %": "-", "accuracy, %": "", 'difference from "A", points': "",
        "applied updates": "", "remarks": "not run yet",
    }  # fmt: skip
    assert "B is not run yet A: not run yet." in text


def test_kept_runs_that_no_table_shows_are_listed(ran):
    assert "in no table" not in written(ran)
    run(ran, {"lr=4 momentum=True": (0.5,), "lr=5": (0.5,)})
    text = written(ran)
    assert "Stored runs of `e` that are in no table:\n\n* `lr=4 momentum=True`\n* `lr=5`\n" in text
    define(ran, PAGE.replace("lr=3", "lr=5"), "other")
    assert "* `lr=5`" not in written(ran)
    assert "* `lr=4 momentum=True`" in written(ran)


def test_a_picture_shows_each_row_in_both_directions_and_is_drawn_anew(ran):
    define(ran, PAGE.replace("    against", "    picture: points\n    against"))
    assert "![accuracy against bytes](page.png)" in written(ran)
    picture = ran / "papers" / "results" / "page.png"
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG")
    (points,) = [o.content for o in outputs(ran) if o.file == picture]
    assert [(p.label, p.accuracy, p.sent) for p in points.rows] == [
        ("A", pytest.approx(80), (1e6, 4e6)), ("B", pytest.approx(81.17, abs=0.01), (1e6, 4e6)),
    ]  # fmt: skip
    run(ran, {"lr=3": (0.7, 0.6)})
    assert main(["--check"], ran) == 1
    written(ran)
    assert picture.read_bytes() != first
    assert main(["--check"], ran) == 0
