"""Pages of results: what a table shows, what its texts say, and that every page is up to date."""

import json
import random
import re
from itertools import product
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from conf.sweeper import split_case
from report.definitions import read_definitions
from report.jobs import ResultsError
from report.kept import in_order, kept_file, read_kept
from report.kept import main as keep
from report.results import BEGIN, END, main, outputs
from tests.report.sweeps import add_job

ROOT = Path(__file__).parents[2]
PAGE = """
title: A page
claim: "B is {b.verdict} A: {b.difference}."
setting: Made up.
tables:
  - experiment: e
    against: a
    columns: [paper, accuracy, difference, seeds]
    rows:
      - {id: a, label: A, words: lr=1, paper: "99.0"}
      - {id: b, label: B, words: momentum=true lr=2}
      - {id: c, label: C, words: lr=3}
"""
ACCURACIES = {"lr=1": (0.80, 0.81, 0.79), "lr=2 momentum=True": (0.81, 0.825, 0.80)}


def test_every_page_in_the_repository_is_up_to_date(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("page", read_definitions(ROOT), ids=lambda page: page.name)
def test_every_row_is_a_case_of_its_experiment(page):
    for table in page.tables:
        path = ROOT / "conf" / "experiment" / f"{table.experiment}.yaml"
        sweeper = OmegaConf.select(OmegaConf.load(path), "hydra.sweeper")
        assert set().union(*(row.all_words for row in table.rows)) <= words_of_jobs(sweeper)


def words_of_jobs(sweeper):
    """Return what the sweeper's jobs are called, as rows of definitions are."""
    found = set()
    for case in sweeper.get("cases", [""]):
        words = dict(word.split("=", 1) for word in split_case(case))
        params = sweeper.get("params", {}).items()
        free = {k: str(values).split(",") for k, values in params if k not in words}
        for values in product(*free.values()):
            every = words | dict(zip(free, values, strict=True))
            every.pop("seed", None)
            found.add(in_order(every))
    return found


@pytest.fixture
def root(tmp_path):
    """A repository's folder with the experiments `e` and `f`, no run and no page."""
    for folder in ("conf/experiment", "report/pages", "docs/results"):
        (tmp_path / folder).mkdir(parents=True)
    for name in "ef":
        (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text("")
    (tmp_path / "docs" / "results.md").write_text(f"# By hand\n\n{BEGIN}\n{END}\n\nMore.\n")
    return tmp_path


@pytest.fixture
def ran(root):
    """The same with a definition, and runs of two of its rows."""
    define(root, PAGE)
    run(root, ACCURACIES)
    return root


def define(root, text, name="page"):
    (root / "report" / "pages" / f"{name}.yaml").write_text(text)


def run(root, accuracies, experiment="e", **result):
    """Run and keep seeds 0, 1 and so on of each words, in any order."""
    jobs = [(words, *seed) for words, of in accuracies.items() for seed in enumerate(of)]
    random.shuffle(jobs)
    sweep = root / f"sweep{len(list(root.glob('sweep*')))}"
    for number, (words, seed, accuracy) in enumerate(jobs):
        every = f"experiment={experiment} {words} seed={seed}"
        add_job(sweep / str(number), every, accuracy=accuracy, rounds=9, **result)
    assert keep([experiment, str(sweep)], root) == 0


def written(root, name="page"):
    assert main([], root) == 0
    return (root / "docs" / "results" / f"{name}.md").read_text()


def rows_of(text):
    """Return the first table's rows by their labels, a dict of columns each."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines]
    return {row[0]: dict(zip(cells[0][1:], row[1:], strict=True)) for row in cells[2:]}


def test_a_table_has_means_intervals_and_differences_of_equal_seeds(ran):
    rows = rows_of(written(ran))
    assert rows["A"]["paper"] == "99.0"
    assert rows["A"]["accuracy, %"] == "80.00 ± 2.48"  # 4.303 * 1 / sqrt(3)
    assert rows["A"]["points against A"] == ""
    assert rows["B"]["points against A"] == "1.17 ± 0.72"  # of 1, 1.5 and 1
    assert rows["B"]["seeds"] == "0, 1, 2"


def test_sentences_are_made_from_the_numbers_on_the_page_and_in_the_index(ran):
    claim = "B is above A: 1.17 ± 0.72 points."
    assert claim in written(ran)
    index = (ran / "docs" / "results.md").read_text()
    assert f"[A page](results/page.md): {claim}" in index
    assert index.startswith("# By hand\n")
    assert index.endswith("\n\nMore.\n")


@pytest.mark.parametrize(
    ("ours", "verdict", "cell"),
    [
        ((0.79, 0.80, 0.78), "below", "-1.00 ± 0.00"),
        ((0.80, 0.81, 0.79), "within the noise of", "0.00 ± 0.00, noise"),
        ((0.81, 0.80, 0.80), "within the noise of", "0.33 ± 2.87, noise"),
        ((0.81,), "not yet told apart from", "1.00 (one seed)"),
    ],
)
def test_a_difference_is_called_what_it_is(root, ours, verdict, cell):
    define(root, PAGE)
    run(root, ACCURACIES | {"lr=2 momentum=True": ours})
    text = written(root)
    assert f"B is {verdict} A" in text
    assert rows_of(text)["B"]["points against A"] == cell


def test_one_seed_is_marked_and_what_has_not_run_is_said(root):
    define(root, PAGE)
    run(root, {"lr=1": (0.8,)})
    text = written(root)
    rows = rows_of(text)
    assert rows["A"]["accuracy, %"] == "80.00 (one seed)"
    assert rows["A"][""] == ""
    assert rows["C"] == {
        "paper": "-", "accuracy, %": "", "points against A": "", "seeds": "", "": "not run yet",
    }  # fmt: skip
    assert "B is not run yet A: not run yet." in text


def test_diverged_runs_and_failures_are_in_their_row(ran):
    run(ran, {"lr=3": (0.1, None)}, diverged=True, failures=2)
    row = rows_of(written(ran))["C"]
    assert row[""] == "2 of 2 diverged, 4 failures"
    assert row["accuracy, %"] == "10.00 (1 of 2 runs)"


def test_what_is_kept_and_in_no_table_of_any_page_is_listed(ran):
    assert "in no table" not in written(ran)
    run(ran, {"lr=4 momentum=True": (0.5,), "lr=5": (0.5,)})
    text = written(ran)
    assert "Kept of `e`, and in no table:\n\n* `lr=4 momentum=True`\n* `lr=5`\n" in text
    define(ran, PAGE.replace("lr=3", "lr=5"), "other")
    assert "* `lr=5`" not in written(ran)
    assert "* `lr=4 momentum=True`" in written(ran)


def test_every_column_shows_something(ran):
    columns = ["best accuracy", "top5", "loss", "rounds", "updates", "uplink", "downlink",
               "uplink an update", "downlink an update", "times smaller up", "times smaller down",
               "virtual time", "minutes", "verdict"]  # fmt: skip
    define(ran, PAGE.replace("paper, accuracy, difference, seeds", ", ".join(columns)))
    assert list(rows_of(written(ran))["A"].values()) == [
        "99.00 ± 0.00", "-", "0.100 ± 0.000", "9", "50", "1 MB", "4 MB", "20 kB", "80 kB", "4.00",
        "1.00", "-", "0.2", "within the noise of", "",
    ]  # fmt: skip


def test_the_command_and_the_commit_are_below_the_table(ran):
    file = kept_file(ran, "e")
    file.write_text(re.sub('"commit": "[^"]*"', '"commit": "abc1234+"', file.read_text()))
    assert "\n`python run.py -m experiment=e dataset.root=FOLDER`, at `abc1234+`\n" in written(ran)


def test_several_tables_are_told_apart(ran):
    tables = PAGE.split("tables:\n")[1]
    first = tables.replace("  - experiment: e", "  - id: one\n    title: One\n    experiment: e")
    second = tables.replace("  - experiment: e", "  - id: two\n    title: Two\n    experiment: f")
    head = PAGE.split("tables:\n")[0].replace("b.", "one.b.")
    define(ran, f"{head}tables:\n{first}{second}notes: ['{{two.a.label}}: {{two.a.accuracy}}.']")
    text = written(ran)
    assert "## One\n" in text
    assert "## Two\n" in text
    assert "\nA: not run yet.\n" in text
    assert "B is above A" in text


def test_words_common_to_a_table_go_to_each_row(root):
    define(root, PAGE.replace("    against", "    words: nodes=4\n    against"))
    run(root, {"nodes=4 lr=1": (0.8,)})
    assert rows_of(written(root))["A"]["seeds"] == "0"


def test_a_table_across_a_key_shows_the_highest_in_bold(root):
    table = PAGE.replace("    columns: [paper, accuracy, difference, seeds]\n", "    across: "
                         "{key: lr, values: [1, 2]}\n").replace("    against: a\n", "")  # fmt: skip
    table = table.replace('"B is {b.verdict} A: {b.difference}."', "A claim.")
    rows = "".join(f"      - {{id: {n}, label: {n}, words: m={n}}}\n" for n in "xy")
    define(root, table[: table.index("      - {id: a")] + rows)
    run(root, {"m=x lr=1": (0.7,), "m=x lr=2": (0.8,), "m=y lr=1": (0.9,)})
    page = written(root)
    found = rows_of(page)
    assert found["x"] == {"lr 1": "70.00", "lr 2": "**80.00**"}
    assert found["y"] == {"lr 1": "**90.00**", "lr 2": ""}
    assert "in no table" not in page


def test_check_says_what_differs_and_changes_nothing(ran, capsys):
    assert main(["--check"], ran) == 1
    out = capsys.readouterr().out
    assert [line.split(" is out")[0] for line in out.splitlines()] == [
        "docs/results/page.md", "docs/results.md",
    ]  # fmt: skip
    assert not (ran / "docs" / "results" / "page.md").exists()
    written(ran)
    assert main(["--check"], ran) == 0
    file = kept_file(ran, "e")
    file.write_text(file.read_text().replace('"accuracy": 0.825', '"accuracy": 0.835'))
    assert main(["--check"], ran) == 1


def test_a_page_without_a_run_is_not_written_and_one_that_lost_them_is_removed(ran):
    written(ran)
    kept_file(ran, "e").unlink()
    assert main(["--check"], ran) == 1
    assert main([], ran) == 0
    assert not (ran / "docs" / "results" / "page.md").exists()
    assert "* A page: not run yet\n" in (ran / "docs" / "results.md").read_text()
    assert main(["--check"], ran) == 0


def test_a_page_that_a_person_wrote_is_not_overwritten(ran, capsys):
    page = ran / "docs" / "results" / "page.md"
    page.write_text("# By hand\n")
    assert main([], ran) == 2
    assert "written by hand" in capsys.readouterr().err
    assert page.read_text() == "# By hand\n"


def test_a_picture_shows_each_row_in_both_directions_and_is_drawn_anew(ran):
    pytest.importorskip("matplotlib")
    define(ran, PAGE.replace("    against", "    picture: true\n    against"))
    assert "![accuracy against bytes](page.png)" in written(ran)
    picture = ran / "docs" / "results" / "page.png"
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG")
    (points,) = [o.content for o in outputs(ran) if o.file == picture]
    assert [(p.label, p.accuracy, p.sent) for p in points] == [
        ("A", pytest.approx(80), (1e6, 4e6)), ("B", pytest.approx(81.17, abs=0.01), (1e6, 4e6)),
    ]  # fmt: skip
    run(ran, {"lr=3": (0.7, 0.6)})
    assert main(["--check"], ran) == 1
    written(ran)
    assert picture.read_bytes() != first
    assert main(["--check"], ran) == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{b.verdict}", "{d.verdict}", "{d.verdict}: no row d"),
        ("{b.verdict}", "{b.acuracy}", "no column acuracy"),
        ("{b.verdict}", "{b}", "must be {row.column}"),
        ("    against: a\n", "", "the column difference needs against"),
        ("against: a", "against: d", "no row has the id d"),
        ("[paper", "[papers", "no column papers; there are: paper, accuracy"),
        ("setting:", "settings:", "a page has no settings"),
        ("title: A page\n", "", "a page needs title"),
        ("experiment: e", "experiment: g", "no experiment g"),
        ("id: c", "id: b", "several rows with the id 'b'"),
        ("lr=3", "lr=1", "several rows with the words 'lr=1'"),
        ("lr=3", "lr", "lr is not KEY=VALUE"),
        ("id: c", "id: c.d", "an id is letters"),
        ("[paper, accuracy, difference, seeds]", "accuracy", "columns must be a list"),
        ("title: A page", "title: [A, page]", "must be a text"),
        ("{id: c, label: C, words: lr=3}", "c", "a row must have the keys"),
        (PAGE, "- 1", "a page must have the keys"),
        (PAGE, "a: [", "is no YAML"),
    ],
)
def test_a_mistake_in_a_definition_is_one_line(ran, old, new, said, capsys):
    assert old in PAGE
    define(ran, PAGE.replace(old, new))
    assert main([], ran) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "page.yaml" in err
    assert len(err.splitlines()) == 1


def test_an_index_without_its_place_is_one_line(ran, capsys):
    (ran / "docs" / "results.md").write_text("# By hand\n")
    assert main([], ran) == 2
    assert "docs/results.md needs the lines" in capsys.readouterr().err


def test_a_damaged_kept_file_is_one_line(ran):
    kept_file(ran, "e").write_text(json.dumps({"runs": [{}]}))
    with pytest.raises(ResultsError, match=r"e\.json is no file of kept runs"):
        outputs(ran)


def test_words_are_the_same_however_they_are_written():
    assert in_order({"b": "true", "a": "1e-3"}) == in_order({"a": "0.001", "b": "True"})
    assert in_order({"a": "[1, 2]"}) == in_order({"a": "[1,2]"})
    assert in_order({"a": "1,2"}) == "a=1,2"


def test_the_pages_are_the_same_however_runs_were_kept(ran):
    text = written(ran)
    for _ in range(3):
        runs = json.loads(kept_file(ran, "e").read_text())
        random.shuffle(runs["runs"])
        kept_file(ran, "e").write_text(json.dumps(runs))
        assert len(read_kept(kept_file(ran, "e"))) == 6
        assert written(ran) == text
