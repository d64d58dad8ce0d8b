"""Pages of results: their tables, texts and pictures."""

import json
import random
import re

import pytest

from report.results import main, outputs
from report.run_archive import archive_file
from report.runs import read_archive
from tests.report.made_pages import ACCURACIES, PAGE, define, rows_of, run, written

CLAIM = '"B is {b.verdict} A: {b.difference}."'


def test_a_table_has_means_intervals_and_differences_of_equal_seeds(ran):
    rows = rows_of(written(ran))
    assert rows["A"]["paper's accuracy, %"] == "99.0"
    assert rows["A"]["accuracy, %"] == "80.00 ± 2.48"  # 4.303 * 1 / sqrt(3)
    assert rows["A"]['difference from "A", points'] == ""
    assert rows["B"]['difference from "A", points'] == "1.17 ± 0.72"  # the mean of 1, 1.5 and 1
    assert rows["B"]["applied updates"] == "50"


def test_sentences_are_made_from_the_numbers_on_the_page_and_in_the_index(ran):
    claim = "B is above A: 1.17 ± 0.72 points."
    assert claim in written(ran)
    index = (ran / "docs" / "results.md").read_text()
    assert f"[A page](results/page.md): {claim}" in index
    assert index.startswith("# By hand\n")
    assert index.endswith("\n\nMore.\n")


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


def test_diverged_runs_and_failed_replies_are_in_their_row(ran):
    run(ran, {"lr=3": (0.1, None)}, diverged=True, failures=2)
    row = rows_of(written(ran))["C"]
    assert row["remarks"] == "2 of 2 runs diverged, 4 failed replies"
    assert row["accuracy, %"] == "10.00 (1 of 2 runs)"


def test_a_page_explains_only_what_its_tables_have(ran):
    text = " ".join(written(ran).split())
    assert "± is half of a 95 % interval" in text
    assert '"difference from X, points"' in text
    for other in ('"Bytes up"', '"compression ratio"', "failed reply", "diverged"):
        assert other not in text
    define(
        ran,
        PAGE.replace("difference, updates", "uplink, compression ratio up").replace(CLAIM, "A."),
    )
    run(ran, {"lr=3": (0.1,)}, diverged=True, failures=2)
    text = " ".join(written(ran).split())
    assert '"difference from X, points"' not in text
    for other in (
        '"Bytes up"',
        '"compression ratio"',
        "A failed reply is",
        "when a run has diverged",
    ):
        assert other in text


def test_kept_runs_that_no_table_shows_are_listed(ran):
    assert "in no table" not in written(ran)
    run(ran, {"lr=4 momentum=True": (0.5,), "lr=5": (0.5,)})
    text = written(ran)
    assert "Stored runs of `e` that are in no table:\n\n* `lr=4 momentum=True`\n* `lr=5`\n" in text
    define(ran, PAGE.replace("lr=3", "lr=5"), "other")
    assert "* `lr=5`" not in written(ran)
    assert "* `lr=4 momentum=True`" in written(ran)


def test_command_commits_cpus_and_seeds_are_below_the_table(ran):
    file = archive_file(ran, "e")
    text = re.sub('"commit": "[^"]*"', '"commit": "abc1234+"', file.read_text())
    file.write_text(text)
    command = "Command: `python run.py -m experiment=e dataset.root=FOLDER`."
    below = f"{command} Commit: `abc1234+`. Runs: 3 seeds. ±"
    assert below in " ".join(written(ran).split())
    text = text.replace("abc1234+", "def5678", 1).replace('"cpu": ""', '"cpu": "AVX2"', 1)
    file.write_text(text)
    below = f"{command} Commits: `abc1234+`, `def5678`. CPU: AVX2; some runs did not record it."
    assert f"{below} Runs:" in " ".join(written(ran).split())


def test_several_tables_are_separate(ran):
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


