"""`python -m deploy.doctor`: checks whether a node or the server can run on this machine.

    python -m deploy.doctor --superlink my.server.org:8000 ...    on a device: the node's options
    python -m deploy.doctor --server                              on the server's machine

It prints one line per check: ok, warning or wrong, and what to do. It changes no file. The exit
code is 0 if no line says wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from deploy.findings import WRONG, CheckTable, Finding, bits, disk, findings, python
from deploy.node import MISSING, parser
from protocol.flower_releases import lacking
from simulation.surroundings import print_any_text

PROG = "python -m deploy.doctor"
SERVER = "--server"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; return the exit code: 1 if anything is wrong, else 0."""
    print_any_text()
    given = list(sys.argv[1:] if arguments is None else arguments)
    server = SERVER in given
    options = _server_options(given) if server else _node_options(given)
    wrong = False
    for finding in findings(_table(server=server), options):
        print(finding, flush=True)
        wrong = wrong or finding.level == WRONG
    return int(wrong)


def _table(*, server: bool) -> CheckTable:
    """Return the checks of the server's machine, or those of a device."""
    machine = (("Python", python), ("64 bit", bits))
    if server:
        from .server import checks as on_server

        return (
            *machine,
            ("memory", on_server.memory),
            ("disk", disk),
            ("Flower", on_server.flower),
            ("certificate", on_server.certificate),
            ("nodes", on_server.nodes),
            ("results", on_server.results),
            ("data", on_server.data),
            ("server", on_server.server),
        )
    if MISSING is not None:
        return (*machine, ("Flower", _no_flower))
    from .device import checks as on_device
    from .device.server_checks import server as from_device

    return (
        *machine,
        ("memory", on_device.memory),
        ("disk", disk),
        ("state", on_device.state),
        ("packages", on_device.packages),
        ("Flower", on_device.flower),
        ("data", on_device.data),
        ("key", on_device.key),
        ("certificate", on_device.certificate),
        ("server", from_device),
    )


def _server_options(given: list[str]) -> argparse.Namespace:
    from .server.server import parser as server_parser

    known, _ = server_parser(f"{PROG} {SERVER}").parse_known_args(
        [each for each in given if each != SERVER]
    )
    return known


def _node_options(given: list[str]) -> argparse.Namespace:
    text, _, more = (__doc__ or "").partition("\n\n")
    made = parser(PROG, text)
    made.epilog, made.formatter_class = more, argparse.RawDescriptionHelpFormatter
    made.add_argument(SERVER, action="store_true", help="check the server's machine")
    options = made.parse_args(given)
    options.state = options.state.expanduser()
    return options


def _no_flower(options: argparse.Namespace) -> Iterable[Finding]:
    assert MISSING is not None
    yield Finding(WRONG, "Flower", lacking(MISSING))


if __name__ == "__main__":
    sys.exit(main())
