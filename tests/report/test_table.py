"""Sweeps are shown as tables: which jobs form a row, and the row's name and numbers."""

import json

import pytest

from report.runs import group_runs, read_runs, varying
from report.table import main
from tests.report.sweeps import add_job


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


def rows_of(text):
    """Return a Markdown table as one dict for each row, and the text after the table."""
    table, _, rest = text.partition("\n\n")
    lines = [[cell.strip() for cell in line.split(" | ")] for line in table.strip().splitlines()]
    lines = [[line[0].lstrip("| "), *line[1:-1], line[-1].rstrip("| ")] for line in lines]
    assert len({len(line) for line in lines}) == 1
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]], rest


def test_a_row_for_jobs_that_differ_in_the_seed_only(sweep, capsys):
    assert main([str(sweep)]) == 0
    rows, rest = rows_of(capsys.readouterr().out)
    assert rest == ""
    assert list(rows[0])[:4] == ["algorithm", "compression.drop", "batch_size", "runs"]
    names = [(r["algorithm"], r["compression.drop"], r["batch_size"], r["runs"]) for r in rows]
    assert names == [
        ("sgd", "-", "64", "1"), ("esgd", "0.25", "32", "2"), ("sgd", "-", "32", "3")
    ]  # fmt: skip
    assert not {"experiment", "seed", "engine.workers", "top5"} & set(rows[0])


def test_the_numbers_are_means_and_sample_deviations(sweep, capsys):
    main([str(sweep)])
    one, esgd, sgd = rows_of(capsys.readouterr().out)[0]
    assert one["accuracy"] == "50.00 %"
    assert sgd["accuracy"] == "98.00 ± 1.00 %"
    assert sgd["best accuracy"] == "99.00 ± 0.00 %"
    assert sgd["loss"] == "0.1"
    assert esgd["payload an update"] == "5 kB"
    assert esgd["sent up"] == "250 kB"
    assert esgd["compression ratio up"] == "16.00"
    assert esgd["sent down"] == "4 MB"
    assert esgd["compression ratio down"] == "1.00"
    assert (esgd["updates"], esgd["failed"]) == ("50", "0.5")
    assert esgd["time"] == "12 s"


