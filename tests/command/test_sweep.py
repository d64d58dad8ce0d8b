"""Sweeps: their tables, failed jobs, launchers, and `continue=SWEEP`, which runs the rest."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from edgewire.command import job as command_job
from edgewire.report import table
from tests import fork_server
from tests.runs import QUICK, ROOT, history_of, model_bytes, result_of

SMALL = ["algorithm=esgd", "nodes=2", "rounds=5", "engine.workers=1", "batch_size=16"]


def test_a_failed_job_is_listed_once_and_does_not_end_the_sweep(command, tmp_path):
    for nodes, expected in (("0,2", 2), ("2", 0)):
        again = f"hydra.sweep.dir={tmp_path / 'again'}"
        code, printed, _ = command("-m", *QUICK, f"nodes={nodes}", again)
        assert code == expected
        assert printed.err.count("nodes must be a number of at least 1, not 0") == expected
        assert ("1 of 2 jobs failed" in printed.err) == bool(expected)
        last = tmp_path / "again" / ("1" if expected else "0")
        assert result_of(last)["client_updates"] == 6


@pytest.mark.system
def test_a_diverged_job_is_listed_and_kept_and_does_not_stop_the_sweep(command, cli, capsys):
    code, printed, folder = command("-m", *QUICK, "lr=10000,0.1", "stop_on_failure=true")
    assert code == 1
    assert "1 of 2 jobs failed or diverged" in printed.err
    assert "  0: rounds=3 engine.workers=1 lr=10000" in printed.err
    assert ": the run has diverged; try " in printed.err
    assert "not begun" not in printed.err
    assert [result_of(folder / job)["diverged"] for job in "01"] == [True, False]
    table.main([str(folder)])
    assert f"\ndiverged: {folder / '0'}\n" in capsys.readouterr().out
    before = os.stat(folder / "0" / "history.jsonl").st_mtime_ns
    code, printed = cli(f"continue={folder}")
    assert code == 1
    assert "job 0: not run again: it has diverged" in printed.out
    assert "1 of 2 jobs failed or diverged" in printed.err
    assert os.stat(folder / "0" / "history.jsonl").st_mtime_ns == before


def test_a_sweep_ends_with_a_table_of_its_runs_and_a_command(command, capsys):
    words = [*QUICK, "rounds=1", "nodes=2", "compression=topk,int8", "seed=0,1"]
    code, printed, folder = command("-m", *words)
    assert code == 0
    lines = printed.out.splitlines()
    assert lines[-1] == f"pictures and more: python -m edgewire.report {folder}"
    head, *rows = lines[-4:-1]
    assert head.split()[:3] == ["compression", "runs", "accuracy"]
    assert [row.split()[:2] for row in rows] == [["topk", "2"], ["int8", "2"]]
    assert max(map(len, lines[-4:-1])) <= 100
    table.main([str(folder)])
    assert rows[0].split()[2] in capsys.readouterr().out


@pytest.mark.system
def test_only_what_is_missing_is_run(command, cli, broken):
    """Job 0 has finished, job 1 has a checkpoint, job 2 lacks its result."""
    code, _, whole = command("-m", *SMALL, "seed=2")
    assert code == 0
    code, printed, folder = command("-m", *SMALL, "seed=0,1,2")
    assert code == 1
    broken.undo()
    (folder / "2" / "result.json").unlink()
    before = os.stat(folder / "0" / "model.safetensors").st_mtime_ns
    started = json.loads((folder / "1" / "history.jsonl").read_text().splitlines()[0])
    code, printed = cli(f"continue={folder}")
    assert (code, printed.err) == (0, "")
    assert printed.out.count("not run again") == 1
    assert "job 0: not run again: it has finished" in printed.out
    assert os.stat(folder / "0" / "model.safetensors").st_mtime_ns == before
    rows = [json.loads(line) for line in (folder / "1" / "history.jsonl").read_text().splitlines()]
    assert rows[0] == started  # also its seconds: the run was resumed
    assert [row["round"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert history_of(folder / "2") == history_of(whole / "0")
    assert len([line for line in printed.out.splitlines() if " is done: " in line]) == 2


@pytest.mark.system
def test_a_result_of_another_configuration_does_not_count(command, cli):
    code, _, folder = command("-m", *QUICK, "nodes=2", "seed=0,1")
    assert code == 0
    saved = OmegaConf.load(folder / "multirun.yaml")
    words = [word.replace("rounds=3", "rounds=2") for word in saved.hydra.overrides.task]
    saved.hydra.overrides.task = words
    OmegaConf.save(saved, folder / "multirun.yaml")
    code, printed = cli(f"continue={folder}", "engine.workers=2")
    assert code == 0
    assert "not run again" not in printed.out
    assert [result_of(folder / job)["rounds"] for job in "01"] == [2, 2]


@pytest.mark.system
def test_a_damaged_checkpoint_starts_the_job_again(command, cli, broken):
    code, _, folder = command("-m", *SMALL, "seed=0,1")
    assert code == 1
    broken.undo()
    checkpoint = folder / "1" / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-9])
    code, printed = cli(f"continue={folder}")
    assert (code, printed.err) == (0, "")
    assert "job 1: it starts again, without its checkpoint: " in printed.out
    assert len(history_of(folder / "1")) == 6


@pytest.mark.system
def test_stop_on_failure_begins_no_further_job(command, cli):
    code, printed, folder = command("-m", *QUICK, "nodes=1,0,2", "stop_on_failure=true")
    assert code == 2
    said = f"stop_on_failure=true: 1 of 3 jobs were not begun: `python run.py continue={folder}`"
    assert said in printed.err
    assert not (folder / "2" / "history.jsonl").exists()
    code, printed = cli(f"continue={folder}", "stop_on_failure=false")
    assert code == 2
    assert "not begun" not in printed.err
    assert "job 0: not run again" in printed.out
    assert result_of(folder / "2")["nodes"] == 2


LAUNCHERS = {
    "basic": ("hydra", []),
    "joblib": ("hydra_plugins.hydra_joblib_launcher", ["hydra.launcher.n_jobs=2"]),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", ["hydra.launcher.timeout_min=5"]),
}


def processes(mark):
    """Yield the ids of the processes that have a variable of this value in their environment."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in environ.read_bytes():
                yield int(environ.parent.name)


