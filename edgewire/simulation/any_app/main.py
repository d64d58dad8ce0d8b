"""The command `python -m edgewire.simulation`: parses options, runs the app, prints a summary."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from logging import DEBUG
from pathlib import Path
from typing import cast

from flwr.supercore.logger import update_console_handler

from edgewire.conf.network import Network, network_named
from edgewire.machine.errors import Ended, EngineError, Parser, UsageError
from edgewire.machine.processes import orderly_exit
from edgewire.machine.proxies import keep_loopback_direct
from edgewire.simulation.any_app.app import App, read_app
from edgewire.simulation.any_app.grid import GuestGrid
from edgewire.simulation.any_app.run import run_app

STOPPED = 130  # exit code after Ctrl-C


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line. Raises `UsageError`."""
    parser = Parser(
        prog="python -m edgewire.simulation",
        description="Run any Flower app, unchanged, on the local engine: without Ray, on a virtual "
        "clock, every byte counted.",
    )
    option = parser.add_argument
    option("path", type=Path, help="the app's folder, with its pyproject.toml")
    option("--nodes", type=int, default=10, metavar="N", help="simulated devices (10)")
    option("--workers", type=int, default=0, metavar="N", help="processes; 0: one a core (0)")
    option(
        "-c",
        "--run-config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as `flwr run` takes it: 'lr=0.1 num-server-rounds=3', or a TOML file",
    )
    option("--network", metavar="NAME", default="ideal", help="of conf/network/, as lte (ideal)")
    option("--seed", type=int, default=0, metavar="N", help="of all that is drawn at random (0)")
    option("--verbose", action="store_true", help="tracebacks, Flower's debug lines")
    given = parser.parse_args()
    for name, least in (("nodes", 1), ("workers", 0), ("seed", 0)):
        if (number := getattr(given, name)) < least:
            raise UsageError(f"--{name} must be at least {least}, not {number}")
    return given


def _network(name: str) -> Network:
    try:
        return network_named(name)
    except ValueError as error:
        raise UsageError(f"--network: {error}") from error


def main(began: float) -> int:
    """Run the app of the command line; return an exit code.

    `began`: when the command started, by `time.monotonic`. The exit code is 2 for a mistake in the
    options or in the app's folder. It is 1 if the ServerApp raised an error, or if no reply was
    usable. It is 128 plus the signal's number after a signal (130 for Ctrl-C).
    """
    verbose = "--verbose" in sys.argv
    try:
        with orderly_exit():
            keep_loopback_direct()
            if verbose:
                update_console_handler(level=DEBUG)
            given = parse_arguments()
            network = _network(given.network)
            app = read_app(given.path, given.run_config)
            grid = run_app(
                app, nodes=given.nodes, workers=given.workers, network=network, seed=given.seed
            )
    except EngineError as error:
        if verbose:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except (KeyboardInterrupt, Ended) as stop:
        print(
            "stopped: this run has no checkpoint: the same command starts it again",
            file=sys.stderr,
        )
        return cast(int, stop.code) if isinstance(stop, Ended) else STOPPED
    print(summary(app, given, grid, time.monotonic() - began))
    if grid.counts.failed and not grid.counts.answered:
        print("error: not one reply was of use: each node failed, see the log", file=sys.stderr)
        return 1
    return 0


def summary(app: App, given: argparse.Namespace, grid: GuestGrid, seconds: float) -> str:
    """Return the summary: the app and its nodes, the time and the traffic, one line each."""
    counts = grid.counts
    unfetched = f", {grid.unfetched_bytes:,} up that the ServerApp never got"
    lines = {
        "app": f"{app.name} {app.version}, {given.nodes} nodes, seed {given.seed}",
        "virtual": f"{grid.now:.2f} s, network {given.network}",
        "messages": f"{counts.sent} sent, {counts.answered} answered, {counts.failed} failed",
        "bytes": f"{counts.down_bytes:,} down, {counts.up_bytes:,} up"
        + (unfetched if grid.unfetched_bytes else ""),
        "real": f"{seconds:.1f} s",
    }
    return "\n".join(f"{name:<10} {value}" for name, value in lines.items())
