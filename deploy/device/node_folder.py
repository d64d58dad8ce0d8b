"""A node's state folder: the node's identity, its current message, and its state of each run.

lock            locked while a node uses this folder
key             the node's own private key, if no key is given on the command line
node.json       the server's address, the public key, and the node's id at that server
claim           the last message pulled from the server, without its objects
runs/ID/        the node's state of a run (`node_store.py`)
apps/HASH/      an unpacked app (`apps.py`)
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import time
from contextlib import suppress
from logging import getLogger
from pathlib import Path
from typing import TextIO

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes
from google.protobuf.message import DecodeError
from xxhash import xxh3_64_digest

from deploy.device.blobs import sync_folder
from deploy.device.node_store import NodeStore, open_node_store

MOST_RUNS, KEPT_SECONDS = 16, 30 * 86400.0  # stored runs; seconds without use
_CLAIM = struct.Struct("<Q8s")
log = getLogger("edgewire")


class FolderError(RuntimeError):
    """The state folder cannot be used; the message is one line."""


class NodeFolder:
    """The state folder of one node. Raises `FolderError` if it cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / "runs").mkdir(exist_ok=True)
            self._lock = _locked(folder / "lock")
        except OSError as error:
            raise FolderError(f"--state {folder} cannot be used: {error.strerror}") from error
        self._node_stores: dict[int, NodeStore] = {}

    def close(self) -> None:
        """Unlock the folder for another node."""
        self._lock.close()

    def key(self) -> ec.EllipticCurvePrivateKey:
        """Return the private key in the folder; make a key if the folder has none."""
        file = self.folder / "key"
        if not file.exists():
            made, _ = generate_key_pairs()
            _write(file, private_key_to_bytes(made))
        return own_key(file)

    # who this node is

    def node_id(self, server: str, public_key: bytes) -> int | None:
        """Return the node's id with this key at this server; None if the folder holds none.

        `server`: host:port; `public_key`: in PEM.
        """
        return known_id(self.folder, server, public_key)

    def remember(self, server: str, public_key: bytes, node_id: int) -> None:
        """Store the id that this server has given to the node with this key."""
        said = {"server": server, "key": public_key.hex(), "node": node_id}
        _write(self.folder / "node.json", json.dumps(said).encode())

    # the current message

    def claim(self, response: PullMessagesResponse) -> None:
        """Write a pulled message to disk. It is durable when this method returns."""
        content = response.SerializeToString()
        handle = os.open(self.folder / "claim", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(handle, _CLAIM.pack(len(content), xxh3_64_digest(content)) + content, 0)
            os.fdatasync(handle)
        finally:
            os.close(handle)

    def claimed(self) -> PullMessagesResponse | None:
        """Return the message that `claim` wrote last; None if the file is missing or damaged."""
        try:
            data = (self.folder / "claim").read_bytes()
            size, mark = _CLAIM.unpack_from(data)
            content = data[_CLAIM.size : _CLAIM.size + size]
            if xxh3_64_digest(content) != mark:
                return None  # the write broke off; this project's server sends the message again
            response = PullMessagesResponse.FromString(content)
        except (FileNotFoundError, struct.error, DecodeError):
            return None
        return response if len(response.messages_list) == 1 else None

    # the state of runs

    def node_store(self, series: int) -> NodeStore:
        """Return the store of a run, or of a series of runs that share their state."""
        if series not in self._node_stores:
            while len(self._node_stores) >= 2:
                del self._node_stores[next(iter(self._node_stores))]
            folder = self.folder / "runs" / str(series)
            self._node_stores[series] = open_node_store(folder)
            os.utime(folder)
            self._forget()
        return self._node_stores[series]

    def _forget(self) -> None:
        """Remove stores unused for `KEPT_SECONDS`, and the oldest stores beyond `MOST_RUNS`."""
        folders = [(_time(f), f) for f in (self.folder / "runs").iterdir()]
        folders.sort(reverse=True)
        for number, (used, folder) in enumerate(folders):
            inside = folder.name in map(str, self._node_stores)
            old = number >= MOST_RUNS or time.time() - used > KEPT_SECONDS
            if old and not inside:
                shutil.rmtree(folder, ignore_errors=True)


def own_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file that `NodeFolder.key` has written.

    Raises `FolderError` for a damaged file, and `OSError`.
    """
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise FolderError(f"{file} is damaged: remove it") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FolderError(f"{file} holds another kind of key: remove it")
    return key


def known_id(folder: Path, server: str, public_key: bytes) -> int | None:
    """Return the node's id with a key at a server, read from this folder; None if it has none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads((folder / "node.json").read_text())
        if (said["server"], said["key"]) == (server, public_key.hex()):
            return int(said["node"])
    return None


def is_taken(folder: Path) -> bool:
    """Return whether a node uses this folder now. The folder is not changed."""
    try:
        with (folder / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _time(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime  # the folder of a run changes when its state is written
    return 0.0


def _locked(file: Path) -> TextIO:
    handle = file.open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise FolderError(
            f"another node runs on --state {file.parent}: give each its own"
        ) from None
    return handle


def _write(file: Path, content: bytes) -> None:
    """Write a small file atomically; only this user may read it."""
    draft = file.with_suffix(".draft")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)
    sync_folder(file.parent)
