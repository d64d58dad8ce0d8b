"""Sweeps whose jobs run in other processes."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from edgewire.command.job import job

ROOT = Path(__file__).parents[2]


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
    pickled = pickle.dumps(job)
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
