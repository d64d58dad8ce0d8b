"""Makes the import of flwr_datasets lighter: no telemetry, and its plots load at first use."""

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# `datasets`, which flwr_datasets imports, reads these at import: no telemetry, no progress bars.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


class _Late(ModuleType):
    """A module that is executed at the first access to one of its attributes."""

    def __getattr__(self, name: str) -> Any:
        # Code that inspects all of `sys.modules` asks for such names; it must not load the plots.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
        return getattr(self, name)


class _Plots(MetaPathFinder, Loader):
    """Delays the import of flwr_datasets' plots.

    The package imports them with its partitioners; seaborn and scipy take 2 s in each process.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return Python's own spec for the module with the plots, with this object as loader."""
        found = None
        if fullname == "flwr_datasets.visualization":
            found = PathFinder.find_spec(fullname, path, target)
        if found is not None:
            self._loader, found.loader = found.loader, self
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own loader back, and delay its execution."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        module.__class__ = _Late


sys.meta_path.insert(0, _Plots())
