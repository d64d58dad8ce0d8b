"""The releases of Flower that a node and a server of this project support."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
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
    return FIRST <= _release(found) <= LAST


def lacking(error: ImportError) -> str:
    """Return one line that says that Flower is missing or unsupported, and what to do."""
    found = installed()
    if not found:
        return f"Flower is not installed: `pip install '{WANTED}'`"
    return f"this Flower ({found}) does not go with it ({error}): `pip install '{WANTED}'`"


def older_superlink(arguments: Sequence[str] | None = None) -> str | None:
    """Return a one-line warning if this run's SuperLink is from an older Flower, else None.

    `flwr run` uses any SuperLink that listens on its port, even if an older Flower has started that
    SuperLink. `arguments`: the command line of the run's process; None: the line of this process.
    """
    found = {name: _release(name) for name in (installed(), _superlinks_own(arguments or sys.argv))}
    older = [name for name, release in found.items() if () < release < LAST]
    if not older:
        return None
    newest = ".".join(map(str, LAST))
    return (
        f"this run's SuperLink is of Flower {min(older, key=_release)}, older than {newest}: if "
        "`flwr run` has found it on its port, left there by an earlier Flower, end it "
        "(`pkill -f flower-superlink`) and run again"
    )


def _release(found: str) -> tuple[int, ...]:
    """Return a version's first two numbers; () for a text without numbers."""
    return tuple(int(each) for each in re.findall(r"\d+", found)[:2])


def _superlinks_own(arguments: Sequence[str]) -> str:
    """Return the version of the SuperLink whose address a command line names; "": unknown.

    A running SuperLink still has its old version after the installed package was replaced.
    """
    import httpx  # imported here: without Flower httpx is missing too, and the node must say so

    try:
        address = arguments[list(arguments).index("--runtime-api-address") + 1]
        url = f"http{'' if '--insecure' in arguments else 's'}://{address}/openapi.json"
        found = httpx.get(url, timeout=5.0, verify=False)
        return str(found.raise_for_status().json()["info"]["version"])
    except (ValueError, LookupError, TypeError, httpx.HTTPError, httpx.InvalidURL):
        return ""
