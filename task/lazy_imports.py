"""What importing flwr_datasets brings along: no calls home, and its plots only for who plots."""

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Read when `datasets`, below flwr_datasets, is imported: no calls home, no bars on the screen.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


class _Late(ModuleType):
    """A module that is run when something in it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # who only looks over all modules
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
        return getattr(self, name)


class _Plots(MetaPathFinder, Loader):
    """Leaves flwr_datasets' plots for later.

    The package imports them along with its partitioners: seaborn and scipy, 2 s a process.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find that one module, as Python would, with this as its loader."""
        found = None
        if fullname == "flwr_datasets.visualization":
            found = PathFinder.find_spec(fullname, path, target)
        if found is not None:
            self._loader, found.loader = found.loader, self
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own loader back, and let it wait."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        module.__class__ = _Late


sys.meta_path.insert(0, _Plots())
