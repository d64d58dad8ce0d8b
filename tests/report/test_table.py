"""Sweeps are shown as tables: which runs form a row, how rows are named, and what is below them."""

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edgewire.report.table import COLUMNS, WIDTH, TableRow, main, sweep_table
from tests.report.made_runs import add_job, finals, made


@pytest.fixture
def sweep(tmp_path):
    """Return a sweep: one job, then a case with three seeds, then a case with two seeds."""
    folder = tmp_path / "sweep"
    add_job(folder / "0", "algorithm=sgd batch_size=64 seed=0 experiment=e", accuracy=0.5)
    for seed, accuracy in enumerate((0.98, 0.99, 0.97)):
        overrides = f"algorithm=sgd batch_size=32 seed={seed} experiment=e engine.workers={seed}"
        add_job(folder / str(seed + 9), overrides, accuracy=accuracy)
    for seed, up in enumerate((200_000, 300_000)):
        overrides = f"algorithm=esgd compression.drop=0.25 batch_size=32 seed={seed} experiment=e"
        add_job(folder / str(seed + 1), overrides, uplink_bytes=up, failures=seed)
    return folder


@pytest.fixture
def printed(capsys):
    """Return a function: the rows that a command prints, as dicts, and the text below them."""

    def rows_of(*arguments):
        assert main([*map(str, arguments), "--wide"]) == 0
        table, _, rest = capsys.readouterr().out.partition("\n\n")
        lines = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()]
        lines = [[line[0].lstrip("| "), *line[1:-1], line[-1].rstrip("| ")] for line in lines]
        assert len({len(line) for line in lines}) == 1
        return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]], rest

    return rows_of


def test_a_row_for_runs_that_differ_in_the_seed_only(sweep, printed):
    rows, rest = printed(sweep)
    assert rest == ""
    assert list(rows[0]) == [
        "algorithm", "batch_size", "compression.drop", "runs", "accuracy", "best accuracy", "loss",
        "payload an update", "ratio up", "ratio down", "sent up", "sent down", "updates", "failed",
        "time",
    ]  # fmt: skip
    names = [(r["algorithm"], r["compression.drop"], r["batch_size"], r["runs"]) for r in rows]
    assert names == [
        ("sgd", "-", "64", "1"), ("esgd", "0.25", "32", "2"), ("sgd", "-", "32", "3")
    ]  # fmt: skip
    assert [row["accuracy"] for row in rows] == ["50.00 %", "98.00 ± 0.00 %", "98.00 ± 1.00 %"]
    assert (rows[1]["sent up"], rows[1]["failed"]) == ("250 kB", "0.5")


def test_a_table_has_the_main_columns(sweep, capsys):
    assert main([str(sweep)]) == 0
    heads = [head.strip() for head in capsys.readouterr().out.splitlines()[0].split("|")]
    assert heads[4:-1] == [
        "runs", "accuracy", "ratio up", "ratio down", "sent up", "sent down", "time"
    ]  # fmt: skip


def test_repeated_diverged_and_unfinished_runs_are_listed(tmp_path, printed):
    add_job(tmp_path / "old" / "0", "lr=a|b", accuracy=0.5)
    add_job(tmp_path / "new" / "0", "lr=a|b", accuracy=0.6, diverged=True)
    add_job(tmp_path / "new" / "1", "lr=9", finished=False)
    add_job(tmp_path / "new" / "2", "lr=2")
    rows, rest = printed(tmp_path / "old", tmp_path / "new", tmp_path / "new" / "0")
    assert [(row["lr"], row["runs"], row["accuracy"]) for row in rows] == [
        ("a\\|b", "1", "60.00 %"),
        ("2", "1", "98.00 %"),
    ]
    assert rest.splitlines() == [
        "1 repeated with the same seed: the last counts",
        "",
        f"diverged: {tmp_path / 'new' / '0'}",
        "",
        f"unfinished or damaged: {tmp_path / 'new' / '1'}",
    ]


def test_a_mistake_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr() == ("", f"error: no finished run in {tmp_path}\n")
    add_job(tmp_path / "0", "seed=0")
    (tmp_path / "0" / "history.jsonl").unlink()
    assert main([str(tmp_path), "--reach", "80"]) == 2
    assert capsys.readouterr().err.endswith("history.jsonl: No such file or directory\n")


def test_a_column_that_no_run_has_is_left_out(tmp_path, printed):
    add_job(tmp_path / "0", "nodes=4", virtual_seconds=3.0, rounds=30)
    rows, _ = printed(tmp_path)
    assert (rows[0]["virtual time"], rows[0]["a round"]) == ("3 s", "0.1 s")
    add_job(tmp_path / "1", "nodes=8", top5=0.9)
    first, second = printed(tmp_path)[0]
    assert (first["virtual time"], first["top5"]) == ("3 s", "-")
    assert (second["virtual time"], second["a round"], second["top5"]) == ("-", "-", "90.00 %")


def curve(*accuracies):
    return [
        {"round": 10 * n, "accuracy": accuracy, "uplink_bytes": 1000 * n}
        for n, accuracy in enumerate(accuracies, 1)
    ]


def test_when_the_runs_of_a_row_reach_an_accuracy(tmp_path, printed):
    courses = {"sgd": [(0.5, None, 0.9, 0.7), (0.2, 0.8, 0.8, 0.9)], "esgd": [(0.5, 0.9), (0.5,)]}
    for algorithm, seeds in courses.items():
        for seed, accuracies in enumerate(seeds):
            overrides = f"algorithm={algorithm} seed={seed}"
            add_job(tmp_path / algorithm / str(seed), overrides, curve(*accuracies))
    esgd, sgd = printed(tmp_path, "--reach", "80")[0]
    assert (sgd["reached at"], sgd["payloads until then"]) == ("25", "2.5 kB")  # 30 and 20
    assert esgd["reached at"] == "-"  # one seed did not reach it
    for options in ([], ["--reach", "95"]):
        assert not {"reached at", "payloads until then"} & set(printed(tmp_path, *options)[0][0])


