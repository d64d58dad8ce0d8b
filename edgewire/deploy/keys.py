"""`python -m edgewire.deploy.keys`: makes the CA, certificates and keys, and registers nodes.

    python -m edgewire.deploy.keys server my.server.org 203.0.113.5   a CA, the server's certificate
    python -m edgewire.deploy.keys node kitchen garden                a key for each of these nodes
    python -m edgewire.deploy.keys register kitchen garden            let these nodes take part
    python -m edgewire.deploy.keys list                                list the registered nodes
    python -m edgewire.deploy.keys revoke garden                      end this node's registration
    python -m edgewire.deploy.keys app                                this app's SHA-256, for --app
    python -m edgewire.deploy.keys app my_task          the same for runs with packages=[my_task]

If a CA exists, `server` uses this CA. Run register, list and revoke on the SuperLink's machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient

from edgewire.conf.own_packages import sources_of
from edgewire.conf.schema import ConfigError
from edgewire.deploy.certificates import CA, make_ca, make_node, make_server, node_files, public_key
from edgewire.engines.control import bundle
from edgewire.engines.superlink_client import Superlink, one_line_errors
from edgewire.machine.errors import EngineError, UsageError
from edgewire.machine.surroundings import print_any_text

GONE = ("unregistered", "deleted")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, 2 for a user's mistake, 1 for another error.

    An error is printed in one line.
    """
    print_any_text()
    given, others = parser().parse_known_args(arguments)
    try:
        if others:
            raise UsageError(f"{others[0]} is no option, and a name begins with no -")
        if getattr(given, "names", None) == []:
            raise UsageError("give one name, or several")
        for line in given.call(given):
            print(line)
    except (EngineError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError | ConfigError) else 1
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    text, _, more = (__doc__ or "").partition("\n\n")
    made = argparse.ArgumentParser(
        prog="python -m edgewire.deploy.keys",
        description=text,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--keys", type=Path, default=Path("keys"), help="the folder (%(default)s)")
    made.add_argument("--superlink", default="127.0.0.1:8000", help="HOST:PORT (%(default)s)")
    made.add_argument("--insecure", action="store_true", help="the SuperLink has no TLS")
    kinds = made.add_subparsers(required=True, metavar="COMMAND")
    server = kinds.add_parser("server", help="make a CA and the server's certificate")
    server.add_argument("names", nargs="*", help="its names and addresses, as nodes will say them")
    server.add_argument("--renew", action="store_true", help="a new certificate for the old key")
    server.set_defaults(call=_server)
    for name, call, text in (
        ("node", _node, "make keys of nodes"),
        ("register", _register, "let nodes take part"),
        ("revoke", _revoke, "let nodes take part no more"),
    ):
        kind = kinds.add_parser(name, help=text)
        kind.add_argument("names", nargs="*")
        kind.set_defaults(call=call)
    kinds.add_parser("list", help="say who may take part").set_defaults(call=_list)
    app = kinds.add_parser("app", help="say this app's SHA-256")
    app.add_argument("packages", nargs="*", help="the packages of runs with packages=")
    app.set_defaults(call=_app)
    return made


def _app(given: argparse.Namespace) -> list[str]:
    return [bundle(Path(__file__).parents[2], {}, sources_of(given.packages)).hash_str]


def _server(given: argparse.Namespace) -> list[str]:
    made = make_ca(given.keys) + make_server(given.keys, given.names, given.renew)
    return [f"made {path}" for path in made]


def _node(given: argparse.Namespace) -> list[str]:
    for name in given.names:
        for file in node_files(given.keys, name):
            if file.exists():
                raise UsageError(f"{file} is there already, and stays: move it away first")
    return [f"made {path}" for name in given.names for path in make_node(given.keys, name)]


def _register(given: argparse.Namespace) -> list[str]:
    found = {name: public_key(given.keys, name) for name in given.names}
    lines = []
    with _asked(given) as control:
        there = _nodes(control)
        for name, key in found.items():
            if known := next((each for each in there if each.public_key == key), None):
                lines.append(f"{name} is registered already, as node {known.node_id}")
                continue
            if any(each.name == name for each in there):
                raise UsageError(f"another key is registered as {name}: revoke that one first")
            node = control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id
            lines.append(f"registered {name} as node {node}")
    return lines


def _revoke(given: argparse.Namespace) -> list[str]:
    lines = []
    with _asked(given) as control:
        there = _nodes(control)
        for name in given.names:
            node = next((each for each in there if name in (each.name, str(each.node_id))), None)
            if node is None:
                raise UsageError(f"no node {name} is registered: list says who is")
            control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
            lines.append(f"revoked {node.name or node.node_id}")
    return lines


def _list(given: argparse.Namespace) -> list[str]:
    with _asked(given) as control:
        there = sorted(_nodes(control), key=lambda each: each.name)
    return [
        f"{each.name or '-'} {each.node_id} {each.status}"
        + (f" since {each.last_activated_at}" if each.status == "online" else "")
        for each in there
    ] or ["no node is registered"]


@contextmanager
def _asked(given: argparse.Namespace) -> Iterator[ControlHttpClient]:
    """Yield a client of the SuperLink that the options name.

    Raises `EngineError` with a one-line message if the SuperLink refuses a call or is lost.
    """
    root = None if given.insecure else str(given.keys / f"{CA}.crt")
    with (
        closing(Superlink(given.superlink, root, ("--superlink ", "--keys: "))) as superlink,
        closing(superlink.control()) as control,
        one_line_errors(given.superlink),
    ):
        yield control


def _nodes(control: ControlHttpClient) -> list[NodeInfo]:
    """Return the registered nodes."""
    found = control.ListNodes(ListNodesRequest()).nodes_info
    return [each for each in found if each.status not in GONE]


if __name__ == "__main__":
    sys.exit(main())
