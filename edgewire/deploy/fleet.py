"""`python -m edgewire.deploy.fleet`: prints a table of the registered nodes, sorted by name.

Run it on the SuperLink's machine. `-` means that the server does not know a value. The columns are
fields of `edgewire.deploy.server.fleet.NodeState`. With `--json` it prints all fields, for scripts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from edgewire.deploy.keys import add_options, connected
from edgewire.machine.errors import EngineError, UsageError
from edgewire.machine.surroundings import print_any_text

NOTHING = (None, "")  # a value that is not known
HIDDEN = ("node", "reply")  # fields that are ids
UNITS = {"clock_offset": (1, "s"), "temperature": (1, "C"), "free_disk": (1e9, "GB")}
UNITS |= dict.fromkeys(("uplink_bytes", "downlink_bytes"), (1e6, "MB"))
AGES = {"d": 86_400, "h": 3600, "min": 60, "s": 1}


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
            found = superlink.http.get("/v1/control/edgewire/fleet")
            if found.status_code == 404:
                raise UsageError(f"{given.superlink} is no `python -m edgewire.deploy.server`")
            nodes = found.raise_for_status().json()
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print(json.dumps(nodes, indent=1) if given.json else table(nodes, time.time()))
    return 0


def table(nodes: Sequence[Mapping[str, Any]], now: float) -> str:
    """Return the table of these nodes, whose keys are fields of `NodeState`; `now`: the time.

    It has no column for a field that the server does not know of any node.
    """
    if not nodes:
        return "no node is registered"
    shown = [{**node, "name": node["name"] or node["node"]} for node in nodes]
    heads = [n for n in nodes[0] if n not in HIDDEN and any(e[n] not in NOTHING for e in shown)]
    lines = [heads, *([_cell(name, node[name], now) for name in heads] for node in shown)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cell(name: str, value: Any, now: float) -> str:
    if value in NOTHING:
        return "-"
    if name == "last_seen":
        age = now - value
        unit = next((unit for unit, length in AGES.items() if age >= 2 * length), "s")
        return f"{max(age, 0) / AGES[unit]:.0f} {unit} ago"
    scale, unit = UNITS.get(name, (0, ""))
    return f"{value / scale:.1f} {unit}" if scale else str(value)


if __name__ == "__main__":
    sys.exit(main())
