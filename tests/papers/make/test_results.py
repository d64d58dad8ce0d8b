"""All pages of results are up to date; the command that writes the pages names mistakes."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from edgewire.conf.sweeper import jobs_of
from edgewire.report.runs import WITHOUT_EFFECT, in_order
from papers.make.definitions import BenchmarkTable, read_definitions
from papers.make.measured import measured_file, read_measured
from papers.make.results import main
from papers.make.run_archive import archive_file, read_archive
from papers.make.tables import FilledBenchmarkTable
from tests.papers.make.made_pages import PAGE, define, packed, unpacked, written

ROOT = Path(__file__).parents[3]


@pytest.mark.system
def test_every_page_in_the_repository_is_up_to_date(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out


@pytest.fixture(scope="module")
def pages():
    return read_definitions(ROOT)  # it takes a second


@pytest.mark.system
def test_definitions_are_found(pages):
    assert len(pages) == len(list((ROOT / "papers" / "pages").iterdir())) > 30


@cache  # several tables are of one experiment
def jobs_of_experiment(name, beside):
    """Return `seeds_of_jobs` of an experiment."""
    path = ROOT / "papers" / "experiments" / f"{name}.yaml"
    return seeds_of_jobs(OmegaConf.select(OmegaConf.load(path), "hydra.sweeper"), beside)


@cache
def archive_of(name):
    """Return the runs of an experiment."""
    return read_archive(archive_file(ROOT, name))


def tables_of(pages):
    """Return pairs of a page's name and one of its tables."""
    return [(page.name, table) for page in pages for table in page.tables]


@pytest.mark.system
def test_every_row_is_a_case_of_its_experiment(pages):
    for page, table in tables_of(pages):
        if isinstance(table, BenchmarkTable):
            continue
        jobs = jobs_of_experiment(table.experiment, table.beside)
        if table.heads_across():  # cells may be blank; no row and no column is
            cells = [[each in jobs for each in table.settings(row)] for row in table.rows]
            assert all(map(any, [*cells, *zip(*cells, strict=True)])), (page, table.id)
            continue
        assert table.all_settings() <= jobs.keys(), (page, table.id)


def test_every_value_of_a_benchmark_exists(pages):
    for page, table in tables_of(pages):
        if isinstance(table, BenchmarkTable):
            filled = FilledBenchmarkTable(
                table, read_measured(measured_file(ROOT, table.benchmark))
            )
            values = {filled.sentence(r.id, c) for r in table.rows for c in table.columns}
            assert "-" not in values, (page, table.id)


FEWER = {"adacomp_figure3", "synthetic_table1"}  # experiments with runs of over ten minutes


@pytest.mark.system
def test_every_row_has_all_seeds_of_its_experiment(pages):
    for page, table in tables_of(pages):
        if isinstance(table, BenchmarkTable) or table.experiment in FEWER or table.heads_across():
            continue
        jobs = jobs_of_experiment(table.experiment, table.beside)
        runs = archive_of(table.experiment)
        for row in table.rows:
            for settings in table.settings(row):
                kept = {run.seed for run in runs if run.settings == settings}
                assert kept >= jobs[settings], (page, table.id, row.label)


README = ROOT / "README.md"


def test_a_row_of_the_readme_has_the_numbers_of_its_page():
    """A row links a page; its numbers and intervals are in the same row of a table there."""
    text = README.read_text().partition("## What is measured")[2].partition("\n## ")[0]
    rows = re.findall(
        r"^\| \[.*\]\((.*)\).* \| (\S+) \| ([^|:]+)(: a loss)? \|$", text, re.MULTILINE
    )
    assert len(rows) == 5
    for page, times, difference, loss in rows:
        lines = (ROOT / page).read_text().splitlines()
        found = [line for line in lines if f"| {difference}" in line and f"| {times} |" in line]
        assert found, (page, times, difference)
        assert bool(loss) == (", noise" not in found[0]), page
    assert any(loss for *_, loss in rows)


def test_the_headline_of_the_readme_equals_its_page():
    readme = " ".join(README.read_text().split())
    found = read_measured(measured_file(ROOT, "carry_over")).result["edgewire"]
    page = (ROOT / "papers" / "results" / "carry_over.md").read_text()
    worst = f"{found['fedavg, worst points']:.2f}"
    (interval,) = set(re.findall(rf"\| {worst} ± ([\d.]+) \|", page))
    for sentence in (
        f"sends {found['up']:.1f} times fewer bytes up and",
        f"and {found['down']:.1f} times fewer down than FedAvg",
        f"is {found['fedavg, mean points']:.2f} ± {found['fedavg, half points']:.2f} points in the "
        f"mean, and {worst} ± {interval} points on the worst task",
        f"the worst loss is {-found['fedavg, worst percent']:.2f} %",
    ):
        assert sentence in readme
    (fixed,) = re.findall(r"loses (\d+) points on another task", readme)
    measured = read_measured(measured_file(ROOT, "carry_over")).result["fixed"]
    assert float(fixed) == round(-measured["fedavg, worst points"])


