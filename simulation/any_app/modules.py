"""Where an app's modules are found: in its own folder first, whatever their names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

HOME = Path(__file__).parents[2]
LIBRARY = {"compression"}  # the one part of ours that is made for other apps
OURS = {"benchmarks", "client", "command", "conf", "deploy", "docs", "launch", "protocol",
        "report", "simulation", "strategy"}  # fmt: skip
OURS |= {"task", "tests", *LIBRARY}  # what lies in HOME


class Only(MetaPathFinder):
    """Finds top-level modules of some names in one folder."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        self._folder, self._names = str(folder), names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is; None if it is not for this finder to say."""
        return PathFinder.find_spec(name, [self._folder]) if name in self._names else None


def enter(folder: Path) -> None:
    """Let `import` look into an app's folder before all else, as Flower does.

    Of ours it finds the library alone, if the app has nothing of that name. Where ours lie among
    other installed packages, the app's come first as well: even a folder without an `__init__.py`,
    which else gives way to any package further down `sys.path`.
    """
    path, ours = str(folder), {str(HOME)} - {str(folder)}
    if sys.path[:1] != [path]:
        sys.path[:] = [path, *(entry for entry in sys.path if entry not in {path, *ours})]
    if not any(isinstance(finder, Only) for finder in sys.meta_path):
        sys.meta_path.insert(0, Only(folder, OURS))
        sys.meta_path.append(Only(HOME, LIBRARY))
