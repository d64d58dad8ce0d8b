"""The command `run.py`: composes a configuration, runs it on an engine, prints the results.

Launchers of sweeps (`hydra/launcher=joblib`) import this package in other processes. Environment
variables are set here, before such a process imports torch or Hydra.
"""

import os

from edgewire.machine.surroundings import find_home

find_home()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one torch thread per process: see README
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
# Stores the user's own setting, also for child processes. This package prints Hydra's errors.
os.environ.setdefault("EDGEWIRE_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", ""))
os.environ["HYDRA_FULL_ERROR"] = "1"
