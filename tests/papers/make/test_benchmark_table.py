"""A table of results may show a benchmark's output, which is stored with the command line.

Keys in the table's definition choose the values.
"""

import json

import pytest

from papers.make.measured import Measured, measured_file
from papers.make.measured import main as measure
from papers.make.results import main
from tests.papers.make.made_pages import define, written

LOOKED_UP = """
title: Sizes
claim: "int8 takes {f2i.small} MB."
setting: Made up.
tables:
  - benchmark: sizes
    path: [column, row, both]
    columns: {small: "net, 10", large: "net, 1,000"}
    rows:
      - {id: f2i, label: F2I, key: f2i}
      - {id: dgc, label: "DGC, all", key: "dgc, all"}
"""
PRINTS = """
import json, sys
print(json.dumps({"net, 10": {"f2i": {"both": 11.1619}}, "overrides": sys.argv[1:]}))
"""


@pytest.fixture
def benchmark(root):
    """Return a benchmark program that prints sizes."""
    (root / "papers" / "benchmarks").mkdir()
    (root / "papers" / "benchmarks" / "__init__.py").touch()
    file = root / "papers" / "benchmarks" / "printing.py"
    file.write_text(PRINTS)
    return file


def test_a_benchmarks_values_are_kept_with_its_command_and_shown_in_three_digits(root, benchmark):
    define(root, LOOKED_UP)
    assert measure(["sizes", "printing", "--steps", "4"], root) == 0
    kept = json.loads(measured_file(root, "sizes").read_text())
    assert kept["result"]["overrides"] == ["--steps", "4"]
    text = written(root)
    assert "| F2I | 11.2 | - |" in text
    assert "| DGC, all | - | - |" in text
    assert "int8 takes 11.2 MB." in text
    assert "`python -m papers.benchmarks.printing --steps 4`" in text
    assert main(["--check"], root) == 0


def test_a_benchmark_that_has_not_run_has_no_page(root):
    define(root, LOOKED_UP)
    assert main([], root) == 0
    assert not (root / "papers" / "results" / "page.md").exists()
    assert "Sizes: not run yet" in (root / "docs" / "results.md").read_text()


@pytest.mark.parametrize(
    ("result", "shown"),
    [({"a": 0.0514}, "0.0514"), ({"a": 4}, "4"), ({"a": "lost"}, "lost"), ({}, "-"), ([1], "-")],
    ids=["float", "whole", "text", "nothing", "list"],
)
def test_a_table_looks_values_up_by_its_keys(result, shown):
    assert Measured("c", "", result).value(["a"]) == shown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("{f2i.small}", "{f2i.huge}"), "no column huge"),
        (("{f2i.small}", "{f3i.small}"), "no row f3i"),
        (("columns: {small", "heads: {small"), "no key heads; there are: benchmark, path"),
        (("id: dgc", "id: f2i"), "several rows with the id 'f2i'"),
        (("benchmark: sizes", "benchmark: ../sizes"), "a benchmark's name is letters"),
        (('{small: "net, 10", large: "net, 1,000"}', "[small]"), "list is not a subclass of Dict"),
    ],
    ids=["column", "row", "key", "twice", "name", "columns"],
)
def test_a_wrong_definition_is_refused_in_a_line(root, capsys, change, said):
    define(root, LOOKED_UP.replace(*change))
    assert main([], root) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "said"),
    [("print('a table')", "printed no JSON"), ("raise SystemExit(3)", "ended with code 3")],
    ids=["no_json", "failed"],
)
def test_a_benchmark_without_output_leaves_the_stored_values(root, benchmark, capfd, code, said):
    assert measure(["sizes", "printing"], root) == 0
    before = measured_file(root, "sizes").read_text()
    benchmark.write_text(code)
    assert measure(["sizes", "printing"], root) == 2
    assert said in capfd.readouterr().err
    assert measured_file(root, "sizes").read_text() == before


def test_an_unknown_benchmark_is_named(root, capsys):
    assert measure(["sizes", "absent"], root) == 2
    assert "no benchmark absent" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        measure(["sizes"], root)
    assert "NAME MODULE" in capsys.readouterr().err
