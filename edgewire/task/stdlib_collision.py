"""Resolves the collision of EdgeWire's package `compression` with Python 3.14's standard library.

If Python finds EdgeWire's package first, `compression/__init__.py` adds the standard library's
modules to it. But Flower's processes have imported the standard library's package, through
`shutil`, before they load an app. So each package of EdgeWire that Flower or a launcher can import
before any other package of EdgeWire calls `avoid_stdlib_collision` in its `__init__.py`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import spec_from_file_location
from pathlib import Path

NAME = "compression"
OURS = Path(__file__).parents[1] / NAME


def avoid_stdlib_collision() -> None:
    """Turn the imported package `compression` into EdgeWire's if it is the standard library's.

    It stays the same module object with its imported submodules, so references to it stay valid.
    EdgeWire's folder is the one beside `task`; `sys.path` has no influence.
    """
    if NAME not in sys.stdlib_module_names:
        return
    module = import_module(NAME)
    if Path(str(module.__file__)).parents[1] != Path(os.__file__).parent:
        return
    spec = spec_from_file_location(NAME, OURS / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    assert spec.submodule_search_locations is not None
    module.__spec__, module.__file__ = spec, spec.origin
    module.__path__ = spec.submodule_search_locations
    spec.loader.exec_module(module)
