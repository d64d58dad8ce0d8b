"""The command: compose the configuration, run it on an engine, print what came out.

Importable, so that launchers of sweeps (`hydra/launcher=joblib`) can call it in other processes;
the environment is set here, before torch and Hydra are imported in any of them.
"""

import os

from task.stdlib_collision import avoid_stdlib_collision

avoid_stdlib_collision()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one torch thread a process: see README
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
# What the user set, for the processes below as well: errors come to us, not to Hydra's own printer.
os.environ.setdefault("EDGEWIRE_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", ""))
os.environ["HYDRA_FULL_ERROR"] = "1"
