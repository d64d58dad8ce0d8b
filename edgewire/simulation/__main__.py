"""Runs any Flower app on the local engine: `python -m edgewire.simulation PATH`; `--help` lists the options.

This process imports the app's modules. An app's module may have the same name as a package of this
project, for example `client`, `strategy` or `simulation`. So this package runs under another name
(`alias/`) and imports no other package of this project.
"""

import os
import sys
import time
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    began = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when the app imports torch
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    # The check for a GPU must not initialize CUDA: a forked process could not use it then.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which Flower's own processes do not search
    sys.path.append(str(Path(__file__).parent / "alias"))
    del sys.modules["simulation"]
    with import_module("edgewire_engine.early_stop").early_stop():
        main = import_module("edgewire_engine.any_app.main").main
    sys.exit(main(began))
