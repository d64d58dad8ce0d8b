"""`resume=DIR` continues a run that ended early, or reports in one line why it cannot.

Killed runs are in `tests/command/test_stops.py`.
"""

import json
import math
import os
from pathlib import Path

import pytest

from edgewire.strategy.run import checkpoint_file, checkpointer
from tests.runs import model_bytes


def rows_of(folder):
    path = folder / "history.jsonl"
    return path.read_text().splitlines() if path.exists() else []


SMALL = ["algorithm=esgd", "seed=1", "nodes=2", "rounds=5", "engine.workers=1", "batch_size=16"]


@pytest.fixture
def stop(cli, tmp_path, broken):
    """Return a function that begins a run which ends early; it returns the run's folder."""
    folder = tmp_path / "stopped"

    def begin(*words):
        assert cli(*SMALL, *words, f"hydra.run.dir={folder}")[0] == 1
        broken.undo()
        return folder

    return begin


@pytest.fixture
def stopped(stop):
    """Return the folder of a run that ended early and has a checkpoint."""
    return stop()


def one_line(cli, *words):
    """Run the command, assert that it ends with one error line, and return the line."""
    code, printed = cli(*words)
    assert code == 2
    assert len(printed.err.strip().splitlines()) == 1
    return printed.err


def test_a_run_that_failed_can_be_resumed(cli, stopped):
    code, printed = cli(f"resume={stopped}", "checkpoint_every=2")
    assert (code, printed.err) == (0, "")
    rows = [json.loads(line)["round"] for line in rows_of(stopped)]
    assert rows == [0, 1, 2, 3, 4, 5]
    assert "this run is finished" in one_line(cli, f"resume={stopped}")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Work in a new folder that has a table; return the folder."""
    folder = tmp_path / "first"
    folder.mkdir()
    rows = [f"{number / 40},{number % 7},{number % 2}" for number in range(40)]
    (folder / "t.csv").write_text("\n".join(["a,b,target", *rows]))
    monkeypatch.chdir(folder)
    return folder


TABLE = ["dataset=csv", "dataset.root=t.csv", "model=table_mlp", "model.columns=2"]


@pytest.mark.few(1)
@pytest.mark.parametrize("words", [[], ["dataset.root=../b/t"]])
def test_a_run_is_resumed_from_another_folder(cli, stop, table, tmp_path, monkeypatch, words):
    """Relative paths are those of the run's start; an override names files that have moved."""
    stop(*TABLE, "model.outputs=2")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    if words:
        (table / "t.csv").rename(tmp_path / "b" / "t")
    code, printed = cli("resume=../stopped", *words)
    assert (code, printed.err) == (0, "")
    assert len(rows_of(tmp_path / "stopped")) == 6
    assert Path.cwd() == tmp_path / "b"


def test_the_value_of_a_reference_is_not_read_as_json(cli, stopped, monkeypatch, tmp_path):
    monkeypatch.setenv("TABLE", str(tmp_path / 'a"b${oc.env:HOME}.csv'))
    assert cli(f"resume={stopped}", "logger=csv", "logger.csv.file=${oc.env:TABLE}")[0] == 0
    assert (tmp_path / 'a"b${oc.env:HOME}.csv').is_file()


def test_unusable_folders_are_refused(cli, stopped, tmp_path):
    assert "there is no checkpoint" in one_line(cli, f"resume={tmp_path}")
    (stopped / ".hydra" / "config.yaml").unlink()
    assert f"there is no {stopped}/.hydra/config.yaml" in one_line(cli, f"resume={stopped}")


@pytest.mark.system
def test_changes_to_the_folder_are_named(cli, stopped):
    path, history = stopped / checkpoint_file.FILE, stopped / "history.jsonl"
    whole, rows = path.read_bytes(), history.read_bytes()
    for at in (0, 5, 40, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        said = one_line(cli, f"resume={stopped}")
        assert any(why in said for why in ("damaged", "cannot be read", "another version")), said
    for part in (b"", whole[:-1], whole + b"x", b"x" * 100, whole[: len(whole) // 2]):
        path.write_bytes(part)
        assert f"resume={stopped}: the checkpoint" in one_line(cli, f"resume={stopped}")
    path.write_bytes(whole)
    history.write_bytes(rows[: len(rows) // 3])
    assert "history.jsonl lacks rows" in one_line(cli, f"resume={stopped}")
    history.write_bytes(rows)
    config = stopped / ".hydra" / "config.yaml"
    words = config.read_text()
    config.write_text(words.replace("batch_size: 16", "batch_size: 17"))
    assert "another batch_size= there (16)" in one_line(cli, f"resume={stopped}")
    config.write_text(words)
    assert cli(f"resume={stopped}")[0] == 0  # the refused attempts have not damaged the run


def test_a_run_whose_model_cannot_be_written_ends_with_1_and_is_resumed(cli, tmp_path, monkeypatch):
    folder, renamed = tmp_path / "full", os.replace
    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    words = ["algorithm=fedavg", "nodes=2", "rounds=3", "engine.workers=1", "local_steps=1"]

    def some(partial, path):
        if str(path).endswith("model.safetensors"):
            raise OSError(28, "No space left on device")
        renamed(partial, path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", some)
        code, printed = cli(*words, f"hydra.run.dir={folder}")
    line = printed.err.strip().splitlines()[-1]
    assert (code, line.startswith("error: the run has ended")) == (1, True)
    assert f"its last good state: {folder / 'checkpoint'}; `python run.py resume=" in line
    assert cli(f"resume={folder}")[0] == 0
    assert cli(*words, f"hydra.run.dir={tmp_path / 'whole'}")[0] == 0
    assert model_bytes(folder) == model_bytes(tmp_path / "whole")
