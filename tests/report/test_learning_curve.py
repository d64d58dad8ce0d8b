"""Columns of tables, from a run's curve: means, bytes until an accuracy, values after a round."""

import pytest

from report.columns import COLUMNS, TableRow
from report.errors import ResultsError
from report.learning_curve import smoothed
from report.runs import Run

ACCURACIES = [0.1, 0.5, 0.9, 0.7, 0.8]


def kept(accuracies=ACCURACIES, seed=0, evaluations=None, diverged=False, **curve):
    """Return a run with an evaluation every 10 rounds; a round takes 1 MB up and 3 MB down."""
    rounds = [10.0 * at for at in range(len(accuracies))]
    columns = {
        "round": rounds,
        "accuracy": list(accuracies),
        "uplink_bytes": [1e6 * at for at in rounds],
        "downlink_bytes": [3e6 * at for at in rounds],
        **curve,
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    result = {
        "seed": seed,
        "diverged": diverged,
        "accuracy": accuracies[-1],
        "best_accuracy": max(accuracies),
        "evaluations": evaluations or len(accuracies),
    }
    return Run({"lr": "1"}, result, lambda: rows)


def shown(column, *runs, **given):
    return COLUMNS[column].show(TableRow(runs, **given)).cell


def test_accuracies_as_means_of_evaluations():
    run = kept()
    found = smoothed(run, 2)
    assert [row["accuracy"] for row in found.history()] == pytest.approx([0.3, 0.7, 0.8, 0.75])
    assert [row["round"] for row in found.history()] == [10, 20, 30, 40]
    assert found.result["accuracy"] == pytest.approx(0.75)
    assert found.result["best_accuracy"] == pytest.approx(0.8)
    assert smoothed(run, 1) is run


def test_means_of_an_incomplete_curve_are_refused():
    assert smoothed(kept(evaluations=6), 1).result["accuracy"] == 0.8
    with pytest.raises(ResultsError, match="of its evaluations 5 are kept"):
        smoothed(kept(evaluations=6), 2)


def test_bytes_until_an_accuracy():
    late = kept([0.1, 0.2, 0.3, 0.7, 0.7], seed=1)
    assert shown("reached", kept(), late, reach=70) == "25"
    assert shown("uplink until", kept(), late, reach=70) == "25 MB"
    assert shown("downlink until", kept(), reach=70) == "60 MB"
    assert shown("both until", kept(), reach=50) == "40 MB"


def test_an_accuracy_that_is_lost_again_is_reached_later():
    assert shown("reached", kept(), reach=80) == "20"
    assert shown("stays", kept(), reach=80) == "40"
    assert shown("uplink until it stays", kept(), reach=60) == "20 MB"
    assert shown("stays", kept(), reach=90) == "never"


def test_the_best_of_equal_seeds_is_compared():
    ours, theirs = kept([0.1, 0.9, 0.5]), kept([0.1, 0.8, 0.6])
    assert shown("best difference", ours, against=[theirs]) == "10.00 (one seed)"
    assert shown("difference", ours, against=[theirs]) == "-10.00 (one seed)"


def test_values_after_a_round_use_the_runs_that_did_not_diverge():
    ended = kept([0.1], seed=1, diverged=True)
    assert shown("uplink a round after", kept(), ended, after=10) == "1 MB"
    assert shown("uplink a round after", ended, after=10) == "-"


def test_an_accuracy_that_not_every_seed_reaches():
    low = kept([0.1, 0.2], seed=1)
    assert shown("uplink until", kept(), low, reach=90) == "20 MB (1 of 2 runs)"
    assert shown("uplink until", low, reach=90) == "never"


def test_the_left_out_share_after_a_round():
    run = kept(
        uplink_entries=[0, 100, 101, 102, 103],
        uplink_entries_whole=[0, 100, 200, 300, 400],
        uplink_bytes_float32=[0, 4e7, 8e7, 12e7, 16e7],
    )
    assert shown("left out after", run, after=10) == "99.00"
    assert shown("left out after", run, run, after=10) == "99.00"
    assert shown("compression ratio up after", run, after=10) == "4.0"
    timed = kept(virtual_seconds=[0, 5, 7, 9, 11])  # evaluations are ten rounds apart
    assert shown("time a round after", timed, after=10) == "0.2 s"
    with pytest.raises(ResultsError, match="round 15"):
        shown("left out after", run, after=15)
    with pytest.raises(ResultsError, match="round 10"):
        shown("left out after", kept(), after=10)
