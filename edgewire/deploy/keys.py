"""`python -m edgewire.deploy.keys`: makes the CA, certificates and keys, and registers nodes.

    python -m edgewire.deploy.keys server my.server.org 203.0.113.5   a CA, the server's certificate
    python -m edgewire.deploy.keys node kitchen garden      a key and a certificate for each of them
    python -m edgewire.deploy.keys register kitchen garden            let these nodes take part
    python -m edgewire.deploy.keys bundle kitchen                    kitchen.json, to install there
    python -m edgewire.deploy.keys enrol kitchen               a link, by which it makes its own key
    python -m edgewire.deploy.keys list                                list the registered nodes
    python -m edgewire.deploy.keys revoke garden                      end this node's registration
    python -m edgewire.deploy.keys app                                this app's SHA-256, for --app
    python -m edgewire.deploy.keys app my_task          the same for runs with packages=[my_task]

    python -m edgewire.deploy.keys sign owner.key       sign this app, for nodes with --app-signer
    python -m edgewire.deploy.keys ca                                 a new CA beside the old one

If a CA exists, `server` uses this CA. Run register, enrol, list and revoke on the SuperLink's
machine. register and enrol with --renew replace a node's key, when the node first uses the new one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient

from edgewire.conf.own_packages import sources_of
from edgewire.conf.schema import ConfigError
from edgewire.deploy.certificates import (
    CA,
    SECRET,
    SERVER,
    certificate_file,
    certificate_in,
    certify_node,
    drop_old_ca,
    make_ca,
    make_next_ca,
    make_node,
    make_server,
    names_in,
    node_files,
    private_key,
    public_key,
    revoke_certificate,
    write_new,
)
from edgewire.deploy.install import env_of, hash_of, packed
from edgewire.engines.control import bundle
from edgewire.engines.superlink_client import Superlink, one_line_errors
from edgewire.machine.app_signature import sign
from edgewire.machine.errors import EngineError, UsageError
from edgewire.machine.surroundings import print_any_text

GONE = ("unregistered", "deleted")
BEGIN = "control/edgewire/enrol"  # the call that makes a token


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, 2 for a user's mistake, 1 for another error.

    An error is printed in one line.
    """
    print_any_text()
    usual = argparse.Namespace(keys=Path("keys"), superlink="127.0.0.1:8000", insecure=False)
    given, others = parser().parse_known_args(arguments, usual)
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
    # options before or after the command, which `main` gives their usual values
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--keys", type=Path, help="the folder (keys)")
    common.add_argument("--superlink", help="HOST:PORT (127.0.0.1:8000)")
    common.add_argument("--insecure", action="store_true", help="the SuperLink has no TLS")
    text, _, more = (__doc__ or "").partition("\n\n")
    made = argparse.ArgumentParser(
        prog="python -m edgewire.deploy.keys",
        description=text,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    kinds = made.add_subparsers(required=True, metavar="COMMAND")
    commands = {
        "server": (_server, "make a CA and the server's certificate"),
        "node": (_node, "make keys of nodes"),
        "register": (_register, "let nodes take part"),
        "revoke": (_revoke, "let nodes take part no more"),
        "bundle": (_bundle, "write NAME.json for edgewire.deploy.install, with a key"),
        "enrol": (_enrol, "let a device register itself by a link, within a day"),
        "ca": (_next_ca, "make a new CA beside the old one"),
        "list": (_list, "say who may take part"),
        "app": (_app, "say this app's SHA-256"),
        "sign": (_sign, "sign this app for nodes with --app-signer"),
    }
    for name, (call, text) in commands.items():
        kinds.add_parser(name, help=text, parents=[common]).set_defaults(call=call)

    def add(names: str, *option: str, **given: Any) -> None:
        for name in names.split():
            kinds.choices[name].add_argument(*option, **given)

    add("server", "names", nargs="*", help="its names and addresses, as nodes will say them")
    add("node register revoke bundle enrol", "names", nargs="*")
    add("server node", "--renew", action="store_true", help="a new certificate for the old key")
    add("register enrol", "--renew", action="store_true", help="a new key for it")
    add("bundle enrol", "--address", help="the server's HOST:PORT, as in its certificate")
    add("bundle", "--node-config", default="", help="such as 'data=\"/its/folder\"'")
    add("ca", "--drop-old", action="store_true", help="end the old one")
    add("sign", "key", type=Path, help="the owner's private key, of ssh-keygen -t ed25519")
    add("app sign", "packages", nargs="*", help="the packages of runs with packages=")
    return made


def _app(given: argparse.Namespace) -> list[str]:
    return [bundle(Path(__file__).parents[2], {}, sources_of(given.packages)).hash_str]


def _sign(given: argparse.Namespace) -> list[str]:
    app = Path(__file__).parents[2]
    content = bundle(app, {}, sources_of(given.packages)).content
    return [f"signed this app: {sign(app, content, given.key)}"]


def _server(given: argparse.Namespace) -> list[str]:
    made = make_ca(given.keys) + make_server(given.keys, given.names, given.renew)
    return [f"made {path}" for path in made]


def _next_ca(given: argparse.Namespace) -> list[str]:
    made = drop_old_ca(given.keys) if given.drop_old else make_next_ca(given.keys)
    return [f"made {path}" for path in made]


def _node(given: argparse.Namespace) -> list[str]:
    if given.renew:
        return [f"made {path}" for name in given.names for path in certify_node(given.keys, name)]
    for name in given.names:
        for file in node_files(given.keys, name):
            if file.exists():
                raise UsageError(f"{file} is there already, and stays: move it away first")
    return [f"made {path}" for name in given.names for path in make_node(given.keys, name)]


def _register(given: argparse.Namespace) -> list[str]:
    own = [name for name in given.names if not node_files(given.keys, name)[1].exists()]
    found = {name: public_key(given.keys, name) for name in given.names if name not in own}
    with _asked(given) as control:
        there = _nodes(control)
        ids = {each.name: each.node_id for each in there}
        found |= {name: public_key(given.keys, name) for name in own if name not in ids}  # raises
        lines = [f"{n} is registered already, as node {ids[n]}, by its own key" for n in own]
        for name, key in found.items():
            if known := next((each for each in there if each.public_key == key), None):
                lines.append(f"{name} is registered already, as node {known.node_id}")
                continue
            if given.renew:
                with _superlink(given) as superlink:
                    token = _posted(superlink, BEGIN, params={"name": name, "renew": "1"})
                    content = token.encode() + b"\n" + key
                    _posted(superlink, "fleet/edgewire/enrol", content=content)
                lines.append(f"{name} gets this key when its node first uses it")
                continue
            if any(each.name == name for each in there):
                raise UsageError(f"{name} has another key: revoke it, or give --renew")
            node = control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id
            lines.append(f"registered {name} as node {node}")
    return lines


def _bundle(given: argparse.Namespace) -> list[str]:
    address, lines = _address(given), list[str]()
    env_of(address, given.node_config)
    certificate_in(ca := given.keys / f"{CA}.crt")
    for name in given.names:
        key, _ = node_files(given.keys, name)
        if not key.exists():
            lines += [f"made {path}" for path in make_node(given.keys, name)]
            lines.append(f"{name} has a new key: `keys register {name}` lets it take part")
        private_key(key)
        content = packed(key, ca, address, given.node_config)
        lines.append(f"made {write_new(Path(f'{name}.json'), content, SECRET)}: it holds a key")
    return lines


def _enrol(given: argparse.Namespace) -> list[str]:
    address = _address(given)
    certificate_in(ca := given.keys / f"{CA}.crt")
    with _superlink(given) as superlink:
        renew = {"renew": "1"} if given.renew else {}
        found = [{"name": name, **renew} for name in given.names]
        tokens = [_posted(superlink, BEGIN, params=each) for each in found]
    return [f"edgewire://{address}#{hash_of(ca.read_bytes())}/{token}" for token in tokens]


def _address(given: argparse.Namespace) -> str:
    """Return the server's address for nodes: --address, or the first name in its certificate.

    Then the port is that of --superlink.
    """
    if given.address:
        return str(given.address)
    if not (names := names_in(certificate_in(given.keys / f"{SERVER}.crt"))):
        raise UsageError("the server's certificate has no name: give --address")
    first, port = str(names[0].value), given.superlink.rpartition(":")[2]
    return f"[{first}]:{port}" if ":" in first else f"{first}:{port}"


def _posted(superlink: Superlink, path: str, **options: Any) -> str:
    """Return the answer to a call of the server. Raises `UsageError` if it refuses the call."""
    found = superlink.http.post(f"/v1/{path}", **options)
    if not found.is_success:
        missing = "it runs without TLS, or is no `edgewire.deploy.server`"
        raise UsageError(missing if found.status_code == 404 else found.json()["detail"])
    return found.text


def _revoke(given: argparse.Namespace) -> list[str]:
    lines = []
    with _asked(given) as control:
        there = _nodes(control)
        for name in given.names:
            node = next((each for each in there if name in (each.name, str(each.node_id))), None)
            known = node.name if node and node.name else name
            certified = certificate_file(given.keys, known).exists()
            if node is None and not certified:
                raise UsageError(f"no node {name} is registered: list says who is")
            if node is not None:
                control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
                lines.append(f"revoked {node.name or node.node_id}")
            if certified:
                made = revoke_certificate(given.keys, known)
                stays = f"the certificate of {known} stays valid: put {CA}.key back, and call again"
                lines += [f"made {path}: copy it to the devices" for path in made] or [stays]
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
def _superlink(given: argparse.Namespace) -> Iterator[Superlink]:
    """Yield the SuperLink that the options name.

    Raises `EngineError` with a one-line message if the SuperLink refuses a call or is lost.
    """
    root = None if given.insecure else str(given.keys / f"{CA}.crt")
    with (
        closing(Superlink(given.superlink, root, ("--superlink ", "--keys: "))) as superlink,
        one_line_errors(given.superlink),
    ):
        yield superlink


@contextmanager
def _asked(given: argparse.Namespace) -> Iterator[ControlHttpClient]:
    """Yield a client of the SuperLink that the options name; raise the errors of `_superlink`."""
    with _superlink(given) as superlink, closing(superlink.control()) as control:
        yield control


def _nodes(control: ControlHttpClient) -> list[NodeInfo]:
    """Return the registered nodes."""
    found = control.ListNodes(ListNodesRequest()).nodes_info
    return [each for each in found if each.status not in GONE]


if __name__ == "__main__":
    sys.exit(main())
