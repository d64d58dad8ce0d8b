"""Nodes with tables of their own train without data at the server: the columns come from them."""

import json

import numpy as np
import pandas
import pytest

from tests.deploy.servers import Field
from tests.runs import result_of

WORDS = ["engine=superlink", "nodes=2", "task=table", "dataset.target=churn", "rounds=2",
         "dataset.holdout=0.25", "network=ideal"]  # fmt: skip


@pytest.mark.system
def test_columns_come_from_the_nodes(command, tmp_path):
    files = []
    for number, names in enumerate([["basic", "home"], ["home", "roam"]]):
        random = np.random.default_rng(number)
        age, plan = random.normal(40, 9, 60).round(1), random.choice(names, 60)
        churn = np.where(age + 9 * (plan == "home") > 42, "yes", "no")
        files.append(tmp_path / f"{number}.csv")
        pandas.DataFrame({"age": age, "plan": plan, "churn": churn}).to_csv(files[-1])
    with Field(tmp_path) as field:
        field.serve(["--insecure", "--host", "127.0.0.1", "--state", str(tmp_path / "s")])
        field.connect()
        for number, file in enumerate(files):
            field.node(f"n{number}", "--node-config", f'data="{file}"')
        field.online(2)
        code, said, folder = command(*WORDS, f"engine.address=127.0.0.1:{field.port}")
    assert code == 0, said
    result, columns = result_of(folder), json.loads((folder / "columns.json").read_text())
    assert [each["name"] for each in columns["features"]] == ["age", "plan"]
    assert {*columns["features"][1]["values"]} == {"home", "basic", "roam"}
    assert result["class_names"] == ["no", "yes"]
    assert result["survey"] == columns["survey"]
    assert result["survey"]["nodes"] == 2
    assert 300 < result["survey"]["uplink_bytes"] < 1000
    assert sum(result["survey"]["classes"]) == 120
    assert result["failures"] == 0
    assert result["client_updates"] == 4
    assert "of 2 of 2 nodes, which sent" in said.out
    assert not (folder / "survey").exists()
