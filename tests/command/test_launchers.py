"""Sweeps whose jobs run in other processes."""

import pickle
import subprocess
import sys
from pathlib import Path

from command.job import job

ROOT = Path(__file__).parents[2]


FRESH = """
import os, pickle, sys
print(pickle.loads({pickled!r}), os.environ['OMP_NUM_THREADS'])
from client.training import Trainer
from command.job import prepare
from conf.load import compose_config, to_config
config = to_config(compose_config([]))
prepare(config)
Trainer(config)
print({{"torch._dynamo", "seaborn", "sklearn", "torchvision"}} & sys.modules.keys())
"""


def test_the_task_is_known_by_its_name_in_a_fresh_process():
    """Launchers pickle it; what is pickled by name is not the function's code.

    Such a process, as each on a device, imports nothing slow that the run has no use for.
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
