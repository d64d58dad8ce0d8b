"""Makes Python search an app's modules in the app's folder first, whatever their names."""

from __future__ import annotations

import sys
from pathlib import Path

from edgewire.machine.own_package import use_package_of

HOME = Path(__file__).parents[3]  # of the package `edgewire`


def enter(folder: Path) -> None:
    """Make `import` search an app's folder before all others, as Flower does, and `HOME` last.

    So the app's modules and packages win. At the top level `HOME` has only one regular package,
    `edgewire`, and Python prefers a regular package anywhere on the path to folders such as
    `client`. If the app brings a package `edgewire`, the app gets its own.
    """
    path = str(folder)
    if sys.path[:1] != [path]:
        others = [entry for entry in sys.path if entry not in {path, str(HOME)}]
        sys.path[:] = [path, *others, *[str(HOME)] * (folder != HOME)]
        use_package_of(folder)
