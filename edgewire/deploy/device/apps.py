"""Unpacks apps on a device, stores them by their SHA-256, and loads their ClientApp.

The file HASH.fab beside the folder of an app is its bundle, from which each process replaces the
app's damaged files. The file `newest` says when the newest app was signed.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tomllib
import zipfile
import zlib
from collections.abc import Collection
from contextlib import suppress
from logging import getLogger
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from flwr.app import UserConfig
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict, fuse_dicts

from edgewire.deploy.device.node_database import write_file
from edgewire.machine.app_signature import record_of, signed_at
from edgewire.machine.own_package import load_object, use_package_of

MOST_APPS, LARGEST_APP = 4, 256 << 20  # apps on disk; bytes of an unpacked app
log = getLogger("edgewire")


class AppError(Exception):
    """An app cannot be fetched, unpacked or loaded."""


class OtherApp(Exception):
    """This process has loaded another app, so only a new process can load this one."""


class Apps:
    """The apps in a folder; one process can load only one of them.

    `only`: the SHA-256 of each bundle that this device accepts; `owner`: the key that signs further
    ones. Without any of both it accepts all.
    """

    def __init__(
        self, folder: Path, only: Collection[str] = (), owner: Ed25519PublicKey | None = None
    ) -> None:
        self._folder, self._only, self._owner = folder, only, owner
        self._digest = ""  # hash of the app whose modules this process has begun to import
        self._app: ClientApp | None = None
        self._refused = "", ""  # the hash of the last app that was fetched and refused, and why
        self._records = dict[str, bytes]()  # of the apps that this process has checked
        folder.mkdir(parents=True, exist_ok=True)

    def has(self, digest: str) -> bool:
        """Return whether this folder holds an app. Raises `AppError` if this device refuses it.

        The first call of a process replaces the app's damaged files, or removes a damaged bundle.
        `digest`: the SHA-256 of the app's bundle.
        """
        if digest == self._refused[0]:
            raise AppError(self._refused[1])
        file = self._path(digest).with_suffix(".fab")
        if digest not in self._records and file.exists():
            with suppress(OSError):
                if hashlib.sha256(bundle := file.read_bytes()).hexdigest() == digest:
                    self._unpack(digest, bundle)
                    self._records[digest] = record_of(bundle)
            if digest not in self._records:
                log.warning("the stored app %s is damaged: it is fetched again", digest)
                shutil.rmtree(self._path(digest), ignore_errors=True)
                file.unlink()
        if self._owner is None or digest in self._records:  # else its signature decides, in `put`
            self._expect_allowed(digest, self._records.get(digest, b""))
        return digest in self._records

    def put(self, digest: str, bundle: bytes) -> None:
        """Unpack an app's bundle.

        Raises `AppError` if it is damaged, its hash is not `digest`, or this device refuses it.
        """
        if hashlib.sha256(bundle).hexdigest() != digest:
            raise AppError("the app's bundle is not the one that the run names")
        record = record_of(bundle)
        try:
            self._expect_allowed(digest, record)
        except AppError as error:
            self._refused = digest, str(error)
            raise
        self._unpack(digest, bundle)
        write_file(self._path(digest).with_suffix(".fab"), bundle)
        self._records[digest] = record
        self._forget(digest)

    def _unpack(self, digest: str, bundle: bytes) -> None:
        """Write the files of an app that are not there. What the app has written itself stays."""
        folder = self._path(digest)
        # Python runs bytecode without a check: remove what earlier processes have compiled.
        for compiled in list(folder.rglob("__pycache__")):
            shutil.rmtree(compiled)
        try:
            with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > LARGEST_APP:
                    raise AppError("the app's bundle unpacks to more than a device can take")
                for name in archive.namelist():
                    if not _holds(folder / name, archive.read(name)):  # else the disk may be full
                        archive.extract(name, folder)  # it writes nothing outside the folder
        # BadZipFile: no zip file, or a wrong checksum. zlib.error: damaged data. EOFError: the file
        # is too short. RuntimeError: an encrypted entry, or an unknown compression.
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise AppError(f"the app's bundle cannot be unpacked: {error}") from error

    def config(self, digest: str, overrides: UserConfig) -> UserConfig:
        """Return an app's `run_config` with a run's overrides applied.

        Raises `AppError` if the app's pyproject.toml is missing or damaged.
        """
        own = flatten_dict(self._described(digest).get("config", {}))
        return fuse_dicts(own, overrides)

    def load(self, digest: str) -> ClientApp:
        """Return an app's ClientApp. The first call loads it.

        Raises `OtherApp` if this process has loaded another app. Raises `AppError`, or any error of
        the app's modules, if the app cannot be loaded.
        """
        if self._digest not in ("", digest):
            raise OtherApp(digest)
        if self._app is None:
            folder = self._path(digest)
            reference = self._described(digest)["components"]["clientapp"]
            newest = max(map(_used, self._folder.iterdir()))  # the clock may have been set back
            os.utime(folder.with_suffix(".fab"), ns=(newest, newest + 10**9))
            self._digest = digest
            self._app = _loaded(reference, folder)
        return self._app

    def _expect_allowed(self, digest: str, record: bytes) -> None:
        """Raise `AppError` if this device refuses an app. `record`: of the app's signature.

        An app that was signed before another one that this device has taken is refused, too.
        """
        if digest in self._only or not (self._only or self._owner):
            return
        if self._owner is None:
            raise AppError("this device takes other apps alone")
        if (when := signed_at(record, self._owner)) is None:
            raise AppError(
                "this device takes apps that its owner has signed: `keys sign` signs one"
            )
        file = self._folder / "newest"
        try:
            newest = int(file.read_text()) if file.exists() else 0
        except ValueError as error:
            cure = "remove it, and the next app of the owner is taken"
            raise AppError(f"{file} on this device is damaged: {cure}") from error
        if when < newest:
            raise AppError(
                "this device has taken an app that was signed later: sign this one again"
            )
        if when > newest:
            write_file(file, str(when).encode())

    def _path(self, digest: str) -> Path:
        if not digest.isalnum():
            raise AppError("the run names no hash of its app")
        return self._folder / digest

    def _described(self, digest: str) -> dict[str, Any]:
        """Return the table `tool.flwr.app` of an app's pyproject.toml.

        Raises `AppError` if the file is missing or damaged.
        """
        try:
            text = (self._path(digest) / "pyproject.toml").read_text(encoding="utf-8")
            described: dict[str, Any] = tomllib.loads(text)["tool"]["flwr"]["app"]
        except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
            raise AppError(f"the app's pyproject.toml is none of a Flower app: {error}") from error
        return described

    def _forget(self, digest: str) -> None:
        """Remove the least recently used apps, but not the app `digest`."""
        others = [f for f in self._folder.iterdir() if f.is_dir() and f.name != digest]
        others.sort(key=_used, reverse=True)
        for folder in others[MOST_APPS - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".fab").unlink(missing_ok=True)
            self._records.pop(folder.name, None)


def _used(folder: Path) -> int:
    """Return when an app was used last, in nanoseconds of the time of the file of its bundle."""
    return max((f.stat().st_mtime_ns for f in folder.parent.glob(f"{folder.stem}.fab")), default=0)


def _holds(file: Path, content: bytes) -> bool:
    try:
        return file.read_bytes() == content
    except OSError:
        return False


def _loaded(reference: str, folder: Path) -> ClientApp:
    """Return the ClientApp `module:attribute`; put the app's folder first on `sys.path`.

    Flower does the same. An app that brings a package `edgewire` gets its own. Raises `AppError` if
    the attribute is not a ClientApp.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    use_package_of(folder)
    found = load_object(reference)
    if not isinstance(found, ClientApp):
        raise AppError(f"{reference} is no ClientApp")
    return found
