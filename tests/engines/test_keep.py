"""A run is resumed until it is done, whatever ends its command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgewire.engines import keep
from edgewire.machine.job import CHECKPOINT
from edgewire.strategy.run import checkpoint_file
from tests import fork_server
from tests.deploy.processes import eventually

# Each attempt takes the next of the given steps: (exit code, rows to add, files to leave).
COMMAND = """
import json, sys
from pathlib import Path
here = Path(__file__).parent
log = here / "asked.jsonl"
asked = log.read_text().splitlines() if log.exists() else []
log.write_text("\\n".join([*asked, json.dumps(sys.argv[1:])]))
code, rows, files = json.loads((here / "steps.json").read_text())[len(asked)]
run = here / "run"
run.mkdir(exist_ok=True)
with (run / "history.jsonl").open("a") as history:
    history.write("{}\\n" * rows)
for name in ("checkpoint", "superlink.json", "result.json"):
    (run / name).unlink(missing_ok=True)
for name, content in files.items():
    (run / name).write_text(content)
sys.exit(code)
"""
LEFT, DONE = {"checkpoint": "x"}, {"result.json": "{}"}
DIVERGED = {"checkpoint": "x", "result.json": json.dumps({"diverged": True})}


@pytest.fixture
def attempts(tmp_path, monkeypatch):
    """Return a function that keeps a run with these steps; it returns the code and all words."""
    monkeypatch.setattr(keep, "PAUSE", 0.0)
    monkeypatch.setattr(keep, "RUN", tmp_path / "command.py")
    (tmp_path / "command.py").write_text(COMMAND)

    def call(*steps):
        (tmp_path / "steps.json").write_text(json.dumps(steps))
        code = keep.main([str(tmp_path / "run"), "--", "lr=0.1"])
        return code, [json.loads(line) for line in (tmp_path / "asked.jsonl").open()]

    return call


@pytest.mark.parametrize(
    ("steps", "code", "resumed"),
    [
        ([(0, 3, DONE)], 0, 0),
        ([(-9, 1, LEFT), (1, 1, {"superlink.json": "{}"}), (143, 1, LEFT), (0, 1, DONE)], 0, 3),
        ([(2, 0, {})], 2, 0),
        ([(130, 1, LEFT)], 130, 0),
        ([(1, 1, DIVERGED)], 1, 0),
        ([(1, 1, LEFT)] + [(1, 0, LEFT)] * 8, 1, 8),
        ([*([(1, 0, LEFT)] * 7), (1, 1, LEFT), *([(1, 0, LEFT)] * 7), (0, 0, DONE)], 0, 15),
    ],
)
def test_a_command_that_fails_is_called_again_while_the_run_can_go_on(
    steps, code, resumed, attempts, tmp_path
):
    found, asked = attempts(*steps)
    assert found == code
    assert asked[0] == ["lr=0.1", f"hydra.run.dir={tmp_path / 'run'}"]
    assert asked[1:] == [[f"resume={tmp_path / 'run'}"]] * resumed


def test_a_run_without_a_checkpoint_begins_again_and_a_finished_one_does_not(attempts, capsys):
    code, asked = attempts((1, 0, {}), (0, 1, DONE))
    assert (code, asked[1]) == (0, asked[0])
    assert attempts()[0] == 0
    assert "holds a run that is over" in capsys.readouterr().out


def test_the_checkpoint_has_one_name():
    assert CHECKPOINT == checkpoint_file.FILE


def test_words_can_be_in_a_file_as_in_a_shell(attempts, tmp_path, capsys):
    words = tmp_path / "kitchen.run"
    words.write_text("# two words\ndataset.root='my photos' 'a=[b, \"c\"]'\n\n")
    (tmp_path / "steps.json").write_text(json.dumps([(0, 1, DONE)]))
    assert keep.main([str(tmp_path / "run"), "--", f"@{words}"]) == 0
    (asked,) = map(json.loads, (tmp_path / "asked.jsonl").open())
    assert asked[:2] == ["dataset.root=my photos", 'a=[b, "c"]']
    words.write_text("lr='0.1")
    for file in (words, tmp_path / "none"):
        with pytest.raises(SystemExit, match="2"):
            keep.main([str(tmp_path / "run"), "--", f"@{file}"])
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"{keep.PROG}: error: ")


@pytest.mark.system
def test_a_run_whose_command_is_killed_ends_as_an_undisturbed_one(tmp_path):
    words = ["rounds=12", "checkpoint_every=1", "algorithm=edgewire", "nodes=4", "seed=3"]
    plain = [sys.executable, str(keep.RUN), *words, f"hydra.run.dir={tmp_path / 'plain'}"]
    fork_server.run(plain, check=True)
    folder = tmp_path / "kept"
    command = [sys.executable, "-m", "edgewire.engines.keep", str(folder), "--", *words]
    kept = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    killed = 0
    while killed < 2 and kept.poll() is None:
        rows = keep.rows_of(folder)
        eventually(lambda rows=rows: keep.rows_of(folder) > rows or kept.poll() is not None)
        children = Path(f"/proc/{kept.pid}/task/{kept.pid}/children")
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)
            killed += 1
    _, said = kept.communicate(timeout=120)
    assert kept.returncode == 0, said
    assert said.count("is resumed in 5 s") == killed == 2
    models = [(each / "model.safetensors").read_bytes() for each in (tmp_path / "plain", folder)]
    assert models[0] == models[1]
