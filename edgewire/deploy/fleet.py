"""`python -m edgewire.deploy.fleet`: prints a table of the registered nodes, sorted by name.

Run it on the SuperLink's machine. `-` means that the server does not know a value. The columns are
fields of `edgewire.deploy.monitoring.node_states.NodeState`. With `--json` it prints all fields,
for scripts.
"""

from __future__ import annotations

import argparse
import json
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from edgewire.machine.errors import UsageError, one_line
from edgewire.machine.proxies import expect_address, expect_usable_proxies, keep_loopback_direct
from edgewire.machine.surroundings import print_any_text

NOTHING = (None, "")  # a value that is not known
HIDDEN = ("node", "reply", "clock_ahead")  # ids, and what `clock_offset` contains
UNITS = {"clock_offset": (1, "s"), "temperature": (1, "C"), "free_disk": (1e9, "GB")}
UNITS |= dict.fromkeys(("uplink_bytes", "downlink_bytes"), (1e6, "MB"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the nodes; return the exit code: 0, or 2 after one line on what is wrong."""
    print_any_text()
    made = argparse.ArgumentParser(prog="python -m edgewire.deploy.fleet", description=__doc__)
    made.add_argument("--keys", type=Path, default=Path("keys"), help="the folder (%(default)s)")
    made.add_argument("--superlink", default="127.0.0.1:8000", help="HOST:PORT (%(default)s)")
    made.add_argument("--insecure", action="store_true", help="the SuperLink has no TLS")
    made.add_argument("--json", action="store_true", help="print JSON, for scripts")
    given = made.parse_args(arguments)
    try:
        nodes = asked(given.superlink, None if given.insecure else given.keys / "ca.crt")
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(nodes, indent=1) if given.json else table(nodes, time.time()))
    return 0


def asked(address: str, root: Path | None) -> list[dict[str, Any]]:
    """Return the states of the nodes of a server. `root`: the CA's certificate; None: no TLS.

    It does without imports that take longer than all else. Raises `UsageError`.
    """
    expect_address(address, "--superlink ")
    keep_loopback_direct(address)
    expect_usable_proxies()
    url = f"{'http' if root is None else 'https'}://{address}/v1/control/edgewire/fleet"
    try:
        tls = root is None or ssl.create_default_context(cafile=root)
        nodes: list[dict[str, Any]] = (
            httpx.get(url, verify=tls, timeout=30).raise_for_status().json()
        )
    except OSError as error:
        raise UsageError(f"--keys: {root}: {error.strerror or error}") from error
    except (httpx.HTTPError, ValueError) as error:
        said = f"{address} is no `python -m edgewire.deploy.server` of this machine"
        raise UsageError(f"{said}: {one_line(str(error))}") from error
    return nodes


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
        return f"{timedelta(seconds=max(round(now - value), 0))} ago"
    scale, unit = UNITS.get(name, (0, ""))
    return f"{value / scale:.1f} {unit}" if scale else str(value)


if __name__ == "__main__":
    sys.exit(main())
