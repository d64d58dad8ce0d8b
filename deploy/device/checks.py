"""The checks of `deploy.doctor` on a device: the machine, and the node's options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.device.node_database import expect_no_older_format
from deploy.device.node_folder import is_taken, own_key
from deploy.findings import (
    OK,
    WARNING,
    WRONG,
    Finding,
    enough_memory,
    free_memory,
    lasting,
    secret,
)
from deploy.node import key_of, node_config_of
from protocol.flower_releases import WANTED, installed, is_known
from simulation.errors import UsageError

ENOUGH, LEAST = 600 << 20, 250 << 20  # bytes of memory for a node with a small model
PACKAGES = ("torch", "numpy", "hydra", "safetensors", "PIL", "xxhash", "pcodec", "httpx")


def memory(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the free memory, unless a node runs here already."""
    if is_taken(options.state):
        yield Finding(OK, "memory", "a node runs here already")
    else:
        yield from enough_memory(free_memory(), ENOUGH, LEAST)


def state(options: argparse.Namespace) -> Iterable[Finding]:
    """Check that no older version of this project wrote the state folder."""
    try:
        expect_no_older_format(options.state)
    except UsageError as error:
        yield Finding(WRONG, "state", str(error))


def packages(options: argparse.Namespace) -> Iterable[Finding]:
    """Check that the packages are installed that this project's app needs on a device."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        yield Finding(WRONG, "packages", f"{names} not found: `pip install './compression[node]'`")
    else:
        yield Finding(OK, "packages", f"torch {installed('torch')}, numpy {installed('numpy')}")


def flower(options: argparse.Namespace) -> Iterable[Finding]:
    """Check that this release of Flower is supported."""
    found = installed()
    if is_known(found):
        yield Finding(OK, "Flower", found)
    else:
        yield Finding(WARNING, "Flower", f"{found} was not tried: `pip install '{WANTED}'`")


def data(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the node's training data."""
    try:
        config = node_config_of(options.node_config)
    except UsageError as error:
        yield Finding(WRONG, "data", str(error))
        return
    if "data" in config:
        yield own_data(Path(str(config["data"])).expanduser())
    elif "partition-id" in config:
        from conf.submitted_runs import NodeGrants  # imported here: they import torch
        from task import DEFAULT_ROOT
        from task.datasets import digits

        where = NodeGrants.of(config).data or DEFAULT_ROOT
        part = f"partition {config['partition-id']} of the run's data set"
        yield Finding(OK, "data", f"{part}; files of one are looked for in {where}")
        if not digits.is_there(Path(where).expanduser()):
            yield Finding(
                WARNING,
                "data",
                f"the digits are not here: for dataset=digits copy {Path(digits.FILE).name} of "
                f"a scikit-learn to {where}, or install that",
            )
    else:
        yield Finding(
            WRONG,
            "data",
            "none: give --node-config 'data=\"/its/folder\"', or 'partition-id=0 "
            "num-partitions=2' for a part of a data set that is here",
        )


def own_data(path: Path) -> Finding:
    """Check a node's own data: a file, or a folder of files, which may be in folders of classes."""
    try:
        if path.is_file():
            with path.open("rb"):
                return Finding(OK, "data", f"{path}: a file of {path.stat().st_size >> 10} kB")
        found = [each for each in path.iterdir() if each.name[0] != "."]
        folders = [each for each in found if each.is_dir()]
        inner = sum(len(os.listdir(each)) for each in folders)
    except OSError as error:
        return Finding(WRONG, "data", f"{path} cannot be read: {error.strerror}")
    files = len(found) - len(folders) + inner
    if not files:
        advice = f"put files there, or images into {path}/CLASS/"
        return Finding(WRONG, "data", f"{path} holds nothing: {advice}")
    return Finding(OK, "data", f"{path}: {len(folders)} folders, {files} files")


def key(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the node's key."""
    try:
        found = key_in_use(options)
    except (UsageError, OSError) as error:
        yield Finding(WRONG, "key", str(error))
        return
    if found is None:
        yield Finding(OK, "key", "the node makes its own at its first start")
        return
    _, file = found
    yield from list(secret(file, "key")) or [Finding(OK, "key", str(file))]


def key_in_use(options: argparse.Namespace) -> tuple[ec.EllipticCurvePrivateKey, Path] | None:
    """Return the node's key and its file; None if the node will make a key.

    Raises `UsageError` or `OSError` if the file holds no such key.
    """
    if (file := options.auth_supernode_private_key) is not None:
        return key_of(file.expanduser()), file.expanduser()
    own: Path = options.state / "key"
    return (own_key(own), own) if own.exists() else None


def certificate(options: argparse.Namespace) -> Iterable[Finding]:
    """Check the certificate of the CA, with which the node authenticates the server."""
    file = options.root_certificates
    if options.insecure:
        yield Finding(WARNING, "certificate", "--insecure: anybody on the way reads all of it")
    elif file is not None:
        try:
            ca = x509.load_pem_x509_certificate(file.expanduser().read_bytes())
        except (OSError, ValueError):
            yield Finding(WRONG, "certificate", f"--root-certificates {file} is none")
            return
        yield lasting(f"the CA's, {file}", ca, "make a new CA on the server")
