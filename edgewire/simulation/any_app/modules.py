"""Makes Python search an app's modules in the app's folder first, whatever their names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).parents[2]
LIBRARY = {"compression"}  # the one package of this project that other apps may import
OURS = {"benchmarks", "client", "command", "conf", "deploy", "docs", "launch", "protocol",
        "report", "simulation", "strategy"}  # fmt: skip
OURS |= {"task", "tests", *LIBRARY}  # the packages in HOME


class OneFolderFinder(MetaPathFinder):
    """Finds top-level modules with certain names in one folder."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        self._folder, self._names = str(folder), names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a module's spec; None for a module with another name."""
        return PathFinder.find_spec(name, [self._folder]) if name in self._names else None


def enter(folder: Path) -> None:
    """Make `import` search an app's folder before all others, as Flower does.

    Of this project's packages, `import` then finds only `LIBRARY`, unless the app has a module of
    that name. The app's modules have priority even if this project is installed, and even for a
    folder without an `__init__.py`. Without this function, Python prefers any package on `sys.path`
    to such a folder.
    """
    path, ours = str(folder), {str(HOME)} - {str(folder)}
    if sys.path[:1] != [path]:
        sys.path[:] = [path, *(entry for entry in sys.path if entry not in {path, *ours})]
    if not any(isinstance(finder, OneFolderFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OneFolderFinder(folder, OURS))
        sys.meta_path.append(OneFolderFinder(HOME, LIBRARY))
