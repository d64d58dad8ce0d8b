"""A metric cannot have a name that docs/run-files.md lists as a key of a run's records."""

import re
from pathlib import Path

import pytest

from edgewire.task.errors import TaskError
from edgewire.task.objectives import Metric
from edgewire.task.objectives.regression import Regression

PAGE = Path(__file__).parents[2] / "docs" / "run-files.md"
OBJECTIVES = {"loss", "accuracy", "top5"}  # names of values of an evaluation
TEXT = PAGE.read_text().partition("## Keys of")[2].partition("## Which bytes")[0]
ROWS = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
KEYS = [key for row in ROWS for key in re.findall(r"`(?:\.\.\.)?(\w+)`", row)]


def with_metrics(*metrics):
    return type("Mine", (Regression,), {"metrics": metrics})()


def test_a_key_of_the_records_is_no_name_of_a_metric():
    for key in {*KEYS} - OBJECTIVES:
        with pytest.raises(TaskError, match=f"Mine names a metric '{key}'"):
            with_metrics(Metric(key)).check()


@pytest.mark.parametrize("metrics", [("mae",), (Metric("mae"), Metric("mae")), (Metric(3),)])
def test_metrics_are_metrics_with_different_names(metrics):
    with pytest.raises(TaskError):
        with_metrics(*metrics).check()


@pytest.mark.parametrize("name", ["a\nb", "x" * 101, "\x1b[31m"])
def test_a_name_that_no_report_can_show_is_refused(name):
    with pytest.raises(TaskError, match="printable characters"):
        with_metrics(Metric(name)).check()


def test_one_metric_in_place_of_a_tuple_is_refused():
    with pytest.raises(TaskError, match="must be a tuple"):
        type("Mine", (Regression,), {"metrics": Metric("mae")})().check()
