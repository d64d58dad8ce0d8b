"""The checks of `deploy.doctor` on a device: the machine, the node's options, its data."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.certificate_dates import lasting
from deploy.device.node_folder import FolderError, is_taken, own_key
from deploy.device.server_checks import ServerView
from deploy.findings import (
    OK,
    WARNING,
    WRONG,
    Check,
    Finding,
    bits,
    disk,
    free_memory,
    memory,
    python,
    secret,
)
from deploy.node import MistakenWord, client_of, key_of, node_config_of
from protocol.flower_releases import WANTED, installed, is_known
from simulation.proxies import by_proxy

ENOUGH, LEAST = 600 << 20, 250 << 20  # bytes of memory for a node with a small model
PACKAGES = ("torch", "numpy", "hydra", "safetensors", "PIL", "xxhash", "pcodec", "httpx")


def checks(given: argparse.Namespace) -> Iterable[tuple[str, Check]]:
    """Return the checks with their names: first those of this machine, then those of the server."""
    here = DeviceChecks(given)
    yield from [("Python", python), ("64 bit", bits), ("memory", here.memory)]
    yield "disk", partial(disk, here.state, "--state")
    yield from [("packages", packages), ("Flower", flower), ("data", here.data), ("key", here.key)]
    yield "certificate", here.ca
    yield "server", here.server


class DeviceChecks:
    """The checks of a device. `given`: the node's options."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.state: Path = given.state.expanduser()
        self._runs = is_taken(self.state)
        self._key: ec.EllipticCurvePrivateKey | None = None

    def memory(self) -> Iterable[Finding]:
        """Check the free memory, unless a node runs here already."""
        if self._runs:
            yield Finding(OK, "memory", "a node runs here already")
        else:
            yield from memory(free_memory(), ENOUGH, LEAST)

    def data(self) -> Iterable[Finding]:
        """Check the node's training data."""
        try:
            config = node_config_of(self._given.node_config)
        except MistakenWord as error:
            yield Finding(WRONG, "data", str(error))
            return
        if "data" in config:
            yield folder_of_classes(Path(str(config["data"])).expanduser())
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

    def key(self) -> Iterable[Finding]:
        """Check the node's key."""
        file = self._given.auth_supernode_private_key
        own = self.state / "key"
        try:
            if file is not None:
                self._key, path = key_of(file.expanduser()), file.expanduser()
            elif own.exists():
                self._key, path = own_key(own), own
            else:
                yield Finding(OK, "key", "the node makes its own at its first start")
                return
        except (MistakenWord, FolderError, OSError) as error:
            yield Finding(WRONG, "key", str(error))
            return
        yield from list(secret(path, "key")) or [Finding(OK, "key", str(path))]

    def ca(self) -> Iterable[Finding]:
        """Check the certificate of the CA, with which the node authenticates the server."""
        file = self._given.root_certificates
        if self._given.insecure:
            yield Finding(WARNING, "certificate", "--insecure: anybody on the way reads all of it")
        elif file is not None:
            try:
                ca = x509.load_pem_x509_certificate(file.expanduser().read_bytes())
            except (OSError, ValueError):
                yield Finding(WRONG, "certificate", f"--root-certificates {file} is none")
                return
            yield lasting("certificate", f"the CA's, {file}", ca, "make a new CA on the server")

    def server(self) -> Iterable[Finding]:
        """Check the server, through a node's client."""
        try:
            fleet = client_of(self._given, self._key or ec.generate_private_key(ec.SECP384R1()))
        except MistakenWord as error:
            yield Finding(WRONG, "server", str(error))
            return
        named = self._given.auth_supernode_private_key is not None
        if proxy := by_proxy(fleet.address, fleet.secure):
            yield Finding(
                OK, "proxy", f"{fleet.address} is reached{proxy}, as the environment says"
            )
        try:
            at_server = ServerView(fleet, self.state, self._runs)
            yield from at_server.findings(has_key=self._key is not None, named=named)
        finally:
            fleet.close()


def packages() -> Iterable[Finding]:
    """Check that the packages are installed that this project's app needs on a device."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        yield Finding(WRONG, "packages", f"{names} not found: `pip install './compression[node]'`")
    else:
        yield Finding(OK, "packages", f"torch {installed('torch')}, numpy {installed('numpy')}")


def flower() -> Iterable[Finding]:
    """Check that this release of Flower is supported."""
    found = installed()
    if is_known(found):
        yield Finding(OK, "Flower", found)
    else:
        yield Finding(WARNING, "Flower", f"{found} was not tried: `pip install '{WANTED}'`")


def folder_of_classes(folder: Path) -> Finding:
    """Check a node's folder of photos, which holds a folder for each class."""
    try:
        classes = [each for each in folder.iterdir() if each.is_dir() and each.name[0] != "."]
        files = sum(len(os.listdir(each)) for each in classes)
    except OSError as error:
        return Finding(WRONG, "data", f"{folder} cannot be read: {error.strerror}")
    if not files:
        return Finding(WRONG, "data", f"{folder} holds nothing: put images into {folder}/CLASS/")
    return Finding(OK, "data", f"{folder}: {len(classes)} classes, {files} files")