def test_a_table_across_a_key_shows_the_highest_in_bold(root):
    table = PAGE.replace("    columns: [paper, accuracy, difference, updates]\n", "    across: "
                         "{key: lr, values: [1, 2]}\n").replace("    against: a\n", "")  # fmt: skip
    table = table.replace(CLAIM, "A claim.")
    rows = "".join(f"      - {{id: {n}, label: {n}, overrides: m={n}}}\n" for n in "xy")
    define(root, table[: table.index("      - {id: a")] + rows)
    run(root, {"m=x lr=1": (0.7,), "m=x lr=2": (0.8,), "m=y lr=1": (0.9,)})
    page = written(root)
    found = rows_of(page)
    assert found["x"] == {"lr 1": "70.00", "lr 2": "**80.00**"}
    assert found["y"] == {"lr 1": "**90.00**", "lr 2": ""}
    assert "in no table" not in page
    below = " ".join(page.split())
    assert "Runs: one seed. The highest accuracy of a row is bold." in below
    assert "Settings with a blank cell were not run." in below
    run(root, {"m=x lr=2": (0.8, 0.7, 0.9)})
    page = written(root)
    assert rows_of(page)["x"] == {"lr 1": "70.00", "lr 2": "**80.00 ± 24.84**"}
    assert "Runs: 3 seeds; a value without ± is from one seed." in " ".join(page.split())


def test_a_table_across_settings_marks_no_highest(root):
    across = "    across: {overrides: {all: '', ten of a hundred: nodes=100 fraction=0.1}}\n"
    table = PAGE.replace("    columns: [paper, accuracy, difference, updates]\n", across)
    define(root, table.replace("    against: a\n", "").replace(CLAIM, "A claim."))
    run(root, {"lr=1": (0.7, 0.7), "lr=1 nodes=100 fraction=0.1": (0.6, 0.62)})
    found = rows_of(written(root))["A"]
    assert found == {"all": "70.00 ± 0.00", "ten of a hundred": "61.00 ± 12.71", "remarks": ""}


def test_a_table_across_settings_shows_its_column_and_texts_can_name_its_cells(root):
    across = "    across: {overrides: {slow: '', fast: link=fast, none: link=none}}\n"
    table = PAGE.replace("[paper, accuracy, difference, updates]\n", "[time a round]\n" + across)
    claim = "From {a.slow} to {a.fast}, then {a.none}."
    define(root, table.replace("    against: a\n", "").replace(CLAIM, claim))
    run(root, {"lr=1": (0.7,)}, virtual_seconds=90)
    run(root, {"lr=1 link=fast": (0.7,)}, virtual_seconds=4.5)
    text = written(root)
    assert rows_of(text)["A"] == {"slow": "10 s", "fast": "0.5 s", "none": "", "remarks": ""}
    assert "From 10 s to 0.5 s, then not run yet." in text


def test_overrides_of_a_table_apply_to_each_row_and_those_beside_are_in_the_command(root):
    given = "    beside: dataset=imagefolder\n    overrides: nodes=4\n    against"
    define(root, PAGE.replace("    against", given))
    every = "nodes=4 dataset=imagefolder"
    run(root, {f"{overrides} {every}": of for overrides, of in ACCURACIES.items()})
    text = written(root)
    assert rows_of(text)["A"]["accuracy, %"] == "80.00 ± 2.48"
    assert "`python run.py -m experiment=e dataset=imagefolder dataset.root=FOLDER`" in text


def test_a_picture_shows_each_row_in_both_directions_and_is_drawn_anew(ran):
    pytest.importorskip("matplotlib")
    define(ran, PAGE.replace("    against", "    picture: points\n    against"))
    assert "![accuracy against bytes](page.png)" in written(ran)
    picture = ran / "docs" / "results" / "page.png"
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


def test_pages_do_not_depend_on_the_order_of_kept_runs(ran):
    text = written(ran)
    for _ in range(3):
        runs = json.loads(archive_file(ran, "e").read_text())
        random.shuffle(runs["runs"])
        archive_file(ran, "e").write_text(json.dumps(runs))
        assert len(read_archive(archive_file(ran, "e"))) == 6
        assert written(ran) == text
