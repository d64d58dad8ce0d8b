"""Tables in CSV and Parquet files as data sets."""

import gzip
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from edgewire.task.datasets.arrays import npz
from edgewire.task.datasets.table import csv, parquet
from edgewire.task.errors import MissingOption, NoData, TaskError

COLUMNS = {
    "temp": [20.5, 21.0, 19.0, 25.5, 30.0] * 8,
    "open": [True, False, False, True, False] * 8,
    "count": [1, 2, 3, 4, 5] * 8,
    "room": ["attic", "hall", "hall", "attic", "cellar"] * 8,
    "target": ["warm", "cold", "cold", "warm", "hot"] * 8,
}


def text_of(columns, delimiter=","):
    lines = [delimiter.join(columns)]
    lines += [delimiter.join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    return "\n".join(lines) + "\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(text_of(COLUMNS))
    return path


def rows(data):
    """Return all rows of both splits, in no order: features, then the target."""
    parts = [
        torch.cat([data.prepared(s.inputs), s.targets[:, None].float()], 1).tolist()
        for s in (data.train, data.test)
    ]
    return sorted(parts[0] + parts[1])


def test_columns_become_features_classes_and_groups(file):
    data = csv(str(file), inputs=["count", "temp", "open"], group="room", standardize=False)
    assert data.class_names == ("cold", "hot", "warm")
    assert (len(data.train), len(data.test)) == (32, 8)
    number = {name: place for place, name in enumerate(data.class_names)}
    expected = [
        [c, t, o, number[y]]
        for t, o, c, _, y in zip(*COLUMNS.values(), strict=True)
    ]  # fmt: skip
    assert rows(data) == sorted([float(value) for value in row] for row in expected)
    rooms = {float(c): r for c, r in zip(COLUMNS["count"], COLUMNS["room"], strict=True)}
    names = sorted(set(COLUMNS["room"]))
    for split in (data.train, data.test):
        found = [names[group] for group in split.groups]
        assert found == [rooms[count] for count in split.inputs[:, 0].tolist()]
    again = csv(str(file), inputs=["count", "temp", "open"], group="room", standardize=False)
    assert torch.equal(again.test.inputs, data.test.inputs)


def test_parquet_and_other_forms_of_a_table_give_the_same_data(file, tmp_path):
    pq.write_table(pyarrow.table(COLUMNS), tmp_path / "a.parquet")
    labels = pyarrow.array(COLUMNS["target"]).dictionary_encode()
    pq.write_table(pyarrow.table({**COLUMNS, "target": labels}), tmp_path / "b.parquet")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(file.read_bytes()))
    (tmp_path / "d.tsv").write_text("\ufeff" + text_of(COLUMNS, "\t"))
    split = tmp_path / "two"
    split.mkdir()
    lines = file.read_text().splitlines(keepends=True)
    (split / "1.csv").write_text("".join(lines[:18]))
    (split / "2.csv").write_text("".join([lines[0], *lines[18:]]))
    (split / ".hidden.csv").write_text("nothing")
    options = {"inputs": ["temp", "count"], "group": "room"}
    expected = csv(str(file), **options)
    for found in (
        parquet(str(tmp_path / "a.parquet"), **options),
        parquet(str(tmp_path / "b.parquet"), **options),
        csv(str(tmp_path / "c.csv.gz"), **options),
        csv(str(tmp_path / "d.tsv"), delimiter="\t", **options),
        csv(str(split), **options),
    ):
        for part in ("train", "test"):
            here, there = getattr(found, part), getattr(expected, part)
            assert torch.equal(here.inputs, there.inputs)
            assert torch.equal(here.targets, there.targets)
            assert torch.equal(here.groups, there.groups)


def test_a_folder_has_files_to_train_and_to_test_on(tmp_path):
    for name, columns in (("train", {"x": [1, 3], "y": [5, 6]}), ("test", {"y": [7], "x": [9]})):
        (tmp_path / f"{name}.csv").write_text(text_of(columns))
    data = csv(str(tmp_path), target="y")
    assert data.prepared(data.train.inputs).tolist() == [[-1], [1]]
    assert data.prepared(data.test.inputs).tolist() == [
        [7]
    ]  # by mean and deviation of the training rows
    assert (data.train.targets.tolist(), data.test.targets.tolist()) == ([5, 6], [7])
    assert data.classes == 0
    (tmp_path / "train.csv").unlink()
    with pytest.raises(TaskError, match=r"no train\.csv"):
        csv(str(tmp_path), target="y")


NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.lists(st.tuples(NUMBERS, st.integers(-(2**50), 2**50), NUMBERS), min_size=2, max_size=9))
def test_any_table_of_numbers_is_read_and_standardised(tmp_path, table):
    names = ("a", "b", "c")
    columns = {n: list(column) for n, column in zip(names, zip(*table, strict=True), strict=True)}
    (tmp_path / "t.csv").write_text(text_of(columns))
    data = csv(str(tmp_path / "t.csv"), target=["c", "a"], inputs="b", test_share=0)
    assert data.train.targets.dtype == torch.float32
    np.testing.assert_allclose(
        data.train.targets, np.array([[c, a] for a, _, c in table]), 1e-6, 1e-30
    )
    mean, std = statistics.mean(columns["b"]), statistics.pstdev(columns["b"]) or 1
    expected = [(value - mean) / std for value in columns["b"]]
    np.testing.assert_allclose(
        data.prepared(data.train.inputs)[:, 0], expected, rtol=1e-4, atol=1e-6
    )
    assert len(data.test) == 0
    given = csv(str(tmp_path / "t.csv"), "c", ["b", "a"], mean=[1, 2], std=[0.5, 4], test_share=0)
    pairs = [[(b - 1) / 0.5, (a - 2) / 4] for a, b, _ in table]
    np.testing.assert_allclose(given.prepared(given.train.inputs), pairs, rtol=1e-5, atol=1e-6)


def test_a_column_that_looks_whole_at_first_is_read_to_its_end(tmp_path):
    values = [*["1"] * 300_000, "2.5"]
    (tmp_path / "t.csv").write_text("x,target\n" + "\n".join(f"{v},0" for v in values))
    data = csv(str(tmp_path / "t.csv"), standardize=False, test_share=0)
    assert data.train.inputs[-1].item() == 2.5


@pytest.mark.parametrize("group", [None, "room"])
def test_whole_numbers_are_classes_if_they_are_named(file, group):
    options = {"target": "count", "inputs": "temp", "group": group}
    assert csv(str(file), **options).classes == 0
    data = csv(str(file), **options, classes=["10", "1", "2", "3", "5", "4"])
    assert data.class_names == ("1", "2", "3", "4", "5", "10")
    assert sorted(set(data.train.targets.tolist())) == [0, 1, 2, 3, 4]
    assert csv(str(file), target=None, inputs="temp").train.targets == ()
    assert csv(str(file), target="open", inputs="temp").class_names == ("False", "True")


def test_a_devices_own_table_needs_what_all_devices_share(file):
    options = {"inputs": ["temp"], "on_device": True}
    with pytest.raises(MissingOption, match=r"dataset\.inputs="):
        csv(str(file), on_device=True)
    with pytest.raises(MissingOption, match=r"dataset\.mean="):
        csv(str(file), **options)
    with pytest.raises(MissingOption, match=r"dataset\.classes="):
        csv(str(file), **options, mean=[20], std=[5])
    data = csv(str(file), **options, mean=[20], std=[5], classes=["warm", "cold", "hot", "arctic"])
    assert (len(data.train), len(data.test), data.classes) == (40, 0, 4)
    assert set(data.train.targets.tolist()) == {1, 2, 3}
    assert torch.allclose(data.prepared(data.train.inputs)[:2, 0], torch.tensor([0.1, 0.2]))


ONE = {"inputs": "temp"}
TWO = {"classes": ["a", "b"], "inputs": "count"}
BINARY = b"x,target\n1,caf\x81\n2,th\xe9\n"  # neither UTF-8 nor Windows-1252
ENDLESS = "x,z,target\n1,1,2\ninf,1,3\n"
WRONG = {
    "an absent column": (
        {**ONE, "target": "y"},
        None,
        "no column y: give dataset.target=COLUMN of",
    ),
    "text as a feature": ({}, None, 'room: "attic" in row 1 and 39 more'),
    "the target as a feature": ({"inputs": ["target"]}, None, "not the target"),
    "a column twice": ({"inputs": ["temp", "temp"]}, None, "each once"),
    "no column": ({"inputs": []}, None, "at least one column"),
    "an unknown class": ({**ONE, "classes": ["cold", "hot"]}, None, "'warm' is no known"),
    "classes of broken numbers": ({**TWO, "target": "temp"}, None, "no known class"),
    "classes of two targets": ({**TWO, "target": ["temp", "open"]}, None, "one target"),
    "classes of nothing": ({**TWO, "target": None}, None, "dataset.target="),
    "means for other columns": ({**ONE, "mean": [1, 2], "std": [1, 2]}, None, "2 numbers"),
    "a mean alone": ({**ONE, "mean": [1]}, None, "of one length"),
    "a deviation of 0": ({**ONE, "mean": [1], "std": [0]}, None, "above 0"),
    "a mean without use": ({**ONE, "mean": [1], "standardize": False}, None, "of one length"),
    "a share of all": ({**ONE, "test_share": 1.0}, None, "below 1"),
    "another delimiter": (
        {"delimiter": ";"},
        None,
        "no column target.*; dataset.delimiter= or task=table separates",
    ),
    "two characters": ({"delimiter": ";;"}, None, "give one sign"),
    "an empty file": ({}, "", "cannot be read as a table"),
    "no rows": ({}, "x,target\n", "no rows"),
    "one row": ({}, "x,target\n1,2\n", "too few samples"),
    "an empty cell": ({}, "x,target\n1,2\n,3\n", "x: no value in 1 of 2 rows"),
    "an empty class": ({}, "x,target\n1,a\n2,\n", "target: 1 of 2 rows without a value"),
    "one class": ({}, "x,target\n1,a\n2,a\n", "one class only"),
    "no number": ({}, "x,target\n1,2\nnan,3\n", "x: no value in 1 of 2 rows"),
    "infinity": ({"target": ["target", "x"], "inputs": "z"}, ENDLESS, '"inf" in row 2'),
    "a short row": ({}, "x,target\n1,2\n1\n", "cannot be read as a table"),
    "a column twice in the file": ({}, "x,x,target\n1,2,3\n", "x: 2 columns have"),
    "no encoding": ({}, BINARY, "cannot be read as a table"),
    "a date": ({}, "x,target\n2024-01-01,1\n2024-01-02,2\n", 'x: "2024-01-01'),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_one_line(case, file):
    options, content, line = WRONG[case]
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TaskError, match=line) as caught:
        csv(str(file), **options)
    assert "\n" not in str(caught.value)


