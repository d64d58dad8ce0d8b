"""Files of tables of any form, also hostile ones."""

import csv
import gzip
import io
import tempfile
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewire.task.datasets.table import table
from edgewire.task.errors import TaskError
from edgewire.task.tables.columns import Columns, Reading
from edgewire.task.tables.files import read
from edgewire.task.tensors import leaves

FORMS = {
    "a,b\n1,x\n2,y\n": ("a b", [1.0, 2.0]),
    "\ufeffa;b\r\n1,5;x\r\n2;y\r\n": ("a b", [1.5, 2.0]),
    'a\tb\n1.5\t"x, y"\n2\t"z\nz"\n': ("a b", [1.5, 2.0]),
    "a|b\n 1 |x\n NA|y\n": ("a b", [1.0, None]),
    "1.5 x\n 2   y \n": ("column1 column2", [1.5, 2.0]),
    "3,x\n3,y\n": ("column1 column2", [3.0, 3.0]),
    "0,1\n5,x\n": ("0 1", [5.0]),  # pandas' names of columns
    'a,b\n"1,234",x\n': ("a b", ["1,234"]),
    'a,b\n"1,5",x\n': ("a b", [1.5]),
    "a;b\n1.5;x\n": ("a b", [1.5]),
    "a;b\n32,8;4.738\n7,1;200\n": ("a b", [32.8, 7.1]),  # whole thousands beside fractions
    "a;b\n32.8;4,738\n7.1;200\n": ("a b", [32.8, 7.1]),
    "a;b\n1,234;x\n": ("a b", [1.234]),
    "a;b\n1,5;1.5\n2,5;x\n": ("a b", [1.5, 2.5]),  # most numbers have a comma
}


@pytest.mark.parametrize("text", FORMS)
def test_the_form_of_a_file_is_guessed(text, tmp_path):
    names, first = FORMS[text]
    (tmp_path / "t.csv").write_bytes(text.encode())
    (tmp_path / "t.gz").write_bytes(gzip.compress(text.encode()))
    for file in ("t.csv", "t.gz"):
        rows = read(tmp_path / file, Reading())
        assert rows.names == names.split()
        column = rows.table.column(0)
        found = [value.strip() if isinstance(value, str) else value for value in column.to_pylist()]
        numbers = [None if value in (None, "NA") else value for value in found]
        assert [float(v) if v not in (None, "1,234") else v for v in numbers] == first


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_a_file_of_another_encoding_is_read_and_named(encoding, tmp_path, caplog):
    rows = 40_000 * ["1,5;plain"] + ["2;ü"]  # more than the part by which the form is guessed
    (tmp_path / "t.csv").write_bytes("\n".join(["größe;b", *rows]).encode(encoding))
    rows = read(tmp_path / "t.csv", Reading())
    assert rows.names == ["größe", "b"]
    last = rows.table.slice(39_999).to_pydict()
    assert last == {"größe": [1.5, 2.0], "b": ["plain", "ü"]}
    assert ("is read as" in caplog.text) == (not encoding.startswith("utf-8"))


def test_each_guess_can_be_given(tmp_path):
    (tmp_path / "t.txt").write_text("né:1,5\nà:-\n")
    given = Reading(":", "comma", ("-",), False)
    rows = read(tmp_path / "t.txt", given)
    assert rows.table.to_pydict() == {"column1": ["né", "à"], "column2": [1.5, None]}
    (tmp_path / "t.xlsx").write_bytes(b"PK\3\4 anything")
    with pytest.raises(TaskError, match="is a workbook"):
        read(tmp_path / "t.xlsx", Reading())


