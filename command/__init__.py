"""The command: composes the configuration, runs it on an engine, prints the results.

It is importable, so that launchers of sweeps (`hydra/launcher=joblib`) can call it in other
processes. It sets the environment here, before any of them imports torch or Hydra.
"""

import os

from task.stdlib_collision import avoid_stdlib_collision

avoid_stdlib_collision()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one torch thread per process: see README
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
# The user's own setting, for child processes too: this package prints errors in place of Hydra.
os.environ.setdefault("EDGEWIRE_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", ""))
os.environ["HYDRA_FULL_ERROR"] = "1"
