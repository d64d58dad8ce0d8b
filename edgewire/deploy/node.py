"""`python -m edgewire.deploy.node`: the process of a device, which trains for a SuperLink's runs.

It uses Flower's Fleet API, so it works with any SuperLink and any Flower app. After a failure it
waits and tries again. It ends on SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import ssl
import sys
from pathlib import Path
from typing import NoReturn

import click
from cryptography.hazmat.primitives.asymmetric import ec

from edgewire.deploy.certificates import certificate_in, private_key
from edgewire.machine.app_signature import owner_key
from edgewire.machine.errors import Ended, UsageError
from edgewire.machine.proxies import expect_address, expect_usable_proxies, keep_loopback_direct
from edgewire.protocol.flower_releases import lacking

try:
    from flwr.app import UserConfig
    from flwr.common.config import parse_config_args

    from edgewire.deploy.device.apps import OtherApp
    from edgewire.deploy.device.client import FleetClient
    from edgewire.deploy.device.heartbeats import Membership
    from edgewire.deploy.device.node_folder import NodeFolder
    from edgewire.deploy.device.node_loop import Device
except ImportError as error:  # Flower is missing or unsupported
    raise SystemExit(f"error: {lacking(error)}") from error

log = logging.getLogger("edgewire")
# A text in quotes, or a word without, which Flower would refuse: `survey` takes true and false.
WORDS = re.compile(
    r"""(?i)'[^']*'?|"[^"]*"?|(?<==)(?<!survey=)(?!(?:true|false|inf|nan)\b)([a-z][\w.-]*)(?!\S)"""
)


def main(arguments: list[str] | None = None) -> None:
    """Run a node with the options of the command line; exit with code 2 for an invalid option."""
    reader = parser()
    given = reader.parse_args(arguments)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        node_folder = NodeFolder(given.state.expanduser())
        file = given.auth_supernode_private_key
        key = node_folder.key() if file is None else private_key(file.expanduser())
        config = with_certificate(given, key, node_config_of(given.node_config))
        expect_digests(given.app)
        owner = owner_key(given.app_signer.expanduser()) if given.app_signer else None
        fleet = client_of(given, key)
    except UsageError as error:
        reader.error(str(error))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ended)
    member = Membership(fleet, node_folder, registers=given.auth_supernode_private_key is None)
    try:
        told = given.tell_errors
        device = Device(
            fleet, node_folder, member, config, apps=given.app, owner=owner, tells_errors=told
        )
        device.serve()
    except OtherApp:
        log.info("another app: this process starts anew for it")
        # Another app needs a new process. `finally` does not run then, so the node stays online.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        member.leave()
        fleet.close()
        node_folder.close()


def node_config_of(text: str | None) -> UserConfig:
    """Return the values of `--node-config`. Raises `UsageError` if they cannot be parsed."""
    if text and not text.endswith(".toml"):
        text = WORDS.sub(lambda each: f'"{each[1]}"' if each[1] else each[0], text)
    try:
        config: UserConfig = parse_config_args([text] if text else None)
    except (click.ClickException, OSError, ValueError) as error:
        text = error.message if isinstance(error, click.ClickException) else str(error)
        raise UsageError(f"--node-config: {' '.join(text.split())}") from error
    return config


def with_certificate(
    given: argparse.Namespace, key: ec.EllipticCurvePrivateKey, config: UserConfig
) -> UserConfig:
    """Return a node's configuration with what a secure sum needs of the node's certificate.

    The certificate of node.key is node.crt beside it or beside the CA's. Without one, and if the
    configuration has `secure-ca`, it stays as it is. Raises `UsageError` for a damaged certificate.
    """
    if given.root_certificates is None or "secure-ca" in config:
        return config
    file = (given.auth_supernode_private_key or given.state / "key").expanduser()
    ca, own = given.root_certificates.expanduser(), file.with_suffix(".crt")
    for shown in (each for each in (own, ca.with_name(own.name)) if each.exists()):
        if certificate_in(shown).public_key() == key.public_key():
            found = {"secure-ca": ca, "secure-key": file, "secure-certificate": shown}
            return {**config, **{name: str(each) for name, each in found.items()}}
        log.warning("%s is of another key, and is not used", shown)
    return config


def expect_digests(arguments: list[str]) -> None:
    """Raise `UsageError` for a value that is not a SHA-256 in 64 hexadecimal digits."""
    for word in arguments:
        if not re.fullmatch("[0-9a-f]{64}", word):
            raise UsageError(
                f"--app {word} is no SHA-256: `python -m edgewire.deploy.keys app` says it"
            )


def client_of(given: argparse.Namespace, key: ec.EllipticCurvePrivateKey) -> FleetClient:
    """Return a client of the server that the options name.

    Raises `UsageError` for invalid options.
    """
    certificates = given.root_certificates
    if given.insecure and certificates is not None:
        raise UsageError("--insecure and --root-certificates exclude each other")
    if given.insecure and given.auth_supernode_private_key is not None:
        raise UsageError("a key is of no use without TLS: drop --insecure, and name the CA")
    expect_address(given.superlink, "--superlink ")
    keep_loopback_direct(given.superlink)
    expect_usable_proxies()
    try:
        return FleetClient(
            given.superlink,
            key,
            insecure=given.insecure,
            root_certificates=certificates and certificates.expanduser(),
        )
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise UsageError(f"--root-certificates {certificates}: {reason}") from error


def _ended(number: int, frame: object) -> NoReturn:
    """End the process at once. No file is left incomplete, because files are written atomically."""
    raise Ended(0)


def parser(
    prog: str = "python -m edgewire.deploy.node", text: str | None = None
) -> argparse.ArgumentParser:
    """Return the parser of a node's options. `prog`: the command's name; `text`: its help text."""
    made = argparse.ArgumentParser(prog=prog, description=text or __doc__)
    add = made.add_argument
    add("--superlink", required=True, metavar="HOST:PORT", help="the server's Fleet API")
    add(
        "--state",
        required=True,
        type=Path,
        metavar="DIR",
        help="what the node keeps: its own folder",
    )
    add("--root-certificates", type=Path, metavar="FILE", help="the CA of the server's certificate")
    add("--insecure", action="store_true", help="without TLS: only to try it out")
    add(
        "--auth-supernode-private-key",
        type=Path,
        metavar="FILE",
        help="the node's key, which the server knows; without one it makes a key and registers it",
    )
    add("--node-config", metavar="KEY=VALUE", help="such as 'data=\"/its/folder\"'")
    add(
        "--app",
        action="append",
        default=[],
        metavar="SHA256",
        help="take this app alone, whatever the server sends; may be given several times",
    )
    text = "tell the server the text of errors, which may name files; else only their kind"
    add("--tell-errors", action="store_true", help=text)
    add("--app-signer", type=Path, metavar="FILE", help="take the apps that this key has signed")
    return made


if __name__ == "__main__":
    main()