def test_files_of_one_table_have_the_same_columns(file, tmp_path):
    (tmp_path / "other.csv").write_text("temp,target\n1,warm\n")
    assert len(csv(str(tmp_path), inputs="temp").train) > 30
    with pytest.raises(TaskError, match="no column count"):
        csv(str(tmp_path), inputs=["temp", "count"])


@pytest.mark.parametrize("name", ["a.parquet", "b.csv", "missing/c.csv"])
def test_what_is_no_table_is_one_line(name, tmp_path):
    path = tmp_path / name
    if path.parent.is_dir():
        path.write_bytes(b"PAR1\0\xff\xfe,,\n" * 9)
    with pytest.raises(TaskError) as caught:
        (parquet if name.endswith("parquet") else csv)(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_no_data_differs_from_wrong_data(tmp_path):
    for root in (tmp_path / "none", tmp_path):
        with pytest.raises(NoData):
            csv(str(root))


def test_a_device_without_pyarrow_gets_one_line(file, monkeypatch):
    for name in ("pyarrow", "pyarrow.csv", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TaskError, match="pip install pyarrow"):
        csv(str(file))


INDICES = ["", "Unnamed: 0", "__index_level_0__"]


@given(
    st.lists(st.sampled_from([*INDICES, "a", "b", "id"]), min_size=1, unique=True),
    st.sampled_from(["csv", "parquet"]),
    st.booleans(),
)
def test_the_index_of_pandas_is_an_input_only_if_it_is_asked_for(names, kind, index):
    columns = {**{name: [1.0, 2.0, 5.0] for name in names}, "target": [1.0, 2.0, 3.0]}
    kept = [name for name in names if index or name not in INDICES]
    lines = []
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(
            "edgewire.task.datasets.table.log.warning",
            lambda text, *words: lines.append(text % words),
        )
        file = Path(folder) / f"t.{kind}"
        if kind == "csv":
            file.write_text(text_of(columns))
        else:
            pq.write_table(pyarrow.table(columns), file)
        read = csv if kind == "csv" else parquet
        if not kept:
            with pytest.raises(TaskError, match="must name at least one column"):
                read(str(file), test_share=0, index=index)
            return
        assert read(str(file), test_share=0, index=index).train.inputs.shape == (3, len(kept))
        named = read(str(file), test_share=0, inputs=names, index=index)
    assert named.train.inputs.shape == (3, len(names))
    assert f"the inputs are {', '.join(kept)}" in lines[0]
    assert ("is left out" in lines[0]) == (kept != names)


LARGE = 2**63


@pytest.mark.parametrize("values", [[1, LARGE], [LARGE + 5, 2**64 - 1], [0, LARGE - 1]])
def test_integers_that_torch_lacks_are_refused_and_none_changes_its_sign(values, tmp_path):
    column = pyarrow.array(values, pyarrow.uint64())
    pq.write_table(pyarrow.table({"x": [1.0, 2.0], "target": column}), tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 1)), y=np.array(values, np.uint64))
    reads = [
        lambda: parquet(str(tmp_path / "t.parquet"), inputs=["x"], test_share=0),
        lambda: npz(str(tmp_path / "t.npz"), test_share=0),
    ]
    for read in reads:
        if max(values) < LARGE:
            assert read().train.targets.tolist() == values
        else:
            with pytest.raises(TaskError, match=r"2\^63 - 1"):
                read()
    table = {"x": [1.0, 2.0], "y": [3.0, 4.0], "user": column}
    pq.write_table(pyarrow.table(table), tmp_path / "users.parquet")
    users = parquet(
        str(tmp_path / "users.parquet"), target="y", inputs=["x"], group="user", test_share=0
    )
    assert sorted(users.train.groups.tolist()) == [0, 1]
