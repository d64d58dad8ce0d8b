"""A server asks its nodes for the columns of a table; nodes in this process answer."""

import json

import numpy as np
import pandas
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from edgewire.client.app import app
from edgewire.conf.load import run_config
from edgewire.conf.schema import ConfigError
from edgewire.machine.job import Job
from edgewire.simulation.local import run_local
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.survey import survey
from edgewire.task.datasets.table import surveyed
from tests.grids import grid_of
from tests.runs import ROOT, composed, configured

WORDS = ["task=table", "dataset.target=churn", "dataset.columns=survey", "nodes=3"]


@pytest.fixture
def file(tmp_path):
    random = np.random.default_rng(0)
    table = {"age": random.normal(40, 9, 90), "plan": random.choice(["a", "b"], 90)}
    path = tmp_path / "table.csv"
    churn = random.choice(["no", "yes"], 90)
    pandas.DataFrame({**table, "churn": churn}).to_csv(path, index=False)
    return path


def asked(folder, answers, file, *words):
    """Ask three nodes; `answers`: what replaces the survey of a node, from 1 on."""

    def answering(message, context):
        number = context.node_config["partition-id"]
        said = surveyed(number, 3, root=str(file), target="churn").to_bytes()
        said = answers.get(number + 1, said)
        if isinstance(said, Exception):
            raise said
        return Message(RecordDict({"columns": ConfigRecord({"survey": said})}), reply_to=message)

    grid = OrderedGrid(grid_of(answering))
    survey(grid, configured(*WORDS, *words), folder / "out")
    return json.loads((folder / "out" / "columns.json").read_text())


def test_three_nodes_give_the_columns_of_the_table(file, tmp_path):
    found = asked(tmp_path, {}, file)
    assert [each["name"] for each in found["features"]] == ["age", "plan"]
    assert found["target"][0]["values"] == ["no", "yes"]
    cost = found["survey"]
    assert (cost["nodes"], cost["asked"], sum(cost["classes"])) == (3, 3, 90)
    assert 600 < cost["uplink_bytes"] < 1500
    mean = pandas.read_csv(file)["age"].mean()
    assert found["features"][0]["mean"] == pytest.approx(mean, rel=1e-13)


@pytest.mark.parametrize(
    ("answer", "line"),
    [(b"x", "its survey is not valid"), (7, "its survey is not valid"),
     (ValueError("no\nlog"), "no log")],
)  # fmt: skip
def test_a_node_without_a_survey_is_left_out(answer, line, file, tmp_path, caplog):
    assert asked(tmp_path, {2: answer}, file)["survey"]["nodes"] == 2
    assert "node 2: " in caplog.text
    assert line in caplog.text
    with pytest.raises(ConfigError, match=rf"1 of 3 nodes gave columns .* node 3: .*{line}"):
        asked(tmp_path, {2: answer, 3: answer}, file)


def test_a_survey_on_the_local_engine(file, tmp_path):
    """The nodes' own app answers; a run that no command submits is refused."""
    made = composed(*WORDS, f"dataset.root={file}")
    values = dict(run_config(made, str(tmp_path / "out")))
    run_local(Job(ROOT, values, 3, tmp_path), workers=1)
    found = json.loads((tmp_path / "out" / "columns.json").read_text())
    assert found["survey"]["nodes"] == 3
    with pytest.raises(ConfigError, match=r"give dataset\.columns="):
        run_local(Job(ROOT, {**values, **run_config(made, "")}, 3, tmp_path), workers=1)


@pytest.mark.parametrize("said", [False, "false", "False"])
def test_a_node_may_say_no(said):
    context = Context(1, 1, {"partition-id": 0, "survey": said}, RecordDict(), {})
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    with pytest.raises(ConfigError, match="it was started with survey=false"):
        app(Message(RecordDict(), 1, "query.columns"), context)


def test_few_rows_give_no_survey(file, tmp_path, caplog):
    words = [*WORDS, f"dataset.root={file}", "nodes=6"]
    values = dict(run_config(composed(*words), str(tmp_path / "out")))
    with pytest.raises(ConfigError, match=r"0 of 6 nodes .* node 1: .*fewer than 20 rows"):
        run_local(Job(ROOT, values, 6, tmp_path), workers=1)
