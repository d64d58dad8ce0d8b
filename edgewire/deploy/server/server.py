"""`python -m edgewire.deploy.server`: Flower's SuperLink for real devices, with access control.

`python -m edgewire.deploy.keys` makes its keys and certificates. Other machines reach only the API
for nodes (`edgewire.deploy.server.access`). The server holds a node's pull until a message exists,
and sends the message and its objects in one bundle (`edgewire.deploy.server.api`). A file stores
the registered nodes (`edgewire.deploy.server.node_registry`). With `--database`, Flower's database
stores all state, and a round takes several times as long.

Some releases of Flower have no hook for the access control. With such a release the server accepts
only a loopback address as `--host`. With a release that does not support bundles, the server offers
only Flower's own calls. It prints a warning in both cases.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from edgewire.conf.trust import DATA, OUTPUT
from edgewire.deploy.certificates import CA, SERVER
from edgewire.deploy.server.access import LocalOnly
from edgewire.machine.errors import UsageError
from edgewire.machine.processes import flower_environment
from edgewire.machine.proxies import expect_usable_proxies, is_loopback, keep_loopback_direct
from edgewire.protocol.flower_releases import WANTED, installed

PORT = 8000  # Flower's default
NODES, LOCK = "nodes.json", "lock"  # files in the folder --state
KEPT = 75  # seconds that an idle connection stays open: a new one costs a node 3 kB
ENDING = 2  # seconds that requests have when the server ends; nodes repeat their pulls
EXTENSIONS = "flwr.superlink.extensions"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until a signal arrives; return the exit code: 0, or 2 for a user's mistake.

    A mistake is printed in one line.
    """
    options, rest = parser().parse_known_args(arguments)
    keep_loopback_direct(options.host)
    try:
        expect_usable_proxies()
        line = command_line(options)
        found = environment(options)
        lock = taken(options.state)
        middleware = gated(options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    os.environ.update(found)
    sys.argv = ["flower-superlink", *line, *rest]
    with lock:
        serve(middleware)
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
    add(
        "--state",
        type=Path,
        default=Path("superlink"),
        help="the folder for registered nodes and for runs' results (default: %(default)s)",
    )
    add("--database", action="store_true", help="Flower's database file in it: slow, keeps all")
    add("--data", type=Path, help="the folder below which runs may read data (default: ./data)")
    add("--insecure", action="store_true", help="no TLS and no keys: on this machine, for trying")
    add("--any-node", action="store_true", help="take nodes without a key that is registered")
    return made


def command_line(options: argparse.Namespace) -> list[str]:
    """Return the arguments of Flower's command line for these options.

    Raises `UsageError` for invalid options.
    """
    arguments = ["--host", options.host, "--port", str(options.port)]
    if options.database:
        arguments += ["--database", str(options.state / "superlink.db")]
    arguments += ["--disable-runtime-dependency-installation"]
    if options.insecure:
        if not is_loopback(options.host):
            raise UsageError(
                "--insecure goes with --host 127.0.0.1: what is sent could be read and changed"
            )
        return [*arguments, "--insecure"]
    files = {"ca-cert": f"{CA}.crt", "cert": f"{SERVER}.crt", "key": f"{SERVER}.key"}
    for flag, name in files.items():
        path = options.keys / name
        if not path.is_file():
            raise UsageError(
                f"there is no {path}: "
                "`python -m edgewire.deploy.keys server NAME-OR-ADDRESS` makes it"
            )
        arguments += [f"--ssl-{flag}file", str(path)]
    return arguments if options.any_node else [*arguments, "--enable-supernode-auth"]


def gated(options: argparse.Namespace) -> list[tuple[Any, dict[str, Any]]]:
    """Return the ASGI middleware for the SuperLink: classes and their options, outermost first.

    The list is empty if this release of Flower has no hook for middleware. Raises `UsageError` if
    the SuperLink would be open to other machines without access control.
    """
    if module("flwr.superlink.routers.fleet") is None:
        raise UsageError(
            f"this version of Flower ({installed()}) has no Fleet API over HTTP: "
            f"`pip install '{WANTED}'`"
        )
    if not has_place(module(EXTENSIONS), module("flwr.superlink.main")):
        if is_loopback(options.host):
            warn("this Flower takes no middleware: this machine's users can use all of the server")
            return []
        raise UsageError(
            "this version of Flower takes no middleware, and without it anybody could start runs: "
            f"install '{WANTED}', or listen on --host 127.0.0.1 behind a proxy for /v1/fleet/ alone"
        )
    found: list[tuple[Any, dict[str, Any]]] = [
        (LocalOnly, {"closed": not (options.insecure or options.any_node)})
    ]
    from edgewire.deploy.server.signed_uploads import BodyBudget, SignedUploads

    budget = BodyBudget()
    found.append((SignedUploads, {"budget": budget}))
    try:
        from edgewire.deploy.server.api import BundleApi
        from edgewire.deploy.server.flower_api import expect_handlers

        expect_handlers()
        found.append((BundleApi, {"output": output_of(options), "budget": budget}))
    except ImportError as error:
        warn(f"this Flower is another: nodes poll and send single objects ({error})")
    if not options.database and not options.insecure:
        from edgewire.deploy.server.node_registry import Registry, load

        load(options.state / NODES)
        found.append((Registry, {"file": options.state / NODES}))
    return found


def has_place(extensions: ModuleType | None, app: ModuleType | None) -> bool:
    """Return whether this release of Flower has a hook for ASGI middleware.

    `extensions`: Flower's module with the hook; `app`: the module of the SuperLink's app, which
    must use the hook.
    """
    hook = getattr(extensions, "get_middleware", None)
    return hook is not None and (
        getattr(app, "extensions", None) is extensions or getattr(app, "get_middleware", 0) is hook
    )


def serve(middleware: list[tuple[Any, dict[str, Any]]]) -> None:
    """Run Flower's SuperLink in this process, with this middleware and `sys.argv` as options."""
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    if middleware:
        extensions: Any = module(EXTENSIONS)
        theirs: Callable[[], Sequence[Any]] = extensions.get_middleware

        def ours() -> tuple[Any, ...]:
            return (*(Middleware(kind, **options) for kind, options in middleware), *theirs())

        extensions.get_middleware = ours
        app: Any = module("flwr.superlink.main")
        if hasattr(app, "get_middleware"):
            app.get_middleware = ours
    uvicorn: Any = module("uvicorn")
    times = {"timeout_keep_alive": KEPT, "timeout_graceful_shutdown": ENDING}
    uvicorn.run = partial(uvicorn.run, **times, **bounds())
    many_connections()
    flower_superlink()


def bounds() -> dict[str, Any]:
    """Return uvicorn's options that limit the size and time of requests.

    If this release of uvicorn has other internals, it prints a warning and returns {}.
    """
    try:
        from edgewire.deploy.server.connections import uvicorn_options
    except ImportError as error:
        warn(f"this uvicorn is another: who connects and says nothing is waited for ({error})")
        return {}
    return uvicorn_options()


def many_connections() -> None:
    """Raise this process's limit of open files to the maximum: each connection needs a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def taken(folder: Path) -> TextIO:
    """Lock a server's folder; return the open file that holds the lock.

    Raises `UsageError` if the folder cannot be used, or if another server uses it. Two servers
    would overwrite each other's registered nodes.
    """
    try:
        handle = (folder / LOCK).open("a")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"another server runs on --state {folder}: stop it, or give each a folder of its own"
        ) from None
    except OSError as error:
        raise UsageError(f"--state {folder} cannot be used: {error.strerror}") from error
    return handle


def environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables of the SuperLink and of the processes that it starts.

    It also makes the server's folder. Raises `UsageError` if the folder cannot be made.
    """
    try:
        options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        output_of(options).mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"--state {options.state} cannot be used: {error.strerror}") from error
    home = os.environ.get("FLWR_HOME", str((options.state / "flwr").resolve()))
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


def module(name: str) -> ModuleType | None:
    """Return the module with this name, None if it does not exist in the installed release."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def warn(line: str) -> None:
    """Print a one-line warning."""
    print(f"warning: {line}", file=sys.stderr)
