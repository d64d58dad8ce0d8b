"""The table of the logger `csv`."""

import csv

import pytest

from edgewire.report.loggers.csv import Csv
from tests.report.loggers.runs import made_run, row


def read(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_new_key_becomes_a_column(tmp_path):
    logger = Csv()
    logger.begin(made_run(tmp_path))
    logger.log([row(0), row(1)])
    logger.log([row(2, drift=0.5, segments=[1, 2])])
    rows = read(tmp_path / "history.csv")
    assert [each["round"] for each in rows] == ["0", "1", "2"]
    assert [each["drift"] for each in rows] == ["", "", "0.5"]
    assert rows[2]["segments"] == "[1, 2]"
    assert rows[0]["top5"] == ""


@pytest.mark.parametrize("broken", ["", "3,9,0.3"])
def test_a_resumed_run_keeps_the_logged_rows_and_drops_a_part_of_a_line(tmp_path, broken):
    logger = Csv()
    logger.begin(made_run(tmp_path))
    logger.log([row(n) for n in range(5)])
    with (tmp_path / "history.csv").open("a") as file:
        file.write(broken)
    again = Csv()
    again.begin(made_run(tmp_path, resumed=True, saved={"round": 2}))
    again.log([row(3), row(4)])
    assert [each["round"] for each in read(tmp_path / "history.csv")] == list("01234")


def test_a_new_run_replaces_the_table(tmp_path):
    for _ in range(2):
        logger = Csv(str(tmp_path / "there" / "table.csv"))
        logger.begin(made_run(tmp_path))
        logger.log([row(0)])
    assert len(read(tmp_path / "there" / "table.csv")) == 1