def test_json_holds_the_numbers_and_every_seed(sweep, capsys):
    add_job(sweep / "20", "seed=7", finished=False)
    assert main([str(sweep), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unfinished"] == [str(sweep / "20")]
    sgd = found["rows"][2]
    assert sgd["overrides"] == {"algorithm": "sgd", "batch_size": "32"}
    assert sgd["seeds"] == [0, 1, 2]
    assert sgd["accuracy_by_seed"] == [0.98, 0.99, 0.97]
    assert sgd["accuracy"] == pytest.approx(0.98)
    assert sgd["accuracy_std"] == pytest.approx(0.01)
    assert sgd["uplink_ratio"] == 4


def test_ratios_use_all_bytes(tmp_path, capsys):
    sent = {"uplink_bytes": 100, "uplink_bytes_float32": 400, "uplink_other_bytes": 100}
    for seed in range(2):
        add_job(tmp_path / str(seed), "lr=1", seed=seed, **sent, uplink_note_bytes=50 * seed)
    assert main([str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["uplink_ratio"] == 1000 / 450
    main([str(tmp_path)])
    (shown,) = rows_of(capsys.readouterr().out)[0]
    assert (shown["sent up"], shown["compression ratio up"]) == ("225 B", "2.22")  # of 500 B
    assert shown["payload an update"] == "2 B"


def test_rows_are_named_by_the_given_keys(sweep, capsys):
    assert main([str(sweep), "--rows", "experiment,algorithm"]) == 0
    rows = rows_of(capsys.readouterr().out)[0]
    assert list(rows[0])[:3] == ["experiment", "algorithm", "runs"]
    assert [row["algorithm"] for row in rows] == ["sgd", "esgd", "sgd"]
    assert main([str(sweep), "--rows", "algorithm,dorp"]) == 2
    assert "no run has a word dorp=" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word",
    ["seed=1", "verbose=true", "engine=ray", "engine.workers=4", "hydra.job.name=x",
     "dataset.root=/x", "dataset.download=true"],
)  # fmt: skip
def test_overrides_without_an_effect_on_the_result_make_no_group(tmp_path, word):
    add_job(tmp_path / "0", "lr=1")
    add_job(tmp_path / "1", f"lr=1 {word}")
    assert len(group_runs(read_runs([tmp_path])[0])) == 1


@pytest.mark.parametrize("word", ["dataset=mnist", "dataset.size=8", "seeds=1", "+engineer=1"])
def test_any_other_override_makes_a_group(tmp_path, word):
    add_job(tmp_path / "0", "lr=1")
    add_job(tmp_path / "1", f"lr=1 {word}")
    groups = group_runs(read_runs([tmp_path])[0])
    assert varying(groups) == [word.lstrip("+").split("=")[0]]


def test_overrides_in_another_order_make_the_same_group(tmp_path):
    add_job(tmp_path / "0", "lr=1 batch_size=2 seed=0")
    add_job(tmp_path / "1", "seed=1 batch_size=2 lr=1")
    assert len(group_runs(read_runs([tmp_path])[0])) == 1


def test_a_repeated_run_counts_once_and_is_reported(tmp_path, capsys):
    add_job(tmp_path / "old" / "0", "lr=1", accuracy=0.5)
    add_job(tmp_path / "new" / "0", "lr=1", accuracy=0.6)
    assert main([str(tmp_path / "old"), str(tmp_path / "new"), str(tmp_path / "new" / "0")]) == 0
    rows, rest = rows_of(capsys.readouterr().out)
    assert [(row["runs"], row["accuracy"]) for row in rows] == [("1", "60.00 %")]
    assert rest.startswith("1 repeated")


def test_top5_and_null_values(tmp_path, capsys):
    add_job(tmp_path / "0", "lr=1 seed=0", top5=0.9, loss=None, accuracy=None)
    add_job(tmp_path / "1", "lr=1 seed=1", top5=0.8, loss=None, accuracy=0.5)
    add_job(tmp_path / "2", "lr=a|b", client_updates=0, uplink_bytes=0)
    assert main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    first, second = rows_of(text)[0]
    assert first["top5"] == "85.00 ± 7.07 %"
    assert (first["accuracy"], first["loss"]) == ("50.00 %", "-")
    assert (second["top5"], second["compression ratio up"]) == ("-", "-")
    assert "a\\|b" in text


def test_unfinished_jobs_are_listed(sweep, capsys):
    add_job(sweep / "20", "lr=9", finished=False)
    assert main([str(sweep)]) == 0
    rows, rest = rows_of(capsys.readouterr().out)
    assert len(rows) == 3
    assert rest.strip() == f"unfinished or damaged: {sweep / '20'}"


def test_no_finished_run_gives_one_line(tmp_path, capsys):
    add_job(tmp_path / "0", "lr=9", finished=False)
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert main([str(folder)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert len(printed.err.strip().splitlines()) == 1
        assert str(folder) in printed.err


def test_virtual_time_is_shown_if_a_run_has_it(tmp_path, capsys):
    add_job(tmp_path / "0", "nodes=4 seed=0", virtual_seconds=3.0, rounds=30)
    add_job(tmp_path / "1", "nodes=8 seed=0", virtual_seconds=6.0, rounds=30)
    main([str(tmp_path)])
    head, _, first, second = capsys.readouterr().out.splitlines()[:4]
    assert head.endswith("| virtual time | a round |")
    assert first.endswith("| 3 s | 0.1 s |")
    assert second.endswith("| 6 s | 0.2 s |")


DAMAGE = {
    "result.json": ['{"a": ', "{}", "[1]", ""],
    ".hydra/overrides.yaml": ["foo: [", "foo: 1"],
}


@pytest.mark.parametrize(("file", "text"), [(f, t) for f, texts in DAMAGE.items() for t in texts])
def test_a_damaged_run_is_left_out_and_named(sweep, capsys, file, text):
    (sweep / "0" / file).write_text(text)
    assert main([str(sweep)]) == 0
    rows, rest = rows_of(capsys.readouterr().out)
    assert sum(int(row["runs"]) for row in rows) == 5
    assert rest.strip() == f"unfinished or damaged: {sweep / '0'}"


def curve(*accuracies):
    return [
        {"round": 10 * n, "accuracy": accuracy, "uplink_bytes": 1000 * n}
        for n, accuracy in enumerate(accuracies, 1)
    ]


def test_moving_averages_end_peak_and_when_they_reach_an_accuracy(tmp_path, capsys):
    courses = {"sgd": [(0.5, None, 0.9, 0.7), (0.2, 0.8, 0.8, 0.9)], "esgd": [(0.5, 0.9), (0.5,)]}
    for algorithm, seeds in courses.items():
        for seed, accuracies in enumerate(seeds):
            overrides = f"algorithm={algorithm} seed={seed}"
            add_job(tmp_path / algorithm / str(seed), overrides, curve(*accuracies))
    assert main([str(tmp_path), "--smooth", "2", "--reach", "80"]) == 0
    esgd, sgd = rows_of(capsys.readouterr().out)[0]
    assert sgd["accuracy"].startswith("82.50")  # the mean of 0.9 and 0.7, and of 0.8 and 0.9
    assert sgd["best accuracy"].startswith("82.50")
    assert esgd["best accuracy"].startswith("60.00")  # the mean of 0.5 and 0.9, and of 0.5 alone
    assert (sgd["reached at"], sgd["payloads until then"]) == ("35", "3.5 kB")  # 40 and 30
    # Neither seed reached it.
    assert (esgd["reached at"], esgd["payloads until then"]) == ("-", "-")
    assert main([str(tmp_path), "--reach", "80"]) == 0  # single evaluations
    esgd, sgd = rows_of(capsys.readouterr().out)[0]
    # 30 and 20; one esgd seed did not reach it.
    assert (sgd["reached at"], esgd["reached at"]) == ("25", "-")
    assert main([str(tmp_path), "--reach", "95"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no run reached 95 %"
    assert main([str(tmp_path)]) == 0
    assert not {"reached at", "payloads until then"} & set(rows_of(capsys.readouterr().out)[0][0])


def test_a_missing_history_is_named(tmp_path, capsys):
    add_job(tmp_path / "0", "seed=0")
    (tmp_path / "0" / "history.jsonl").unlink()
    assert main([str(tmp_path), "--reach", "80"]) == 2
    assert "history.jsonl: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [{"uplink_bytes": None}, {"accuracy": "x"}, {"seed": [1]}, {"failures": "2"}, {"seconds": {}}],
)
def test_an_invalid_result_affects_its_own_row_only(damage, tmp_path, capsys):
    add_job(tmp_path / "0", "seed=0")
    add_job(tmp_path / "1", "seed=1", **damage)
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert rows_of(out)[0][0]["runs"] == "1"
    assert f"unfinished or damaged: {tmp_path / '1'}" in out


def test_without_evaluations_averages_and_targets_are_empty(tmp_path, capsys):
    add_job(tmp_path / "0", "seed=0", curve(None, None), accuracy=None)
    assert main([str(tmp_path), "--smooth", "2", "--reach", "80"]) == 0
    (row,) = rows_of(capsys.readouterr().out)[0]
    assert row["accuracy"] == "-"
    assert "reached at" not in row
