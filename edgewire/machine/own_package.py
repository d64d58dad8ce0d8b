"""Lets an app that brings a package `edgewire` of its own run with it, beside this one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[2]  # the folder of this package `edgewire`
# What an app imports of EdgeWire. The program that loads the app keeps its own other parts, such as
# `protocol`, also for the app.
_OF_APPS = ("client", "compression", "conf", "pipeline", "strategy", "task")


def use_package_of(folder: Path) -> None:
    """Import the package `edgewire` of an app's folder in place of this one, if the folder has one.

    The folder must be the first on `sys.path`. Modules of this package that the app does not bring,
    such as `edgewire.deploy`, stay imported, and are attributes of the app's package.
    """
    theirs = folder / "edgewire"
    if not (theirs / "__init__.py").is_file() or theirs == HOME / "edgewire":
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


def load_object(reference: str) -> Any:
    """Return the object that `package.module:name` or `package.module:name.attribute` names.

    The name of an app's module may have hyphens, which `pkgutil.resolve_name` refuses.
    """
    module, _, name = reference.partition(":")
    return attrgetter(name)(import_module(module))


@contextmanager
def found_first() -> Iterator[None]:
    """Within this context `sys.path` begins with the folder of this package.

    A process that is spawned gets this path, and imports this package before it loads an app that
    brings another one.
    """
    sys.path.insert(0, str(HOME))
    try:
        yield
    finally:
        sys.path.remove(str(HOME))
