"""From Python 3.14 on the standard library has a package `compression`, as we have.

Where ours is found first, it finds the other's modules (`compression/__init__.py`). Flower's
processes, though, have imported the other one, by way of `shutil`, before they load an app. So each
package of ours that is asked for first, by Flower or by a launcher, calls `avoid_stdlib_collision`
at once.
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
    """Make the standard library's `compression`, if that is what the name stands for, ours.

    It stays the same module with what has been imported of it, so nobody holds another one. Our
    folder is taken from beside this one, wherever `sys.path` leads.
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