def test_the_benchmarks_page_has_the_compression_ratio_of_its_page():
    lines = (ROOT / "papers" / "results" / "f2i.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    times = next(row for row in rows if row[1] == "int8")[rows[0].index("compression ratio up")]
    page = (ROOT / "papers" / "benchmarks" / "README.md").read_text()
    assert f"updates are {times} times smaller" in page


def test_the_readme_is_short():
    assert len(README.read_text().split()) <= 900


def seeds_of_jobs(sweeper, beside=""):
    """Return the seeds of the sweeper's jobs, by their overrides in the form of a definition."""
    given = dict(word.split("=", 1) for word in beside.split())
    found = {}
    for words in jobs_of({"cases": sweeper.get("cases", [""])}, []):  # ~key=null removes a key
        overrides = dict(word.lstrip("+").split("=", 1) for word in words)
        params = sweeper.get("params", {}).items()
        free = {k: str(values).split(",") for k, values in params if k not in overrides}
        for values in product(*free.values()):
            every = overrides | dict(zip(free, values, strict=True)) | given
            kept = in_order({k: v for k, v in every.items() if not WITHOUT_EFFECT.fullmatch(k)})
            found.setdefault(kept, set()).update(map(int, every["seed"].split(",")))
    return found


def test_check_reports_differences_and_changes_nothing(ran, capsys):
    assert main(["--check"], ran) == 1
    out = capsys.readouterr().out
    assert [line.split(" is out")[0] for line in out.splitlines()] == [
        "papers/results/page.md", "docs/results.md",
    ]  # fmt: skip
    assert not (ran / "papers" / "results" / "page.md").exists()
    written(ran)
    assert main(["--check"], ran) == 0
    file = archive_file(ran, "e")
    file.write_bytes(packed(unpacked(file).replace('"accuracy": 0.825', '"accuracy": 0.835')))
    assert main(["--check"], ran) == 1


def test_a_page_without_a_run_is_not_written_and_one_that_lost_them_is_removed(ran):
    written(ran)
    archive_file(ran, "e").unlink()
    assert main(["--check"], ran) == 1
    assert main([], ran) == 0
    assert not (ran / "papers" / "results" / "page.md").exists()
    assert "* A page: not run yet\n" in (ran / "docs" / "results.md").read_text()
    assert main(["--check"], ran) == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{b.verdict}", "{d.verdict}", "{d.verdict}: no row d"),
        ("{b.verdict}", "{b.acuracy}", "no column acuracy"),
        ("{b.verdict}", "{b.verdict", "a brace without the other"),
        ("    against: a\n", "", "the column difference needs against"),
        ("    against: a\n", "    against: a\n    smooth: 0\n", "smooth must be a number above 0"),
        ("against: a", "against: d", "no row has the id d"),
        ("[paper", "[papers", "no column papers; there are: paper, accuracy"),
        ("setting:", "settings:", "no key settings; there are: title, claim"),
        ("title: A page\n", "", "title is missing"),
        ("experiment: e", "experiment: g", "no experiment g"),
        ("id: c", "id: b", "several rows with the id 'b'"),
        ("lr=3", "lr=1", "several rows with the overrides 'lr=1'"),
        ("id: c", "id: c.d", "an id is letters"),
        (PAGE, "- 1", "[1] must have the keys title, claim"),
        (PAGE, "a: [", "is no YAML"),
    ],
)
def test_a_mistake_in_a_definition_gives_one_line(ran, old, new, said, capsys):
    assert old in PAGE
    define(ran, PAGE.replace(old, new))
    assert main([], ran) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "page.yaml" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("file", "text", "words", "said"),
    [
        ("papers/results/page.md", "# By hand", [], "written by hand"),
        ("papers/results/other.md", "# By hand", ["--check"], "other.md has no definition"),
        ("docs/results.md", "# By hand", [], "docs/results.md needs the lines"),
        ("papers/runs/e.json.xz", "{}", [], "e.json.xz"),
    ],
)
def test_another_file_in_the_place_gives_one_line_and_stays(ran, capsys, file, text, words, said):
    (ran / file).write_text(text)
    assert main(words, ran) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert (ran / file).read_text() == text


def test_commands_name_a_folder_for_data_sets_that_are_files():
    pages = {file.stem: file.read_text() for file in (ROOT / "papers" / "results").glob("*.md")}
    assert "dataset.root=FOLDER" in " ".join(pages["few_bytes"].split())
    assert "dataset.root" not in pages["carry_over"]  # some of its tasks have no folder
    assert "dataset.root" not in pages["few_bytes_characters"]
