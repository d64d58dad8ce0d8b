"""Sweeps whose jobs run in other processes."""

import pickle
import subprocess
import sys
from pathlib import Path

from command.job import job

ROOT = Path(__file__).parents[2]


def test_the_task_is_known_by_its_name_in_a_fresh_process():
    """Launchers pickle it; what is pickled by name is not the function's code."""
    pickled = pickle.dumps(job)
    assert len(pickled) < 100
    script = f"import pickle, os; print(pickle.loads({pickled!r}), os.environ['OMP_NUM_THREADS'])"
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("<function job ")
    assert found.stdout.endswith(" 1\n")
