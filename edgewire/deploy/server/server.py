"""`python -m edgewire.deploy.server`: Flower's SuperLink for real devices, with access control.

`python -m edgewire.deploy.keys` makes its keys and certificates. Other machines reach only the API
for nodes (`edgewire.deploy.server.access`). The server holds a node's pull until a message exists,
and sends the message and its objects in one bundle (`edgewire.deploy.server.api`). A file stores
the registered nodes (`edgewire.deploy.server.node_registry`).

The server extends Flower's internals, so it starts only with a release that it was tried with.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import resource
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from edgewire.conf.trust import DATA, OUTPUT
from edgewire.deploy.certificates import CA, SERVER
from edgewire.deploy.device.node_database import locked
from edgewire.deploy.server.access import LocalOnly
from edgewire.deploy.server.certificate_file import RENEW
from edgewire.machine.errors import UsageError
from edgewire.machine.processes import flower_environment
from edgewire.machine.proxies import expect_usable_proxies, is_loopback, keep_loopback_direct
from edgewire.protocol.flower_releases import WANTED, installed, is_known

PORT = 8000  # Flower's default
NODES, TOKENS = "nodes.json", "tokens.json"  # files in the folder --state
KEPT = 75  # seconds that an idle connection stays open: a new one costs a node 3 kB
SUPEREXEC = (sys.executable, "-m", "edgewire.deploy.superexec")
ENDING = 2  # seconds that requests have when the server ends; nodes repeat their pulls


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until a signal arrives; return the exit code: 0, or 2 for a user's mistake.

    A mistake is printed in one line.
    """
    options, rest = parser().parse_known_args(arguments)
    keep_loopback_direct(options.host)
    try:
        if not is_known(found := installed()):
            raise UsageError(f"not tried with Flower {found}: `pip install '{WANTED}'`")
        if any(word.startswith("--database") for word in rest):
            raise UsageError("--database: this server's state is in memory, and in --state")
        expect_usable_proxies()
        expect_options(rest)
        line = command_line(options)
        said = f"another server runs on --state {options.state}: stop it, or give each a folder of "
        lock = locked(options.state, f"{said}its own")  # else both would write the same nodes.json
        variables = environment(options)
        middleware = gated(options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    os.environ.update(variables)
    sys.argv = ["flower-superlink", *line, *rest]
    with lock:
        serve(middleware, None if options.insecure else key_files(options))
    return 0


def parser(prog: str = "python -m edgewire.deploy.server") -> argparse.ArgumentParser:
    """Return the parser of the command line; `prog`: the command's name."""
    made = argparse.ArgumentParser(
        prog=prog,
        description="Flower's SuperLink for real devices; further options are Flower's own.",
    )
    add = made.add_argument
    add("--host", default="0.0.0.0", help="the address to listen on (all of IPv4; IPv6 is ::)")
    add("--port", type=int, default=PORT, help="the port (default: %(default)s)")
    keys = "the folder of edgewire.deploy.keys (%(default)s)"
    add("--keys", type=Path, default=Path("keys"), help=keys)
    add("--key", type=Path, help="the server's private key, if it is not in --keys")
    add(
        "--state",
        type=Path,
        default=Path("superlink"),
        help="the folder for registered nodes and for runs' results (default: %(default)s)",
    )
    add("--data", type=Path, help="the folder below which runs may read data (default: ./data)")
    kept = "remove finished runs that are so much older than the newest, as in 30d (default: none)"
    add("--keep-runs", type=days, metavar="DAYS", help=kept)
    kept = "keep so many of the newest apps in the folder --state (default: all)"
    add("--keep-apps", type=int, metavar="NUMBER", help=kept)
    add("--insecure", action="store_true", help="no TLS and no keys: on this machine, for trying")
    add("--any-node", action="store_true", help="take nodes without a key that is registered")
    return made


def expect_options(words: Sequence[str]) -> None:
    """Raise `UsageError` if Flower's SuperLink has no such option either."""
    cli: Any = import_module("flwr.superlink.cli.flower_superlink")
    _, unknown = cli._parse_args_run_superlink().parse_known_args(words)
    if unknown:
        near = get_close_matches(unknown[0], parser()._option_string_actions, 1)
        hint = f"did you mean {near[0]}?" if near else "--help lists the options"
        raise UsageError(f"{unknown[0]}: neither this server nor Flower's has it; {hint}")


def days(text: str) -> float:
    """Return the number in a text such as 30d. Raises `ValueError` for another text."""
    return float(text.removesuffix("d"))


def command_line(options: argparse.Namespace) -> list[str]:
    """Return the arguments of Flower's command line for these options.

    Raises `UsageError` for invalid options.
    """
    arguments = ["--host", options.host, "--port", str(options.port)]
    arguments += ["--disable-runtime-dependency-installation"]
    if options.insecure:
        if not is_loopback(options.host):
            raise UsageError(
                "--insecure goes with --host 127.0.0.1: what is sent could be read and changed"
            )
        return [*arguments, "--insecure"]
    certificate, key = key_files(options)
    files = {"ca-cert": options.keys / f"{CA}.crt", "cert": certificate, "key": key}
    for flag, path in files.items():
        if not path.is_file():
            raise UsageError(
                f"there is no {path}: "
                "`python -m edgewire.deploy.keys server NAME-OR-ADDRESS` makes it"
            )
        arguments += [f"--ssl-{flag}file", str(path)]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        why = f"do not fit each other ({error.strerror or error})"
        raise UsageError(f"{certificate} and {key} {why}: {RENEW}") from error
    return arguments if options.any_node else [*arguments, "--enable-supernode-auth"]


def key_files(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the paths of the server's certificate and of its key."""
    return options.keys / f"{SERVER}.crt", options.key or options.keys / f"{SERVER}.key"


def gated(options: argparse.Namespace) -> list[tuple[Any, dict[str, Any]]]:
    """Return the ASGI middleware for the SuperLink: classes and their options, outermost first.

    Raises `UsageError` if the file of registered nodes is damaged.
    """
    from edgewire.deploy.enrolment import Enrolment
    from edgewire.deploy.monitoring.metrics import Monitor
    from edgewire.deploy.monitoring.node_states import FleetStates
    from edgewire.deploy.server.api import BundleApi
    from edgewire.deploy.server.node_registry import load
    from edgewire.deploy.server.run_files import each_day
    from edgewire.deploy.server.signed_uploads import BodyBudget, SignedUploads

    budget, states, runs = BodyBudget(), FleetStates(), output_of(options)
    kept = (runs, home_of(options) / "apps", options.keep_runs, options.keep_apps)
    certificate = None if options.insecure else key_files(options)[0]
    ours = {"output": runs, "budget": budget, "states": states, "tidy": partial(each_day, *kept)}
    nodes = options.state / NODES
    if not options.insecure:  # without TLS a token could be read
        load(nodes)
        ours["enrolment"] = Enrolment(options.state / TOKENS, nodes, options.keys / f"{CA}.crt")
    return [
        (LocalOnly, {}),
        (Monitor, {"output": runs, "certificate": certificate, "states": states}),
        (SignedUploads, {"budget": budget}),
        (BundleApi, ours),
    ]


def serve(
    middleware: list[tuple[Any, dict[str, Any]]], files: tuple[Path, Path] | None = None
) -> None:
    """Run Flower's SuperLink in this process, with this middleware and `sys.argv` as options.

    `files`: its certificate and the key; None: it has none.
    """
    import flwr.superlink.main  # noqa: F401  # the steady clock is for modules that are loaded
    import uvicorn
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    from edgewire.deploy.server import steady_clock
    from edgewire.deploy.server.connections import uvicorn_options

    steady_clock.install()
    theirs: Callable[[], Sequence[Any]] = extensions.get_middleware

    def ours() -> tuple[Any, ...]:
        return (*(Middleware(kind, **options) for kind, options in middleware), *theirs())

    cli: Any = import_module("flwr.superlink.cli.flower_superlink")
    extensions.get_middleware, theirs_to_start = ours, cli._get_superexec_command
    cli._get_superexec_command = lambda **options: [*SUPEREXEC, *theirs_to_start(**options)[1:]]
    times: dict[str, Any] = {"timeout_keep_alive": KEPT, "timeout_graceful_shutdown": ENDING}
    uvicorn.run = partial(uvicorn.run, **times, **uvicorn_options(files))
    many_connections()
    for each in vars(logging.getLogger("flwr"))["handlers"]:
        each.colored = sys.stderr.isatty()  # else a log file would hold escape sequences
    gc.collect()
    gc.freeze()  # else a full garbage collection would stop the server's event loop for longer
    cli.flower_superlink()


def many_connections() -> None:
    """Raise this process's limit of open files to the maximum: each connection needs a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables of the SuperLink and of the processes that it starts.

    It also makes the folder of results. Raises `UsageError` if the folder cannot be made.
    """
    try:
        output_of(options).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--state {options.state} cannot be used: {error.strerror}") from error
    home = os.environ.get("FLWR_HOME", str(home_of(options)))
    found = {
        **flower_environment(home, poll=0.2),
        OUTPUT: str(output_of(options)),
        "FORWARDED_ALLOW_IPS": "127.0.0.1,::1",  # only a proxy here may set a client's address
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    if options.data is not None:
        found[DATA] = str(options.data.resolve())
    return found


def output_of(options: argparse.Namespace) -> Path:
    """Return the folder that holds each run's folder of results."""
    return Path(options.state).resolve() / "runs"


def home_of(options: argparse.Namespace) -> Path:
    """Return Flower's home folder, unless the environment names another."""
    return Path(options.state).resolve() / "flwr"
