"""`python -m edgewire.deploy.install`: makes this device a node, as a service of systemd.

    sudo python -m edgewire.deploy.install kitchen.json            from `keys bundle kitchen`
    sudo python -m edgewire.deploy.install 'edgewire://HOST:...'   from `keys enrol kitchen`

The files go to /etc/edgewire, and the unit to /etc/systemd/system. With a link the device makes its
own key, and tells the server the public part. On a node that runs, this replaces the key: the node
starts again with the new one, and its message is not lost.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import httpx

from edgewire.deploy import node  # the first: it reports a missing Flower in one line
from edgewire.deploy.certificates import new_key, private_key
from edgewire.deploy.device.backoff import WORTH_WAITING, reason_of
from edgewire.deploy.device.node_database import write_file
from edgewire.machine.errors import EngineError, UsageError, one_line
from edgewire.machine.proxies import expect_address, keep_loopback_direct
from edgewire.machine.surroundings import print_any_text

KEY, CA, ENV, CERTIFICATE = "node.key", "ca.crt", "node.env", "node.crt"
LARGEST = 1 << 16  # bytes of a bundle, and of a CA's certificate
FOLDER, UNITS, UNIT = "etc/edgewire", "etc/systemd/system", "edgewire-node.service"
PROJECT, EXPECTED = Path(__file__).parents[2], "/opt/edgewire"  # this one, and that of the unit
HIDDEN = re.compile("/(home|root|run/user)/")  # the unit hides these folders from the node
LINK = re.compile(r"edgewire://([^#/\s]+)#([\w-]{43})/([\w-]{22})")
_ENV = re.compile(r"SUPERLINK=(\S+)\nNODE_CONFIG='([^'\n]*)'\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Install a node; return the exit code: 0, 2 for a user's mistake, 1 for another error."""
    print_any_text()
    text, _, more = (__doc__ or "").partition("\n\n")
    reader = argparse.ArgumentParser("python -m edgewire.deploy.install", None, text, more)
    reader.formatter_class = argparse.RawDescriptionHelpFormatter
    add = reader.add_argument
    add("source", metavar="FILE|LINK", help="NAME.json, or edgewire://HOST:PORT#HASH/TOKEN")
    add("--node-config", metavar="KEY=VALUE", help="such as 'data=\"/its/folder\"'")
    add("--root", type=Path, default=Path("/"), help="a system's folder, which starts later")
    given = reader.parse_args(arguments)
    try:
        print("\n".join(install(given.source, given.root, given.node_config)))
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def install(source: str, root: Path, config: str | None = None) -> list[str]:
    """Install a node from a bundle or a link in the system below `root`; return lines of text.

    Raises `UsageError` for an invalid source, and `EngineError` if the server or systemd refuses.
    """
    unit, by_link = _unit(root), source.startswith("edgewire:")
    folder = root / FOLDER
    # Until all is done, the files are here: a device whose enrolment broke off keeps its key.
    new, env = folder / ("enrolling" if by_link else "unpacked"), folder / ENV
    try:
        new.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o755)
        address, said, token = (_of_link if by_link else _of_bundle)(source, new)
        text = env_of(address, said if config is None else config)
        options = ["--superlink", address, "--state", ".", "--root-certificates", str(new / CA)]
        given = node.parser().parse_args(options)
        with closing(node.client_of(given, private_key(new / KEY))) as fleet:
            if token:
                fleet.enrol(token)
        # The owner of the device may have added lines.
        kept = config is None and env.exists() and f"SUPERLINK={address}" in env.read_text().split()
        if not kept:
            write_file(env, text.encode())
        (root / UNITS).mkdir(parents=True, exist_ok=True)
        write_file(root / UNITS / UNIT, unit.encode())
        (root / UNITS / UNIT).chmod(0o644)
        for name in (each for each in (CA, CERTIFICATE, KEY) if (new / each).exists()):
            write_file(copy := new / "copy", (new / name).read_bytes())
            copy.chmod(0o600 if name == KEY else 0o644)  # the node's user reads the certificates
            copy.replace(folder / name)
    except WORTH_WAITING as error:
        if isinstance(error, OSError):
            raise UsageError(f"{error.filename}: {error.strerror}: run this as root") from error
        raise EngineError(reason_of(error, fleet)) from error
    log = f"`journalctl -u {UNIT}` is its log"
    if root != Path("/"):
        _systemctl("--root", str(root), "enable", UNIT)
        log = f"it starts with the system in {root}"
    else:
        for words in ("daemon-reload", f"enable {UNIT}", f"reload-or-restart {UNIT}"):
            _systemctl(*words.split())
    shutil.rmtree(new)
    stays = [f"{env} stays as it is"] if kept else []
    return [*stays, f"installed a node of {address}: {log}"]


