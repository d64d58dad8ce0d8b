"""Data of Python objects become a file in a run's folder, and a mistake in them is one line."""

import random

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from edgewire import RunFailed, load_model, train
from edgewire.command.python_data import data_in
from tests.runs import result_of

FEW = ["rounds=2", "nodes=3", "engine.workers=1"]
ROWS = 200


def customers():
    """Return a table with numbers, texts, dates, gaps, and a class that they tell."""
    drawn = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "age": drawn.normal(40, 10, ROWS),
            'plan "a, b"': drawn.choice(["a", "b,\n", "c=$[1]"], ROWS),
            "since": pd.date_range("2020-01-01", periods=ROWS),
            "calls": pd.array(drawn.integers(0, 9, ROWS), dtype="Int64"),
        },
        index=range(1000, 1000 + ROWS),
    )
    frame["churn=it"] = np.where(frame["age"] > 40, "yes", "no")
    frame.loc[1003, "calls"] = pd.NA
    return frame


class Net(nn.Module):
    """A model for five numbers and two classes; it draws from Python's random numbers."""

    def __init__(self):
        super().__init__()
        random.random()
        self.inner = nn.Linear(5, 2)

    def forward(self, x):
        return self.inner(x.float())


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("data"))
        yield


def test_a_table_trains_a_model_that_predicts_its_rows():
    frame = customers()
    result = train(*FEW, data=frame, target="churn=it", progress=False)
    assert result.classes == ("no", "yes")
    low, high = result.interval
    assert low < result.metrics["accuracy"] < high
    assert {"data.parquet", "result.json"} <= {file.name for file in result.folder.iterdir()}
    found = result.predict(frame.drop(columns="churn=it").head(5))
    assert list(found.index) == [1000, 1001, 1002, 1003, 1004]
    whole = load_model(result.folder).predict(result.folder / "data.parquet")
    assert list(whole["class"][:5]) == list(found["class"])
    with pytest.raises(RunFailed, match="has no column age"):
        result.predict(frame[["calls"]])
    again = train(start=result.folder, data=frame.head(100), rounds=1, progress=False)
    assert result_of(again.folder)["data"] == {
        "train": 80,
        "test": 20,
        "kind": "rows",
        "classes": 2,
    }


def test_arrays_train_a_model_of_ones_own_and_pythons_random_numbers_stay():
    x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(0))
    before = random.getstate()
    result = train(*FEW, data=(x, (x[:, 0] > 0).long()), model=Net, progress=False)
    assert random.getstate() == before
    assert set(result.state_dict()) == {"inner.weight", "inner.bias"}
    assert (result.folder / "data.npz").is_file()
    assert len(result.predict(x[:4])) == 4


TEXTS = np.array(["a", "b"] * (ROWS // 2), object)


@pytest.mark.parametrize(
    ("y", "objective"), [(np.arange(ROWS) / ROWS, "Regression"), (TEXTS, "Classification")]
)
def test_the_targets_decide_what_arrays_are_trained_for(y, objective):
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    result = train("rounds=1", *FEW[1:], data=(x, y), progress=False)
    assert result.values["objective"] == objective
    assert result.interval is None or objective == "Classification"


def words_of(folder, data, target=None, *words):
    with data_in("hydra.run.dir", [f"hydra.run.dir={folder}", *words], data, target) as found:
        return found


@pytest.mark.parametrize(
    ("data", "target", "words", "expected"),
    [
        ({"a": [[1.0]], "b": ["x"]}, "b", [], ["dataset=npz", "dataset.target='b'"]),
        (([[1.0]], [1.0]), None, ["model=mlp"], ["dataset=npz", "objective=regression"]),
        (([[1.0]], [1.0]), None, ["model=mlp", "objective=mine"], ["dataset=npz"]),
        (pd.DataFrame({"a'": [1], "b": [2]}), ["a'", "b"], [], [r"dataset.target=['a\'',b]"]),
    ],
)
def test_words_say_what_the_data_are(data, target, words, expected, tmp_path):
    found = words_of(tmp_path, data, target, *words)
    assert set(expected) <= set(found)
    assert ("objective=regression" in found) == ("objective=regression" in expected)
    assert found[-1 - len(words) :] == [f"hydra.run.dir={tmp_path}", *words]


TABLE = pd.DataFrame({"a": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"data": TABLE}, "needs target="),
        ({"data": TABLE, "target": "b"}, "has no column b"),
        ({"target": "b"}, "which is missing"),
        ({"data": 3}, "takes a DataFrame"),
        ({"data": ()}, "takes a DataFrame"),
        ({"data": ([[1.0]] * 3, [1, 2])}, "x has 3 rows, and y has 2"),
        ({"data": (np.array([object()]), [1])}, "array of Python objects"),
        ({"data": TABLE, "target": "a", "rounds": "x"}, "rounds=x"),
        ({"data": TABLE, "target": "a", "resume": "/nowhere"}, "leave out data="),
        ({"data": TABLE.head(0), "target": "a"}, "rows"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_data(values, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFailed, match=line) as raised:
        train(**values, progress=False)
    assert "\n" not in str(raised.value)
    assert not [path for path in tmp_path.rglob("data.*") if ".hydra" not in path.parts]
