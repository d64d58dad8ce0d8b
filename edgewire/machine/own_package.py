"""Lets an app that brings a package `edgewire` of its own run with it, beside this one."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

# What an app imports of EdgeWire. The program that loads the app keeps its own other parts, such as
# `protocol`, also for the app.
_OF_APPS = ("client", "compression", "conf", "pipeline", "strategy", "task")


def use_package_of(folder: Path) -> None:
    """Import the package `edgewire` of an app's folder in place of this one, if the folder has one.

    The folder must be the first on `sys.path`. Modules of this package that the app does not bring,
    such as `edgewire.deploy`, stay imported, and are attributes of the app's package.
    """
    theirs = folder / "edgewire"
    if not (theirs / "__init__.py").is_file() or theirs == Path(__file__).parents[1]:
        return
    del sys.modules["edgewire"]
    for name in list(sys.modules):
        package, _, rest = name.partition(".")
        first = rest.partition(".")[0]
        if package != "edgewire" or first not in _OF_APPS:
            continue
        if any((place / first).is_dir() for place in (theirs, folder)):
            del sys.modules[name]
    found = import_module("edgewire")
    for name, module in list(sys.modules.items()):
        parent, _, last = name.rpartition(".")
        if parent == "edgewire":
            setattr(found, last, module)
