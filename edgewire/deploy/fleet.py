"""`python -m edgewire.deploy.fleet`: prints a table of the registered nodes, sorted by name.

Run it on the SuperLink's machine. `-` means that the server does not know a value. With `--json` it
prints the fields of `edgewire.deploy.server.fleet.NodeState`, for scripts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgewire.deploy.keys import add_options, connected
from edgewire.machine.errors import EngineError, UsageError
from edgewire.machine.surroundings import print_any_text

PATH = "/v1/control/edgewire/fleet"


def age(seconds: float) -> str:
    """Return a time as a whole number of seconds, minutes, hours or days."""
    units = {"d": 86_400, "h": 3600, "min": 60, "s": 1}
    unit = next((unit for unit, length in units.items() if seconds >= 2 * length), "s")
    return f"{max(seconds, 0) / units[unit]:.0f} {unit}"


def megabytes(count: float) -> str:
    """Return bytes in MB."""
    return f"{count / 1e6:.1f} MB"


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {  # head -> a field of `NodeState`, its text
    "name": ("name", str),
    "status": ("status", str),
    "seen": ("last_seen", lambda seen: f"{age(time.time() - seen)} ago"),
    "edgewire": ("edgewire", str),
    "flower": ("flower", str),
    "python": ("python", str),
    "disk": ("free_disk", lambda count: f"{count / 1e9:.1f} GB"),
    "clock": ("clock_offset", "{:+.1f} s".format),
    "heat": ("temperature", "{:.0f} °C".format),
    "power": ("undervoltage", lambda low: "low" if low else "ok"),
    "failures": ("failures", str),
    "in a row": ("streak", str),
    "up": ("uplink_bytes", megabytes),
    "down": ("downlink_bytes", megabytes),
    "last error": ("error", str),
    "text": ("error_text", str),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the nodes; return the exit code: 0, 2 for a user's mistake, 1 for another error.

    An error is printed in one line.
    """
    print_any_text()
    made = argparse.ArgumentParser(prog="python -m edgewire.deploy.fleet", description=__doc__)
    add_options(made)
    made.add_argument("--json", action="store_true", help="print JSON, for scripts")
    given = made.parse_args(arguments)
    try:
        with connected(given) as superlink:
            found = superlink.http.get(PATH)
            if found.status_code == 404:
                raise UsageError(f"{given.superlink} is no `python -m edgewire.deploy.server`")
            nodes = found.raise_for_status().json()
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    for line in [json.dumps(nodes, indent=1)] if given.json else table(nodes):
        print(line)
    return 0


def table(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    rows = [list(COLUMNS)]
    for node in ({**each, "name": each["name"] or str(each["node"])} for each in nodes):
        found = ((node[field], text) for field, text in COLUMNS.values())
        rows.append(["-" if value in (None, "") else text(value) for value, text in found])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


if __name__ == "__main__":
    sys.exit(main())
