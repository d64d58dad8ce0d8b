"""Which releases of Flower a node and a server of this project go with."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

FIRST, LAST = (1, 40), (1, 42)  # the first with a Fleet API over HTTP; the last that was tried
WANTED = "flwr>=1.40,<1.43"


def installed(package: str = "flwr") -> str:
    """Return the version of a package that is installed, "" for none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def is_known(found: str) -> bool:
    """Return whether a release of Flower is one of those that were tried."""
    numbers = tuple(int(each) for each in re.findall(r"\d+", found)[:2])
    return FIRST <= numbers <= LAST


def lacking(error: ImportError) -> str:
    """Return in one line that this Flower is another one, and what to do."""
    found = installed()
    if not found:
        return f"Flower is not installed: `pip install '{WANTED}'`"
    return f"this Flower ({found}) does not go with it ({error}): `pip install '{WANTED}'`"
