"""Every column of a table: the text that it makes from the runs of a row."""

import pytest

from edgewire.report.reader import ResultsError
from edgewire.report.runs import smoothed
from edgewire.report.table import COLUMNS, TableRow
from tests.report.sweeps import finals, made


def shown(column, *runs, **given):
    return COLUMNS[column].show(TableRow({}, runs, **given)).text


MEASURED = {"rounds": 9, "virtual_seconds": 90, "top5": 0.95, "sparsity": 0.5}
# name of a column -> its cell for a run with MEASURED, reach=70
CELLS = {
    "runs": "1",
    "accuracy": "80.00 %",
    "best accuracy": "90.00 %",
    "top5": "95.00 %",
    "loss": "0.1",
    "reached at": "20",
    "payloads until then": "20 MB",
    "payload an update": "20 kB",
    "sent up": "1 MB",
    "compression ratio up": "4.00",
    "sent down": "4 MB",
    "compression ratio down": "1.00",
    "updates": "50",
    "failed": "0",
    "time": "12 s",
    "virtual time": "1 min 30 s",
    "a round": "10 s",
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_shows_its_value(name):
    assert shown(name, made(**MEASURED), reach=70) == CELLS[name]


def test_means_over_seeds_have_a_deviation():
    runs = finals(0.80, 0.81, 0.79)
    assert shown("accuracy", *runs) == "80.00 ± 1.00 %"
    runs[1].result["accuracy"] = None
    assert shown("accuracy", *runs) == "79.50 ± 0.71 %"


@pytest.mark.parametrize("name", ["accuracy", "loss", "a round", "top5", "sent up"])
def test_a_number_that_no_run_has_is_a_dash(name):
    lacking = dict.fromkeys(("accuracy", "top5", "loss", "virtual_seconds"))
    run = made(**lacking)
    assert shown(name, run) == ("1 MB" if name == "sent up" else "-")


def test_a_sweeps_ratios_and_bytes_include_all_of_a_message():
    sent = {"uplink_bytes": 100, "uplink_bytes_float32": 400, "uplink_other_bytes": 100}
    runs = [made(seed=seed, **sent, uplink_header_bytes=50 * seed) for seed in range(2)]
    assert shown("sent up", *runs) == "225 B"
    assert shown("compression ratio up", *runs) == "2.22"  # 500 B / 225 B
    assert shown("payload an update", *runs) == "2 B"
    assert shown("compression ratio up", made(uplink_bytes=0)) == "-"


def test_accuracies_as_means_of_evaluations():
    run = made()
    found = smoothed(run, 2)
    assert [row["accuracy"] for row in found.history()] == pytest.approx([0.3, 0.7, 0.8, 0.75])
    assert [row["round"] for row in found.history()] == [10, 20, 30, 40]
    assert found.result["accuracy"] == pytest.approx(0.75)
    assert found.result["best_accuracy"] == pytest.approx(0.8)
    assert smoothed(run, 1) is run
    assert smoothed(made([0.5]), 2).result["accuracy"] == 0.5
    assert smoothed(made([None, None], evaluations=0), 2).result["accuracy"] is None


def test_means_of_an_incomplete_curve_are_refused():
    assert smoothed(made(evaluations=6), 1).result["accuracy"] == 0.8
    with pytest.raises(ResultsError, match="of its evaluations 5 are kept"):
        smoothed(made(evaluations=6), 2)


def test_an_accuracy_that_not_every_seed_reaches():
    runs = [made(), made([0.1, 0.2], seed=1), made([0.1, 0.2, 0.3, 0.7, 0.9], seed=2)]
    assert shown("payloads until then", *runs, reach=90) == "-"
    assert shown("payloads until then", runs[0], runs[2], reach=90) == "30 MB"
