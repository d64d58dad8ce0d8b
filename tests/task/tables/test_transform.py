"""Inputs of a table equal scikit-learn's ColumnTransformer, whatever form the file has."""

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from pyarrow import parquet
from scipy.optimize import linear_sum_assignment
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from edgewire.task.datasets.table import csv, table
from edgewire.task.tables.columns import Columns
from edgewire.task.tables.read import inputs_of, rows_of, targets_of
from edgewire.task.tables.transform import TableTransform

ROWS = 400


def frame(rows=ROWS, holes=0.0):
    random = np.random.default_rng(0)
    found = pandas.DataFrame(
        {
            "status": random.choice(["A11", "A12", "A13", "A14"], rows),
            "months": random.integers(4, 72, rows).astype(float),
            "purpose": random.choice([f"A4{number}" for number in range(10)], rows),
            "amount": random.lognormal(8, 0.7, rows).round(2),
            "city": np.minimum(random.exponential(25, rows).astype(int), 90).astype(str),
            "year": 1990.0 + random.integers(0, 34, rows),
            "risk": random.choice(["good", "bad"], rows, p=[0.7, 0.3]),
        }
    )
    found["city"] = "town " + found["city"]
    for name in found.columns[:-1]:
        found.loc[random.random(rows) < holes, name] = np.nan
    return found


class Frequent(BaseEstimator, TransformerMixin):
    """Keeps the 40 most frequent texts of each column; all others are one."""

    def fit(self, given, y=None):
        counts = {name: given[name].value_counts() for name in given}
        ranked = {
            name: sorted(found.index, key=lambda each, found=found: (-found[each], each))
            for name, found in counts.items()
        }
        self.kept_ = {n: each[: 41 if len(each) == 41 else 40] for n, each in ranked.items()}
        self.rare_ = {name for name, each in ranked.items() if len(each) > 41}
        return self

    def transform(self, given):
        other = {name: given[name].isin(self.kept_[name]) | given[name].isna() for name in given}
        return given.assign(
            **{n: given[n].where(other[n], "other") for n in given if n in self.rare_}
        )