def env_of(address: str, config: str) -> str:
    """Return the content of node.env, which systemd reads. Raises `UsageError` for invalid values.

    `config`: the value of `--node-config`.
    """
    expect_address(address, "SUPERLINK=")
    node.node_config_of(config)
    text = f"SUPERLINK={address}\nNODE_CONFIG='{config}'\n"
    if not _ENV.fullmatch(text):
        raise UsageError(f"--node-config {config}: a service takes no ' and no second line")
    return text


def packed(key: Path, ca: Path, address: str, config: str) -> bytes:
    """Return the bundle of a node, given its key's file, the CA's, and the values of node.env."""
    files = {KEY: key.read_text(), CA: ca.read_text()}
    if (certificate := key.with_suffix(".crt")).exists():
        files[CERTIFICATE] = certificate.read_text()
    return json.dumps({"superlink": address, "node-config": config, **files}, indent=1).encode()


def _of_bundle(file: str, folder: Path) -> tuple[str, str, str]:
    """Write the key and the CA of a bundle of `packed` to a folder; return the address, the config.

    The third word is "", for there is no token. Raises `UsageError` for any other file.
    """
    try:
        with open(file, "rb") as stream:
            said = json.loads(stream.read(LARGEST))
        names = KEY, CA, *([CERTIFICATE] if CERTIFICATE in said else [])
        address, config, *files = (str(said[n]) for n in ("superlink", "node-config", *names))
        if not (address + config).isprintable():
            raise ValueError("it holds control characters")
        for name, content in zip(names, files, strict=True):
            write_file(folder / name, content.encode())
    except (KeyError, TypeError, ValueError, RecursionError, FileNotFoundError) as error:
        raise UsageError(f"{file} is no bundle of `keys bundle`: {one_line(str(error))}") from error
    return address, config, ""


def _of_link(link: str, folder: Path) -> tuple[str, str, str]:
    """Make a key and get the CA that a link names; return the server's address, "", the token.

    Raises `UsageError` for an invalid link, `EngineError` if the server has no such CA.
    """
    found = LINK.fullmatch(link)
    if found is None:
        raise UsageError(f"{link} is no link of `keys enrol`: edgewire://HOST:PORT#HASH/TOKEN")
    address, digest, token = found.groups()
    expect_address(address, "edgewire://")
    keep_loopback_direct(address)
    if not (folder / KEY).exists():
        write_file(folder / KEY, new_key()[0])
    try:
        # Not checked, because this device knows no CA yet: the hash says whether this is the right
        # one. The token goes to no server but one with a certificate of this CA.
        with httpx.stream("GET", f"https://{address}/v1/fleet/edgewire/ca", verify=False) as sent:
            ca = next(sent.iter_raw(LARGEST), b"")
    except httpx.HTTPError as error:
        raise EngineError(f"{address} is not reached: {one_line(str(error))}") from error
    if hash_of(ca) != digest:
        raise EngineError(f"{address} has not the CA of this link: is it the server? ask it again")
    write_file(folder / CA, ca)
    return address, "", token


def hash_of(ca: bytes) -> str:
    """Return the hash of a file ca.crt in a link."""
    return base64.urlsafe_b64encode(hashlib.sha256(ca).digest()).decode().rstrip("=")


def _unit(root: Path) -> str:
    """Return the unit of this project; in another system the project is in /opt/edgewire."""
    text = (Path(__file__).parent / "systemd" / UNIT).read_text()
    if root != Path("/"):
        return text
    for place in (PROJECT, Path(sys.executable), Path(sys.executable).resolve()):
        if HIDDEN.match(f"{place}/"):
            raise UsageError(f"a service cannot see {place}: move it, the project to {EXPECTED}")
    text = text.replace(f"{EXPECTED}/.venv/bin/python", sys.executable)
    return text.replace(EXPECTED, str(PROJECT))


def _systemctl(*words: str) -> None:
    try:
        done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise EngineError("the files are there, but this system has no systemd") from error
    if done.returncode:
        raise EngineError(f"systemctl {' '.join(words)}: {one_line(done.stderr)}")


if __name__ == "__main__":
    sys.exit(main())
