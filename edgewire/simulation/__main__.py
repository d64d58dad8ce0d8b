"""Runs any Flower app on the local engine: `python -m edgewire.simulation PATH`.

This process imports the app's modules. So no other module of this project is at the top level.
"""

import os
import sys
import time

from edgewire.machine.startup_signals import early_stop

if __name__ == "__main__":
    began = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when the app imports torch
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    # The check for a GPU must not initialize CUDA: a forked process could not use it then.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which Flower's own processes do not search
    with early_stop():
        from edgewire.simulation.any_app.main import main
    sys.exit(main(began))