def reference(given, numbers, texts):
    """Return scikit-learn's transform of a frame's columns."""
    number = make_pipeline(
        StandardScaler(), SimpleImputer(strategy="constant", fill_value=0, add_indicator=True)
    )
    text = make_pipeline(Frequent(), OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    return ColumnTransformer([("numbers", number, numbers), ("texts", text, texts)]).fit(given)


def assert_same_columns(found, expected):
    """Assert that two arrays have the same columns, in any order, to 1e-6."""
    assert found.shape == expected.shape
    apart = np.abs(found.T[:, None] - expected.T[None]).max(2)
    rows, columns = linear_sum_assignment(np.minimum(apart, 1))
    assert apart[rows, columns].max() <= 1e-6


def written(path, form, given):
    if form == "semicolons":
        given.to_csv(path, sep=";", decimal=",", index=False)
    elif form == "erp":  # 4.738,12 and dates and umlauts, as German programs and Excel write them
        texts = given.replace("good", "größer")
        for name in ("months", "amount", "year"):
            texts[name] = [f"{each:,.15g}".translate(SWAPPED) for each in given[name]]
        texts = texts.replace("nan", "")
        texts.to_csv(path, sep=";", index=False, encoding="cp1252")
    elif form == "spaces":  # the raw German credit file: no names, no missing values
        given.to_csv(path, sep=" ", index=False, header=False)
    elif form == "tabs":
        given.to_csv(path, sep="\t", index=False, lineterminator="\r\n", encoding="utf-8-sig")
    elif form == "bars":
        given.to_csv(path, sep="|", na_rep="?", index=False)
    elif form == "parquet":
        given.to_parquet(path)
    else:
        given.to_csv(path)  # with pandas' index


SWAPPED = str.maketrans(",.", ".,")
FORMS = [
    ("semicolons", 0.05),
    ("erp", 0.05),
    ("spaces", 0.0),
    ("tabs", 0.05),
    ("bars", 0.2),
    ("parquet", 0.05),
]


@pytest.mark.parametrize(("form", "holes"), [*FORMS, ("index", 0.05)])
def test_inputs_are_those_of_scikit_learn(form, holes, tmp_path):
    given, later = frame(holes=holes), frame(100, 0.1)
    later.loc[:4, "city"] = "elsewhere"
    path = tmp_path / "credit.data"
    written(path, form, given)
    target = "column7" if form == "spaces" else "risk"
    data = table(str(path), target, test_share=0)
    columns = [name for name in given.columns if name != "risk"]
    texts = ["status", "purpose", "city"]
    expected = reference(given[columns], [name for name in columns if name not in texts], texts)
    inputs = data.prepared(data.train.inputs)
    assert inputs.dtype == torch.float32
    assert_same_columns(inputs.numpy(), expected.transform(given[columns]))
    if form == "erp":
        given, later = given.replace("good", "größer"), later.replace("good", "größer")
    good = "größer" if form == "erp" else "good"
    assert data.class_names == ("bad", good)
    assert [data.class_names[at] for at in data.train.targets] == given["risk"].tolist()
    if form == "spaces":
        names = [*(each.name for each in data.columns.features), target]
        later, given = later.dropna().set_axis(names, axis=1), given.set_axis(names, axis=1)
        columns, texts = names[:-1], [f"column{number}" for number in (1, 3, 5)]
        numbers = [name for name in columns if name not in texts]
        expected = reference(given[columns], numbers, texts)
    rows = rows_of(later, data.columns)  # that the run has not seen
    new = data.prepared(inputs_of(rows, data.columns))
    assert_same_columns(new.numpy(), expected.transform(later[columns]))
    assert torch.equal(
        targets_of(rows, data.columns), torch.tensor((later[target] == good).to_numpy()).long()
    )


def test_statistics_are_those_of_the_training_rows(tmp_path):
    given = frame(holes=0.05)
    given[:300].to_csv(tmp_path / "train.csv", index=False)
    given[300:].to_csv(tmp_path / "test.csv", index=False)
    data = table(str(tmp_path), "risk")
    texts = ["status", "purpose", "city"]
    expected = reference(given[:300], ["months", "amount", "year"], texts)
    for split, rows in ((data.train, given[:300]), (data.test, given[300:])):
        assert_same_columns(data.prepared(split.inputs).numpy(), expected.transform(rows))
    whole = tmp_path / "whole.csv"
    given.to_csv(whole, index=False)
    shared = table(str(whole), "risk")
    assert (len(shared.train), len(shared.test)) == (320, 80)
    found = shared.prepared(shared.train.inputs)
    mean = [each.kind for each in shared.columns.features if each.kind != "category"]
    assert found[:, : len(mean)].mean(0).abs().max() < 1e-5
    given.fillna(0).to_csv(whole, index=False)
    numbers = csv(str(whole), "risk", ["months", "amount"])
    assert numbers.prepared(numbers.train.inputs).mean(0).abs().max() < 1e-5


def test_dates_are_days_and_places_on_circles(tmp_path):
    random = np.random.default_rng(0)
    times = pandas.Timestamp("2019-03-01") + pandas.to_timedelta(random.integers(0, 9e7, 60), "s")
    given = pandas.DataFrame({"at": times, "day": times.floor("D"), "y": random.normal(size=60)})
    given.loc[3, "at"] = pandas.NaT
    days = (given[["at", "day"]] - pandas.Timestamp(0)) / pandas.Timedelta("1D")
    found = {}
    for name, form in (("iso.csv", "%Y-%m-%d"), ("german.csv", "%d.%m.%Y"), ("us.csv", "%m/%d/%Y")):
        shown = given.assign(
            at=given["at"].dt.strftime(f"{form} %H:%M:%S"), day=given["day"].dt.strftime(form)
        )
        shown.to_csv(tmp_path / name, index=False)
        found[name] = table(str(tmp_path / name), "y", test_share=0)
    given.to_parquet(tmp_path / "t.parquet")
    found["t.parquet"] = table(str(tmp_path / "t.parquet"), "y", test_share=0)
    turns = np.stack(
        [days["at"] / p for p in (365.2425, 7, 1)] + [days["day"] / p for p in (365.2425, 7)], 1
    )
    angles = 2 * np.pi * (turns % 1)
    parts = [(days - days.mean()) / days.std(ddof=0), np.sin(angles), np.cos(angles)]
    expected = np.nan_to_num(np.concatenate(parts, 1))
    expected = np.concatenate([expected, days[["at"]].isna()], 1)
    for data in found.values():
        assert [each.kind for each in data.columns.features] == ["time", "date"]
        np.testing.assert_allclose(data.prepared(data.train.inputs), expected, atol=2e-6)


@pytest.mark.parametrize("rows", [False, True])
def test_lists_are_windows(rows, tmp_path):
    random = np.random.default_rng(0)
    x, y = random.normal(3, 2, (30, 16)), random.normal(-1, 5, (30, 16))
    columns = {"x": [*x], "label": random.choice(["sit", "go"], 30), "y": [*y]}
    if rows:
        columns["age"] = random.normal(40, 9, 30)
    given = pandas.DataFrame(columns)
    given.to_parquet(tmp_path / "windows.parquet")
    data = table(str(tmp_path / "windows.parquet"), "label", test_share=0)
    scaled = np.stack([(each - each.mean()) / each.std() for each in (x, y)], 1)
    found = data.prepared(data.train.inputs)
    np.testing.assert_allclose(found[1] if rows else found, scaled, atol=2e-6)
    if rows:
        assert found[0].shape == (30, 1)
    again = inputs_of(rows_of(given, data.columns), data.columns)
    assert torch.equal(
        again[1] if rows else again, data.train.inputs[1] if rows else data.train.inputs
    )


def test_a_transform_is_made_again_by_its_arguments(tmp_path):
    frame(holes=0.1).to_csv(tmp_path / "t.csv", index=False)
    data = table(str(tmp_path / "t.csv"), "risk")
    again = TableTransform(**data.transform.arguments())
    assert torch.equal(again(data.test.inputs), data.prepared(data.test.inputs))
    text = data.columns.to_json()
    assert Columns.from_json(text) == data.columns
    assert table(str(tmp_path / "t.csv"), "risk", columns=text) is data  # it is not read again
    arrow = pyarrow.Table.from_pandas(frame(holes=0.1))
    parquet.write_table(arrow, tmp_path / "t.parquet")
    assert torch.equal(
        inputs_of(rows_of(arrow, data.columns), data.columns).nan_to_num(-9),
        inputs_of(rows_of(tmp_path / "t.parquet", data.columns), data.columns).nan_to_num(-9),
    )


@pytest.mark.system  # torch.export takes 7 s
def test_a_transform_can_be_exported(tmp_path):
    frame(holes=0.1).to_csv(tmp_path / "t.csv", index=False)
    data = table(str(tmp_path / "t.csv"), "risk")
    rows = data.test.inputs
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(data.transform, (rows[:5],), dynamic_shapes=[{0: batch}])
    assert torch.equal(program.module()(rows), data.prepared(rows))
