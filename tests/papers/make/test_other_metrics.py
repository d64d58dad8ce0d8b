"""Tables, archives and pages of runs go by the main metric, its direction and its kind."""

import shutil

import pytest

from edgewire.task.metric import ACCURACY, Metric
from papers.make.results import main
from papers.make.run_archive import archive_file, read_archive, write_archive
from papers.make.run_archive import main as keep
from tests.papers.make.made_pages import ACCURACIES, PAGE, define, rows_of, written
from tests.report.made_runs import add_job

RMSE = Metric("rmse")
DENSITY = Metric("density", higher=True)
EVERY = PAGE.replace(
    "accuracy, difference, updates", "metric, best metric, difference, reached"
) + ("    reach: REACH\n    picture: PICTURE\n")
SEARCH = """
title: A page
claim: Made up.
setting: Made up.
tables:
  - experiment: e
    across: {key: lr, values: [1, 2]}
    rows: [{id: a, label: A, overrides: momentum=true}]
"""


def run_of(root, metric, values, factor=1.0):
    """Make and store runs whose main metric has these values, and a curve up to each of them."""
    jobs = [(overrides, *seed) for overrides, of in values.items() for seed in enumerate(of)]
    names = {metric.name: metric._asdict()} if metric.name != "loss" else {}
    for number, (overrides, seed, value) in enumerate(jobs):
        value *= factor
        rows = [
            {"round": r, metric.name: v, "uplink_bytes": r * 1000, "downlink_bytes": 0}
            for r, v in enumerate((value / 2, value, value))
        ]
        more = {"accuracy": None, "best_accuracy": None, "metrics": names} | {
            metric.name: value,
            f"best_{metric.name}": value,
        }
        folder = root / "sweep" / str(number)
        add_job(folder, f"experiment=e {overrides} seed={seed}", history=rows, rounds=3, **more)
    assert keep(["e", str(root / "sweep")], root) == 0
    shutil.rmtree(root / "sweep")


def test_the_page_of_a_share_is_that_of_an_accuracy_with_another_name(root):
    text = EVERY.replace("REACH", "81").replace("PICTURE", "points")
    define(root, text)
    run_of(root, ACCURACY, ACCURACIES)
    accuracy = written(root)
    (root / "papers" / "runs" / "e.json.xz").unlink()
    run_of(root, Metric("iou", True, True), ACCURACIES)
    assert written(root).split() == accuracy.replace("accuracy", "iou").split()
    assert "81 % iou" in written(root)
    assert main(["--check"], root) == 0


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("metric", "factor", "verdict"),
    [
        (RMSE, 1.0, "worse than"),
        (DENSITY, 1.0, "above"),
        (DENSITY, -1.0, "below"),
        (RMSE, -1.0, "better than"),
        (RMSE, 0.0001, "worse than"),
        (Metric("loss"), 1, "worse than"),
    ],
)
def test_a_page_goes_by_the_metric_its_direction_and_its_unit(root, metric, factor, verdict):
    reach, picture = 0.80 * factor, "points" if factor == 1 else "metric"
    define(root, EVERY.replace("REACH", f"{reach:g}").replace("PICTURE", picture))
    values = {"lr=1": (0.80, 0.81, 0.79), "lr=2 momentum=True": (0.815, 0.825, 0.806)}
    run_of(root, metric, values, factor)
    text = written(root)
    assert f"B is {verdict} A" in " ".join(text.split())
    assert "accuracy" not in text
    assert "point" not in text
    assert float(rows_of(text)["A"][metric.name].partition(" ")[0]) == pytest.approx(
        0.8 * factor, rel=1e-3
    )
    assert main(["--check"], root) == 0


@pytest.mark.parametrize(
    ("metric", "one", "two", "best"),
    [
        (RMSE, (0.5,), (0.7,), "lr 1"),
        (DENSITY, (0.5,), (0.7,), "lr 2"),
        (ACCURACY, (0.5,), (0.7,), "lr 2"),
        (RMSE, (0.5, 0.6), (0.2, 0.7), "lr 1"),
        (ACCURACY, (0.5, 0.6), (0.4, 0.9), "lr 1"),
        (ACCURACY, (0.5, 0.6), (0.9,), "lr 1"),  # one seed may be lucky
    ],
)
def test_the_best_of_a_search_by_the_worst_of_most_seeds_is_bold(root, metric, one, two, best):
    define(root, SEARCH)
    run_of(root, metric, {"lr=1 momentum=True": one, "lr=2 momentum=True": two})
    row = rows_of(written(root))["A"]
    assert {head for head, cell in row.items() if cell.startswith("**")} == {best}


def test_an_archive_keeps_the_main_metric_and_its_curve(root):
    run_of(root, RMSE, {"lr=1": (0.5, 0.25)})
    file = archive_file(root, "e")
    before, runs = file.read_bytes(), read_archive(file)
    assert [run.metric for run in runs] == [RMSE, RMSE]
    assert [row["rmse"] for row in runs[0].evaluations()] == [0.25, 0.5, 0.5]
    write_archive(file, "e", runs)
    assert file.read_bytes() == before
