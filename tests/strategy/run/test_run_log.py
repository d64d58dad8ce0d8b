"""The files that a run writes."""

import json
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from strategy.run.run_log import RunLog
from task.objectives.classification import Classification


def test_history_and_result(tmp_path):
    folder = tmp_path / "new" / "folder"
    records = RunLog(str(folder), Classification())
    for i, accuracy in enumerate([0.1, 0.9, None, 0.7, None]):
        loss = None if accuracy is None else 1 - accuracy
        records.add({"round": i, "accuracy": accuracy, "loss": loss, "uplink_bytes": 10 * i})
    tensor = torch.arange(6.0).reshape(2, 3)
    extra = {"extra": float("nan"), "lists": [1.0, {"of": float("inf")}]}
    result = records.finish(extra, {"w": tensor[:, :2]})
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(a["seconds"] <= b["seconds"] for a, b in pairwise(rows))
    written = json.loads((folder / "result.json").read_text())
    assert written["accuracy"] == 0.7  # the last measured accuracy
    assert written["loss"] == pytest.approx(0.3)
    assert written["best_accuracy"] == 0.9
    assert written["uplink_bytes"] == 40
    assert written["extra"] is None  # JSON has no NaN
    assert written["lists"] == [1.0, {"of": None}]
    assert set(written["versions"]) >= {"python", "cpu", "flwr", "torch", "numpy"}
    assert result["uplink_bytes"] == 40
    assert torch.equal(load_file(folder / "model.safetensors")["w"], tensor[:, :2])
    assert not list(folder.glob("*.part"))


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = RunLog("", Classification())
    records.add({"round": 0, "accuracy": 0.5, "loss": 1.0})
    assert records.finish({}, {})["accuracy"] == 0.5
    assert not list(tmp_path.iterdir())


def test_a_full_disk_ends_the_history_and_not_the_run(tmp_path, caplog):
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    records = RunLog(str(tmp_path), Classification())
    for number in range(3):
        records.add({"round": number, "accuracy": 0.5, "loss": 1.0})
    assert caplog.text.count("history.jsonl ends here") == 1
    assert records.finish({}, {"w": torch.ones(2)})["round"] == 2


def test_an_undefined_main_metric_is_said_once(caplog):
    records = RunLog("", Classification())
    for number, value in enumerate([float("nan"), float("nan"), 0.5]):
        records.add({"round": number, "accuracy": value, "loss": 1.0})
    assert [each.getMessage()[:24] for each in caplog.records] == ["round 0: accuracy is nan"]
    assert records.finish({}, {})["best_accuracy"] == 0.5


def test_a_loss_that_is_not_finite_is_a_divergence_and_no_undefined_metric(caplog):
    records = RunLog("", Classification())
    records.add({"round": 0, "accuracy": float("nan"), "loss": float("nan")})
    assert records.finish({}, {})["diverged"]
    assert not caplog.records


def test_the_newest_model_is_saved_at_intervals(tmp_path, caplog, monkeypatch):
    records = RunLog(str(tmp_path), Classification())
    assert records.due  # the first model is due at once
    records.keep({})
    assert not records.due
    monkeypatch.setattr("strategy.run.run_log.OFTEN", -1.0)
    assert records.due
    records.keep({"w": torch.ones(2)})
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [1, 1]
    (tmp_path / "model.safetensors.part").mkdir()  # a folder here makes writing fail
    records.keep({"w": torch.zeros(2)})
    assert "the newest model cannot be written" in caplog.text
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [1, 1]


def test_without_a_folder_nothing_is_ever_due():
    assert not RunLog("", Classification()).due
