"""A node has one number and one name in the log, nodes.json, the report and the live page."""

import json

import pytest
from omegaconf import OmegaConf

from edgewire.client.training import Trainer
from edgewire.report.__main__ import main
from edgewire.report.html.watch import WatchedReport
from edgewire.report.summary import screen
from tests.local_runs import local_run
from tests.report.made_runs import Page
from tests.runs import composed

WORDS = [
    "dataset=csv", "dataset.target=level", "dataset.group=user", "model=table_mlp",
    "model.columns=1", "objective=regression", "partition=natural", "nodes=3", "rounds=2",
    "engine.workers=1",
]  # fmt: skip


@pytest.fixture
def failing(tmp_path, monkeypatch, caplog):
    """Return the folder of a run with a node for each user, in which bob's training fails."""
    rows = (f"{at % 7},{at % 5}.5,{('ann', 'bob', 'cy')[at % 3]}" for at in range(90))
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["heat,level,user", *rows]))
    train = Trainer.train

    def some(self, node, *arguments, **options):
        if node.index == 1:
            raise ValueError("the sensor gave no reading")
        return train(self, node, *arguments, **options)

    monkeypatch.setattr(Trainer, "train", some)
    local_run(tmp_path / "run", f"dataset.root={table}", *WORDS)
    made = composed(f"dataset.root={table}", *WORDS)
    (tmp_path / "run" / ".hydra").mkdir()
    (tmp_path / "run" / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(made))
    (tmp_path / "run" / ".hydra" / "overrides.yaml").write_text(json.dumps(WORDS))
    return tmp_path / "run"


@pytest.mark.system
def test_a_node_has_one_number_and_one_name(failing, caplog, capsys):
    name = "node 2 (bob)"
    logged = [record.getMessage() for record in caplog.get_records("setup")]
    assert sum(f"{name} left out: " in line for line in logged) == 1
    known = json.loads((failing / "nodes.json").read_text())["nodes"]
    found = [(node["number"], node["name"], node["failures"]) for node in known]
    assert found == [(1, "ann", 0), (2, "bob", 2), (3, "cy", 0)]
    row = f"2 of 6 updates: 2 of {name}, ValueError: the sensor gave no reading"
    assert any(line.split(maxsplit=1)[1] == row for line in screen(failing))
    assert main([str(failing)]) == 0
    assert row in capsys.readouterr().out
    pages = (failing / "report" / "report.html").read_text(), WatchedReport([failing]).shown()[0]
    for page in map(Page, (pages[0], pages[1].decode())):
        assert row in page.text
        assert page.column("nodes", "node") == ["2 (bob)", "1 (ann)", "3 (cy)"]
