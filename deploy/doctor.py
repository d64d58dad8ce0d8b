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

from deploy.findings import WRONG, Check, Finding, bits, findings, python
from deploy.node import MISSING, parser
from protocol.flower_releases import lacking

PROG = "python -m deploy.doctor"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; return the exit code: 1 if anything is wrong, else 0."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    wrong = False
    for finding in findings(
        _for_server(arguments) if "--server" in arguments else _for_node(arguments)
    ):
        print(finding, flush=True)
        wrong = wrong or finding.level == WRONG
    return int(wrong)


def _for_server(arguments: list[str]) -> Iterable[tuple[str, Check]]:
    from .server.checks import checks
    from .server.server import parser as of_server

    options, _ = of_server(f"{PROG} --server").parse_known_args(
        [each for each in arguments if each != "--server"]
    )
    return checks(options)


def _for_node(arguments: list[str]) -> Iterable[tuple[str, Check]]:
    text, _, more = (__doc__ or "").partition("\n\n")
    made = parser(PROG, text)
    made.epilog, made.formatter_class = more, argparse.RawDescriptionHelpFormatter
    made.add_argument("--server", action="store_true", help="check the server's machine")
    given = made.parse_args(arguments)
    if MISSING is not None:
        return [("Python", python), ("64 bit", bits), ("Flower", _no_flower)]
    from .device.checks import checks

    return checks(given)


def _no_flower() -> Iterable[Finding]:
    assert MISSING is not None
    yield Finding(WRONG, "Flower", lacking(MISSING))


if __name__ == "__main__":
    sys.exit(main())
