"""The table of the logger `csv`."""

import csv

from edgewire.report.loggers.csv import Csv
from tests.report.loggers.runs import made_run, row, write


def test_the_table_has_a_line_for_each_row_and_a_column_for_each_key(tmp_path):
    write(tmp_path, [row(0), row(1), row(2, drift=0.5, segments=[1, 2])])
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')
    file = tmp_path / "there" / "table.csv"
    for _ in range(2):  # a new run replaces the table
        logger = Csv(str(file))
        logger.begin(made_run(tmp_path))
        logger.finish("finished", {})
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [each["round"] for each in rows] == ["0", "1", "2"]
    assert [each["drift"] for each in rows] == ["", "", "0.5"]
    assert rows[2]["segments"] == "[1, 2]"
    assert rows[0]["top5"] == ""