def test_files_of_a_table_may_differ_in_what_their_columns_look_like(tmp_path, caplog):
    (tmp_path / "1.csv").write_text("a,b,c\n1,x,\n2,y,\n")
    (tmp_path / "2.csv").write_text("b,a,c\n7,1.5,4\n")
    rows = read(sorted(tmp_path.iterdir()), Reading())
    assert rows.table.to_pydict() == {"a": [1, 2, 1.5], "b": ["x", "y", "7"], "c": [None, None, 4]}
    assert rows.row(2) == "row 1 of 2.csv"
    (tmp_path / "3.csv").write_text("a,b\n1,x\n")
    assert read(sorted(tmp_path.iterdir()), Reading()).names == ["a", "b"]
    assert "columns that some files lack are left out: ['c']" in caplog.text


def test_a_frame_of_mixed_types_is_text():
    frame = pandas.DataFrame({"a": [1, "x", None], 3: pandas.Categorical([5, 6, 5])})
    rows = read(frame, Reading())
    assert rows.table.to_pydict() == {"a": ["1", "x", None], "3": [5, 6, 5]}


NUMBERS = st.floats(-1e30, 1e30) | st.sampled_from([np.nan, np.inf]) | st.integers(-(2**65), 2**65)
TEXTS = st.text(max_size=4) | st.sampled_from(
    ["NA", "?", "2024-01-01", "1/2/2024", "1,5", "x" * 9999]
)
CELLS = st.one_of(NUMBERS.map(str), TEXTS, st.just(""), st.booleans().map(str))
COLUMN = st.one_of(
    st.lists(st.just("7"), min_size=12, max_size=12),
    st.lists(NUMBERS.map(str), min_size=12, max_size=12),
    st.lists(st.sampled_from(["red", "green", "blue", ""]), min_size=12, max_size=12),
    st.lists(st.sampled_from(["0.0", "1.50", "2", "1e19"]), min_size=12, max_size=12),
    st.lists(st.sampled_from(["1,5", "2,50"]), min_size=12, max_size=12),
    st.lists(CELLS, min_size=12, max_size=12),
)
NAME = st.text(max_size=6) | st.sampled_from(
    ["a", "y", "", "a,b", 'a"b', "a=$[x", "a\nb", "\ufeffa"]
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(NAME, COLUMN, min_size=1, max_size=5),
    st.integers(1, 12),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
)
def test_a_hostile_table_gives_finite_inputs_or_one_line(columns, rows, delimiter, end, bom, twice):
    target = "y" if "y" in columns else next(iter(columns))
    names, cells = list(columns), [column[:rows] for column in columns.values()]
    if twice:
        names, cells = [*names, names[0]], [*cells, cells[0]]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end)
    writer.writerows([names, *zip(*cells, strict=True)])
    content = text.getvalue().encode("utf-8", "replace")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.csv"
        file.write_bytes(b"\xef\xbb\xbf" * bom + content)
        try:
            data = table(str(file), target, test_share=0.25 if rows > 3 else 0)
        except TaskError as error:
            assert "\n" not in str(error)  # noqa: PT017
            return
        for split in (data.train, data.test):
            found = leaves(data.prepared(split.inputs))
            assert all(bool(each.isfinite().all()) for each in found)
        text = data.columns.to_json()
        assert Columns.from_json(text) == data.columns
        file.touch()  # so that it is read again
        again = table(str(file), target, columns=text, test_share=0.25 if rows > 3 else 0)
        assert again is not data
        assert torch.equal(again.train.inputs.nan_to_num(-9), data.train.inputs.nan_to_num(-9))
        assert torch.equal(again.train.targets, data.train.targets)


def test_long_cells_and_many_columns_take_little_memory(tmp_path):
    names = [f"c{number}" for number in range(3000)]
    values = np.random.default_rng(0).normal(size=(40, 3000)).round(3)
    frame = pandas.DataFrame(values, columns=names).assign(y=["a", "b"] * 20, plan="x")
    frame.loc[0, "plan"] = "long " * 200_000
    frame.to_csv(tmp_path / "t.csv", index=False)
    before = pyarrow.total_allocated_bytes()
    data = table(str(tmp_path / "t.csv"), "y")
    assert data.prepared(data.train.inputs).shape[0] == 32
    assert pyarrow.total_allocated_bytes() - before < 1 << 22
