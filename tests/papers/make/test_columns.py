"""Every column of a page's table: the text that it makes from the runs of a row."""

import pytest

from edgewire.report.reader import ResultsError
from edgewire.report.runs import BESIDE
from papers.make.columns import COLUMNS, PageRow
from papers.make.tables import smoothed
from tests.report.made_runs import finals, made


def shown(column, *runs, **given):
    return COLUMNS[column].show(PageRow({}, runs, **given)).cell


CURVE = {
    "uplink_entries": [0, 100, 101, 102, 103],
    "uplink_entries_whole": [0, 100, 200, 300, 400],
    "uplink_bytes_float32": [0, 4e7, 8e7, 12e7, 16e7],
    "virtual_seconds": [0, 5, 7, 9, 11],  # evaluations are ten rounds apart
}
MEASURED = {"rounds": 9, "virtual_seconds": 90, "top5": 0.95, "sparsity": 0.5}
MEASURED |= dict.fromkeys(BESIDE, 0)
# name of a column -> its cell for a run with CURVE and MEASURED, reach=70, after=10
CELLS = {
    "accuracy": "80.00 (one seed)",
    "difference": "10.00 (one seed)",
    "points": "10.00 (one seed)",
    "best difference": "20.00 (one seed)",
    "verdict": "not yet told apart from",
    "best accuracy": "90.00 (one seed)",
    "metric": "80.00 (one seed)",
    "best metric": "90.00 (one seed)",
    "top5": "95.00 (one seed)",
    "loss": "0.100 (one seed)",
    "updates": "50",
    "uplink": "1 MB",
    "downlink": "4 MB",
    "compression ratio up": "4.00",
    "compression ratio down": "1.00",
    "all uplink": "1 MB",
    "all downlink": "4 MB",
    "all ratio up": "4.0",
    "all ratio down": "1.0",
    "uplink a round after": "1 MB",
    "downlink a round after": "3 MB",
    "left out": "50.00 (one seed)",
    "left out after": "99.00",
    "compression ratio up after": "4.0",
    "time a round after": "0.2 s",
    "reached": "20",
    "uplink until": "20 MB",
    "stays": "20",
    "uplink until it stays": "20 MB",
    "both until": "80 MB",
    "time until": "7 s",
    "time a round": "10 s",
    "rounds a second": "0.75",
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_shows_its_value(name):
    run, other = made(curve=CURVE, **MEASURED), made([0.7])
    assert shown(name, run, against=[other], reach=70, after=10) == CELLS[name]


def test_all_bytes_are_unknown_without_those_beside_the_payloads():
    beside = dict.fromkeys(BESIDE, 250_000)
    whole, payloads = made(curve=CURVE, **beside), made(curve=CURVE)
    assert shown("all uplink", whole) == "1.5 MB"
    assert shown("all ratio up", whole) == "2.8"  # 4 MB and 0.25 MB, divided by 1.5 MB
    assert shown("all uplink", payloads) == shown("all ratio up", payloads) == "-"


def test_means_over_seeds_have_an_interval():
    runs = finals(0.80, 0.81, 0.79)
    assert shown("accuracy", *runs) == "80.00 ± 2.48"  # 4.303 * 1 / sqrt(3)
    runs[1].result["accuracy"] = None
    assert shown("accuracy", *runs) == "79.50 ± 6.35 (2 of 3 runs)"


@pytest.mark.parametrize(
    ("ours", "verdict", "cell"),
    [
        ((0.81, 0.825, 0.80), "above", "1.17 ± 0.72"),  # the mean of 1, 1.5 and 1
        ((0.79, 0.80, 0.78), "below", "-1.00 ± 0.00"),
        ((0.80, 0.81, 0.79), "within the noise of", "0.00 ± 0.00, noise"),
        ((0.81, 0.80, 0.80), "within the noise of", "0.33 ± 2.87, noise"),
        ((0.81,), "not yet told apart from", "1.00 (one seed)"),
    ],
)
def test_a_difference_has_the_right_verdict(ours, verdict, cell):
    against = finals(0.80, 0.81, 0.79)
    assert shown("verdict", *finals(*ours), against=against) == verdict
    assert shown("difference", *finals(*ours), against=against) == cell
    assert COLUMNS["difference"].show(PageRow({}, against, against=against)) == ("", "-")


def test_an_accuracy_that_is_lost_again_is_reached_later():
    assert shown("reached", made(), reach=80) == "20"
    assert shown("stays", made(), reach=80) == "40"
    assert shown("stays", made(), reach=90) == "never"


def test_an_accuracy_that_not_every_seed_reaches():
    runs = [made(), made([0.1, 0.2], seed=1), made([0.1, 0.2, 0.3, 0.7, 0.9], seed=2)]
    assert shown("uplink until", *runs, reach=90) == "30 MB (2 of 3 runs)"
    assert shown("uplink until", runs[1], reach=90) == "never"


def test_values_after_a_round_use_the_runs_that_did_not_diverge():
    ended = made([0.1], seed=1, diverged=True)
    assert shown("uplink a round after", made(), ended, after=10) == "1 MB"
    assert shown("uplink a round after", ended, after=10) == "-"
    with pytest.raises(ResultsError, match="round 15"):
        shown("uplink a round after", made(), after=15)
    with pytest.raises(ResultsError, match="round 10"):
        shown("left out after", made(), after=10)


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
