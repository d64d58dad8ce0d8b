"""`resume=DIR` continues a run that ended early, or reports in one line why it cannot.

Killed runs are in `tests/command/test_stops.py`.
"""

import json
import math
import os

import pytest

from compression import PayloadError
from strategy.run import checkpoint_file
from strategy.run.run import Run
from tests.runs import model_bytes


def rows_of(folder):
    path = folder / "history.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def stopped(cli, tmp_path, monkeypatch):
    """Return the folder of a run that ended early and has a checkpoint."""
    done, folder = Run.round_done, tmp_path / "stopped"

    def some(self, server_round, arrays):
        if server_round == 3:
            raise PayloadError("the power is off")
        return done(self, server_round, arrays)

    monkeypatch.setattr(checkpoint_file, "SHARE", math.inf)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "round_done", some)
        words = ["algorithm=esgd", "nodes=2", "rounds=5", "engine.workers=1", "batch_size=16"]
        assert cli(*words, f"hydra.run.dir={folder}")[0] == 1
    return folder


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rounds=9"], "rounds=9 does not go with resume="),
        (["-m"], "-m does not go with resume="),
        (["algorithm=esgd", "verbose=true"], "algorithm=esgd does not go with resume="),
        (["resume=elsewhere"], "the folder of one run"),
    ],
)
def test_other_overrides_are_refused_in_one_line(cli, stopped, words, said):
    assert said in one_line(cli, f"resume={stopped}", *words)
    assert (stopped / checkpoint_file.FILE).exists()


def test_unusable_folders_are_refused(cli, stopped, tmp_path):
    assert "no such folder" in one_line(cli, f"resume={tmp_path / 'nowhere'}")
    assert "there is no checkpoint" in one_line(cli, f"resume={tmp_path}")
    assert "the folder of one run" in one_line(cli, "resume=")
    (stopped / ".hydra" / "config.yaml").unlink()
    assert "its configuration is gone" in one_line(cli, f"resume={stopped}")


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


def test_another_run_in_the_same_folder_leaves_no_checkpoint_of_the_first(cli, stopped):
    words = ["algorithm=esgd", "nodes=2", "rounds=2", "checkpoint_every=0", "engine.workers=1"]
    assert cli(*words, f"hydra.run.dir={stopped}")[0] == 0
    assert not (stopped / checkpoint_file.FILE).exists()


def test_a_run_whose_model_cannot_be_written_ends_with_1_and_is_resumed(cli, tmp_path, monkeypatch):
    folder, renamed = tmp_path / "full", os.replace
    monkeypatch.setattr(checkpoint_file, "SHARE", math.inf)
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
