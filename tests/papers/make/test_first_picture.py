"""README's picture shows a benchmark's values, which are those of the stored runs."""

import json

import pytest
from PIL import Image

from papers.benchmarks import carry_over
from papers.make.definitions import read_definition
from papers.make.first_picture import first_picture
from papers.make.measured import measured_file, read_measured
from papers.make.results import FIRST, main
from papers.make.run_archive import ROOT
from papers.make.tables import FilledBenchmarkTable
from tests.papers.make.made_pages import define

PAGE = """
title: Gains
claim: A claim.
setting: Made up.
tables:
  - benchmark: gains
    path: [row, column]
    columns: {mean: mean}
    first: {rows: {a: A, b: B}, ours: [b], fewer: up, mean: mean, half: half, worst: least}
    rows:
      - {id: a, label: A, key: "key a"}
      - {id: b, label: B, key: "key b"}
"""
VALUES = {
    "key a": {"up": 1.0, "mean": 0.0, "half": 0.0, "least": 0.0},
    "key b": {"up": 65.0, "mean": -20.0, "half": 0.5, "least": -30.0},
}


def make(root, page=PAGE, values=VALUES):
    define(root, page)
    file = measured_file(root, "gains")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"command": "python", "commit": "c", "result": values}))
    return main([], root)


def test_the_picture_has_its_size_and_is_drawn_again_for_another_value_only(root):
    assert make(root) == 0
    picture = root / FIRST
    assert Image.open(picture).size == (1200, 420)
    before = picture.read_bytes()
    assert make(root) == 0
    assert picture.read_bytes() == before
    make(root, values={**VALUES, "key a": {**VALUES["key a"], "half": 1.5}})
    assert picture.read_bytes() != before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{a: A, b: B}", "{a: A, c: C}", "page.yaml: first: no row has the id c"),
        ("worst: least", "worst: lest", "gains.json has no number for key a, lest"),
        ("half: half, ", "", "half is missing"),
    ],
)
def test_a_mistake_gives_one_line_and_no_picture(root, capsys, old, new, said):
    assert make(root, PAGE.replace(old, new)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (root / FIRST).exists()


def test_the_picture_of_the_readme_shows_the_stored_runs(capsys):
    page = read_definition(ROOT, ROOT / "papers" / "pages" / "carry_over.yaml")
    measured = read_measured(measured_file(ROOT, "carry_over"))
    carry_over.main()
    again = json.loads(capsys.readouterr().out)
    assert again.keys() == measured.result.keys()
    for method, values in again.items():
        assert values == pytest.approx(measured.result[method]), method
    picture = first_picture(FilledBenchmarkTable(page.tables[0], measured))
    assert picture.is_in(ROOT / FIRST)
    assert f"]({FIRST})" in (ROOT / "README.md").read_text()
