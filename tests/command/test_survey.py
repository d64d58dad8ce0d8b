"""`dataset.columns=survey` asks the nodes before a run, which then has finished columns."""

import json

import numpy as np
import pandas
import pytest
from omegaconf import OmegaConf

from edgewire.task.tables.columns import Columns
from tests.runs import result_of

WORDS = ["task=table", "dataset.target=churn", "nodes=2", "rounds=1", "engine.workers=1"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    random = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("table") / "table.csv"
    churn = random.choice(["no", "yes"], 80, p=[0.75, 0.25])
    pandas.DataFrame({"age": random.normal(40, 9, 80), "churn": churn}).to_csv(file, index=False)
    return f"dataset.root={file}"


@pytest.mark.system
def test_a_run_with_a_survey(command, root):
    words = ["dataset.columns=survey", "objective.class_weights=balanced"]
    code, said, folder = command(*WORDS, root, *words)
    assert (code, said.err) == (0, "")
    assert "of 2 of 2 nodes, which sent" in said.out
    cost = result_of(folder)["survey"]
    counts = np.array(cost["classes"])
    saved = OmegaConf.load(folder / ".hydra/config.yaml")
    assert list(saved.objective.class_weights) == pytest.approx(80 / (2 * counts))
    assert saved.objective.metrics[0] == "balanced_accuracy"
    text = (folder / "columns.json").read_text()
    assert (json.loads(text)["survey"], counts.sum()) == (cost, 80)
    assert saved.dataset.columns == Columns.from_json(text).to_json()
    code, said, again = command(*WORDS, root, f"dataset.columns={folder}/columns.json")
    assert (code, said.err) == (0, "")
    assert "survey" not in result_of(again)
    assert not (again / "columns.json").exists()


def test_a_problem_is_one_line_and_leaves_nothing(command, root):
    code, said, folder = command(*WORDS, root, "dataset.columns=survey", "dataset.target=chrun")
    assert code == 2
    assert said.err.count("\n") == 1
    assert "the survey has no column chrun (did you mean churn?)" in said.err
    assert not (folder / "result.json").exists()