def begin(folder, mark, *words):
    """Start the command with its output in a file beside the folder; return the process."""
    with folder.with_suffix(".txt").open("w") as output:
        return subprocess.Popen(
            [sys.executable, "run.py", *words],
            cwd=ROOT,
            env={**os.environ, "EDGEWIRE_TEST": mark},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


SWEEP = ["-m", "algorithm=esgd", "nodes=2", "rounds=2,60", "batch_size=16",
         "eval_every=30", "engine.workers=1"]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of the sweep `SWEEP`."""
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    fork_server.run([sys.executable, "run.py", *SWEEP, f"hydra.sweep.dir={folder}"],
                    cwd=ROOT, check=True)  # fmt: skip
    return folder


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_sweep_goes_on_with_every_launcher(launcher, undisturbed, tmp_path):
    package, options = LAUNCHERS[launcher]
    pytest.importorskip(package)
    folder, mark = tmp_path / "sweep", uuid.uuid4().hex
    given = [f"hydra/launcher={launcher}", *options, f"hydra.sweep.dir={folder}"]
    process = begin(folder, mark, *SWEEP, *given)
    deadline = time.monotonic() + 120
    while not list(folder.glob("*/result.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    while found := list(processes(mark)):
        for number in found:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.poll()
    done = [job for job in "01" if (folder / job / "result.json").exists()]
    assert done == ["0"]  # its few rounds end long before the other's
    command = [sys.executable, "run.py", f"continue={folder}"]
    ended = fork_server.run(command, cwd=ROOT, text=True, check=True)
    if launcher != "submitit_local":  # it writes the output of jobs to files of its own
        printed = ended.stdout + ended.stderr
        assert printed.count("not run again: it has finished") == 1
    for job, rounds in zip("01", (2, 60), strict=True):
        assert len(history_of(folder / job)) == rounds + 1
        assert model_bytes(folder / job) == model_bytes(undisturbed / job)


FRESH = """
import os, pickle, sys
print(pickle.loads({pickled!r}), os.environ['OMP_NUM_THREADS'])
from edgewire.client.training import Trainer
from edgewire.command.job import prepare
from edgewire.conf.load import compose_config, to_config
config = to_config(compose_config([]))
prepare(config)
Trainer(config)
slow = {{"torch._dynamo", "seaborn", "sklearn", "torchvision", "scipy", "pandas", "jinja2"}}
print(slow & sys.modules.keys())
"""


@pytest.mark.system
def test_a_fresh_process_loads_the_task_by_name():
    """Launchers pickle the function that runs a job by its name, not by its code.

    A new process, as on a device, imports no slow module that the run does not need.
    """
    pickled = pickle.dumps(command_job.job)
    assert len(pickled) < 100
    script = FRESH.format(pickled=pickled)
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    first, *_, last = found.stdout.splitlines()
    assert first.startswith("<function job ")
    assert first.endswith(" 1")
    assert last == "set()"
