"""Finders of Python's import system: subpackages beside this folder, and names of older releases.

In older releases each subpackage was a package at the top level, such as `task`, and the library's
wheel had the contents of `compression` in `edgewire`. An import by such a name raises an error that
has the new name: a second copy of a module would have its own classes and registries.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

FOLDERS = ("client", "strategy", "compression", "conf")  # the subpackages beside this folder
RENAMED = {  # words with which the names of modules began -> what they are called
    **{name: f"edgewire.{name}" for name in (*FOLDERS, "command", "deploy", "protocol", "report")},
    **{name: f"edgewire.{name}" for name in ("simulation", "task")},
    "benchmarks": "papers.benchmarks",
    "launch": "edgewire.engines",
    "conf.packages": "edgewire.conf.own_packages",
    "conf.targets": "edgewire.conf.classes",
    "strategy.pipeline": "edgewire.pipeline.server",
    "client.segment": "edgewire.pipeline.node",
}


def new_name(name: str) -> str | None:
    """Return what a module or class of an older release is called now; None for any other name."""
    old = max((o for o in RENAMED if f"{name}.".startswith(f"{o}.")), key=len, default=None)
    return None if old is None else RENAMED[old] + name.removeprefix(old)


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
            raise ImportError(f"{name} is called {new_name(name)} now", name=name)


class OldNames:
    """Raises an error with a module's new name for an old name that no other finder has found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Return None. Raises `ModuleNotFoundError` for an old name of a module."""
        first, _, rest = name.partition(".")
        now = None if rest else new_name(name)
        if first == "edgewire" and rest and "." not in rest:  # a module of the library's old wheel
            inner = f"edgewire.compression.{rest}"
            now = inner if find_spec(inner) else None
        if now is not None:
            raise ModuleNotFoundError(f"{name} is called {now} now", name=name)
