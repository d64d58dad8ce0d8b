"""A finder of Python's import system: it finds the subpackages beside the folder `edgewire`.

An import of such a subpackage's module without `edgewire.` in front raises an error that has the
module's name: a second copy of a module would have its own classes and registries.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

FOLDERS = ("client", "strategy", "compression", "conf")  # the subpackages beside this folder


class SubpackagesBeside:
    """Finds the subpackages of `FOLDERS` in the folder in which the folder `edgewire` lies.

    It finds nothing for another package `edgewire`, such as one that an app brings. It also refuses
    to import the subpackages' modules without `edgewire.` in front, from that folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in FOLDERS:
                self._refuse(name, getattr(module, "__file__", None))

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a subpackage; None for other modules. Raises `ImportError`."""
        first, _, rest = name.partition(".")
        if first == "edgewire" and rest in FOLDERS and str(self._folder / first) in (path or ()):
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(self._folder / rest)]
            return spec
        if rest and first in FOLDERS and (found := PathFinder.find_spec(name, path)) is not None:
            self._refuse(name, found.origin)
        return None

    def _refuse(self, name: str, file: str | None) -> None:
        """Raise `ImportError` if a file is in the subpackage that the name begins with."""
        top = self._folder / name.partition(".")[0]
        if file is not None and Path(file).resolve().is_relative_to(top):
            raise ImportError(f"{name} is called edgewire.{name} now", name=name)