ODD = (None, True, "x", 5, -1, 10**400, 1e308, float("nan"), float("inf"), [], [1], {}, {"a": 1})
TEXTS = ("- [1, 2]", "- null", "true", "1.5", "&a [*a]", "a: 1", "- 'a=<b>'", "- 'x'", "{", "")


@given(st.data())
def test_a_damaged_run_costs_a_line_and_never_the_table(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    add_job(folder / "0", "lr=1 seed=0", history=curve(0.5, 0.6))
    add_job(folder / "1", "lr=2 seed=0", history=curve(0.5, 0.6))
    result, history, overrides = (
        folder / "1" / name for name in ("result.json", "history.jsonl", ".hydra/overrides.yaml")
    )
    what = data.draw(st.sampled_from(["result", "history", "overrides", "a folder"]))
    if what == "result":
        values = json.loads(result.read_text())
        key = data.draw(st.sampled_from(sorted(values)))
        result.write_text(json.dumps({**values, key: data.draw(st.sampled_from(ODD))}))
    elif what == "history":
        rows = [json.loads(line) for line in history.read_text().splitlines()]
        key = data.draw(st.sampled_from(sorted(rows[0])))
        rows[0][key] = data.draw(st.sampled_from(ODD))
        history.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif what == "overrides":
        overrides.write_text(data.draw(st.sampled_from(TEXTS)))
    else:
        result.unlink()
        result.mkdir()
    for options in ([], ["--reach", "50"]):
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as errors:
            code = main([str(folder), *options])
        line = errors.getvalue()
        left_out = line.startswith("left out: ")
        assert (code, line.count("\n")) in ((0, left_out), (2, 1))
        assert code == 0 or (what == "history" and f"{history}: line 1" in line)
        assert code == 2 or "accuracy" in out.getvalue()


def lines_of(folder):
    """Return the lines of the table of all jobs in a folder; none without a table."""
    out = StringIO()
    if (table := sweep_table(sorted(folder.iterdir()))) is not None:
        Console(width=WIDTH, file=out).print(table)
    return out.getvalue().splitlines()


def test_runs_of_other_seeds_are_one_row(tmp_path):
    for job, (lr, seed, accuracy) in enumerate([(1, 0, 0.5), (1, 1, 0.7), (2, 0, 0.9)]):
        words = f"optimizer.lr={lr} seed={seed}"
        add_job(tmp_path / str(job), words, accuracy=accuracy, uplink_bytes=100_000 * lr)
    above, heads, *rows = lines_of(tmp_path)
    assert above.split() == ["ratio", "ratio", "sent", "sent"]
    assert heads.split() == ["lr", "runs", "accuracy", "up", "down", "up", "down", "time"]
    assert [row.split()[:6] for row in rows] == [
        ["1", "2", "60.00", "±", "14.14", "%"],
        ["2", "1", "90.00", "%", "20.00", "1.00"],
    ]


@pytest.mark.parametrize("finished", [0, 1])
def test_fewer_than_two_finished_runs_have_no_table(tmp_path, finished):
    for job in range(2):
        add_job(tmp_path / str(job), f"lr={job}", finished=job < finished)
    assert lines_of(tmp_path) == []


# Columns


def shown(column, *runs, **given):
    return COLUMNS[column].show(TableRow({}, runs, **given)).text


# name of a column -> its cell for a run with these values, reach=70
MEASURED = {"rounds": 9, "virtual_seconds": 90, "top5": 0.95, "sparsity": 0.5}
MEASURED["epsilon"] = 7.044
CELLS = {
    **{"runs": "1", "accuracy": "80.00 %", "best accuracy": "90.00 %", "top5": "95.00 %"},
    **{"loss": "0.1", "reached at": "20", "payloads until then": "20 MB"},
    **{"payload an update": "20 kB", "ratio up": "4.00", "ratio down": "1.00"},
    **{"sent up": "1 MB", "sent down": "4 MB", "updates": "50", "failed": "0"},
    "epsilon": "7.04",
    **{"virtual time": "1 min 30 s", "a round": "10 s", "time": "12 s"},
}


def test_every_column_shows_its_value():
    run = made(**MEASURED)
    assert {name: shown(name, run, reach=70) for name in COLUMNS} == CELLS


def test_means_over_seeds_have_a_deviation():
    runs = finals(0.80, 0.81, 0.79)
    assert shown("accuracy", *runs) == "80.00 ± 1.00 %"
    runs[1].result["accuracy"] = None
    assert shown("accuracy", *runs) == "79.50 ± 0.71 %"


def test_a_number_that_no_run_has_is_a_dash():
    run = made(**dict.fromkeys(("accuracy", "top5", "loss", "virtual_seconds")))
    for name in ("accuracy", "loss", "a round", "top5"):
        assert shown(name, run) == "-"


def test_a_sweeps_ratios_and_bytes_include_all_of_a_message():
    sent = {"uplink_bytes": 100, "uplink_bytes_float32": 400, "uplink_other_bytes": 100}
    runs = [made(seed=seed, **sent, uplink_header_bytes=50 * seed) for seed in range(2)]
    assert shown("sent up", *runs) == "225 B"
    assert shown("ratio up", *runs) == "2.22"  # 500 B / 225 B
    assert shown("payload an update", *runs) == "2 B"
    assert shown("ratio up", made(uplink_bytes=0)) == "-"
