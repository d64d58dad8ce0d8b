"""The files that a run writes."""

import json
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from edgewire.strategy.run import checkpoint_file
from edgewire.strategy.run.run_log import RunLog
from edgewire.strategy.run.whole_files import NotWritten
from edgewire.task.objectives.classification import Classification


def test_history_and_result(tmp_path):
    folder = tmp_path / "new" / "folder"
    records = RunLog(str(folder), Classification())
    for i, accuracy in enumerate([0.1, 0.9, None, 0.7, None]):
        loss = None if accuracy is None else 1 - accuracy
        records.add({"round": i, "accuracy": accuracy, "loss": loss, "uplink_bytes": 10 * i})
    tensor = torch.arange(6.0).reshape(2, 3)
    extra = {"extra": float("nan"), "lists": [1.0, {"of": float("inf")}]}
    result = records.finish(extra, {"w": tensor[:, :2]}, tensor)
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
    assert records.finish({}, {}, WEIGHTS["w"])["accuracy"] == 0.5
    assert not list(tmp_path.iterdir())


FULL = OSError(28, "No space left on device")
WEIGHTS = {"w": torch.ones(2)}
Space = st.none() | st.integers(0, 300)  # the bytes that one call of `os.pwrite` writes; None: all


def row(number):
    return {"round": number, "accuracy": 0.5, "loss": 1.0}


@given(spaces=st.lists(Space, max_size=20), saved=st.integers(0, 9))
def test_rows_wait_while_the_disk_is_full_and_are_written_later(spaces, saved):
    """A write fails at any byte, for any number of rounds; then the run is resumed."""
    write, left, state = os.pwrite, list(spaces), None

    def some(handle, data, offset):
        space = left.pop(0) if left else None
        if space == 0:
            raise FULL
        return write(handle, data[:space], offset)

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", some)
        records = RunLog(folder, Classification())
        for number in range(10):
            records.add(row(number))
            if number >= saved and state is None:
                with suppress(OSError):
                    state = records.save()
        left.clear()
        state = state or records.save()
        records.add(row(10))
        assert rounds_in(folder) == list(range(11))
        resumed = RunLog(folder, Classification(), anew=False)
        resumed.load(state)
        for number in range(state.last["round"] + 1, 12):
            resumed.add(row(number))
        resumed.finish({}, WEIGHTS, WEIGHTS["w"])
        assert rounds_in(folder) == list(range(12))


def rounds_in(folder):
    lines = (Path(folder) / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["round"] for line in lines]


def test_a_full_disk_does_not_end_the_run_and_is_said_once(tmp_path, caplog):
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    records = RunLog(str(tmp_path), Classification())
    for number in range(3):
        records.add(row(number))
    assert caplog.text.count("its rows wait for space") == 1
    with pytest.raises(OSError, match="No space left"):
        records.save()
    with pytest.raises(NotWritten, match="its last good state: none"):
        records.finish({"stopped": None, "ended": "finished"}, WEIGHTS, WEIGHTS["w"])
    said = "its end cannot be written: No space left on device"
    assert json.loads((tmp_path / "result.json").read_text())["ended"] == said


@pytest.mark.parametrize(
    ("failing", "there", "good"),
    [
        ("model.safetensors", [], "none"),
        ("model.safetensors", ["model"], "model.safetensors, of round 0"),
        ("model.safetensors", ["model", "checkpoint"], "checkpoint"),
        ("result.json", ["checkpoint"], "checkpoint"),
    ],
)
def test_a_run_whose_end_is_not_on_the_disk_names_the_last_good_state(
    failing, there, good, tmp_path, monkeypatch
):
    records = RunLog(str(tmp_path), Classification())
    records.add(row(0))
    if "model" in there:
        records.keep(WEIGHTS)
    if "checkpoint" in there:
        checkpoint_file.write(tmp_path, {})
    records.add(row(1))
    renamed = os.replace

    def some(partial, path):
        if Path(path).name == failing:
            raise FULL
        renamed(partial, path)

    monkeypatch.setattr(os, "replace", some)
    with pytest.raises(NotWritten, match=f"No space left on device; .*{good}$"):
        records.finish({"stopped": None, "ended": "finished"}, WEIGHTS, WEIGHTS["w"])
    assert not list(tmp_path.glob("*.part"))
    if failing != "result.json":
        assert json.loads((tmp_path / "result.json").read_text())["stopped"]


def test_an_undefined_metric_is_never_the_best_and_an_undefined_loss_a_divergence():
    records = RunLog("", Classification())
    for number, value in enumerate([float("nan"), float("nan"), 0.5]):
        records.add({"round": number, "accuracy": value, "loss": 1.0})
    assert records.finish({}, {}, WEIGHTS["w"])["best_accuracy"] == 0.5
    records.add({"round": 3, "accuracy": float("nan"), "loss": float("nan")})
    assert records.finish({}, {}, WEIGHTS["w"])["diverged"]


def test_the_newest_model_is_saved_at_intervals(tmp_path, caplog, monkeypatch):
    records = RunLog(str(tmp_path), Classification())
    assert records.due  # the first model is due at once
    records.keep({})
    assert not records.due
    monkeypatch.setattr("edgewire.strategy.run.run_log.OFTEN", -1.0)
    assert records.due
    records.keep({"w": torch.ones(2)})
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [1, 1]
    (tmp_path / "model.safetensors.part").mkdir()  # a folder here makes writing fail
    records.keep({"w": torch.zeros(2)})
    assert "the newest model cannot be written" in caplog.text
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [1, 1]


def test_without_a_folder_nothing_is_ever_due():
    assert not RunLog("", Classification()).due
