"""Makes the import of flwr_datasets lighter: no telemetry, and its plots load at first use."""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

PLOTS = "flwr_datasets.visualization"  # imported with the partitioners; seaborn and scipy take 2 s

# `datasets`, which flwr_datasets imports, reads these at import: no telemetry, no progress bars.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


class _Late(ModuleType):
    """Stands for the module with the plots, which the first access to an attribute imports."""

    def __getattr__(self, name: str) -> Any:
        # Code that inspects all of `sys.modules` asks for such names; it must not load the plots.
        if name.startswith("__") and name not in ("__all__", "__path__"):
            raise AttributeError(name)
        if sys.modules.get(PLOTS) is self:
            del sys.modules[PLOTS]
        return getattr(importlib.import_module(PLOTS), name)


sys.modules.setdefault(PLOTS, _Late(PLOTS))
