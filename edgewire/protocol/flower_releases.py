"""The releases of Flower that a node and a server of this project support."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

FIRST, LAST = (1, 40), (1, 42)  # first with a Fleet API over HTTP; last tested release
WANTED = "flwr>=1.40,<1.43"


def installed() -> str:
    """Return the version of the installed Flower; "" if it is not installed."""
    try:
        return version("flwr")
    except PackageNotFoundError:
        return ""


def is_known(found: str) -> bool:
    """Return whether a release of Flower is between the first and the last supported one."""
    return FIRST <= tuple(int(each) for each in re.findall(r"\d+", found)[:2]) <= LAST


def lacking(error: ImportError) -> str:
    """Return one line that says that Flower is missing or unsupported, and what to do."""
    found = installed()
    if not found:
        return f"Flower is not installed: `pip install '{WANTED}'`"
    return f"this Flower ({found}) does not go with it ({error}): `pip install '{WANTED}'`"
