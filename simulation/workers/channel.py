"""Objects between processes: pickled small parts go through a pipe, large buffers through memory.

A pipe moves a large buffer in many small steps; memory that both processes map takes one copy in
and one out. The files live in /dev/shm while there is room, else on disk, and are gone when the
run ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import disk_usage
from typing import Any, NamedTuple

from flwr.app import Array

from ..errors import EngineError
from .node_host import log
from .temp_dirs import TempDirs, sweep

LARGE = 1 << 15  # bytes from which on a buffer goes through memory
MEMORY = "/dev/shm"
SPARE = 4  # a quarter of it is left to others, torch's DataLoader say


class _Pickler(pickle.Pickler):
    """Hands the bytes of large Arrays out of band, as numpy does with its own."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Array and len(obj.data) >= LARGE:
            return _array, (obj.dtype, obj.shape, obj.stype, pickle.PickleBuffer(obj.data))
        return NotImplemented


def _array(dtype: str, shape: tuple[int, ...], stype: str, data: Any) -> Array:
    return Array(dtype, shape, stype, bytes(data))  # bytes(bytes) is no copy


class Laid(NamedTuple):
    """Where buffers were laid: the number of the file, and their sizes; none if there are none."""

    place: int
    sizes: list[int]


class Shared:
    """One mapped file that grows with what is written to it; one process writes, one reads.

    `paths`: where it may be, the first one preferred. It goes to the next where there is no room,
    and stays there.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._map: mmap.mmap | None = None
        self.place = 0

    def write(self, buffers: list[memoryview]) -> Laid:
        """Lay buffers end to end. Raises `EngineError` if there is no room for them anywhere."""
        sizes = [view.nbytes for view in buffers]
        if not sum(sizes):
            return Laid(self.place, sizes)
        if self._map is None or len(self._map) < sum(sizes):
            self._map = self._larger(sum(sizes))
        position = 0
        for view, size in zip(buffers, sizes, strict=True):
            self._map[position : position + size] = view
            position += size
        return Laid(self.place, sizes)

    def read(self, laid: Laid) -> list[bytes]:
        """Copy buffers out."""
        place, sizes = laid
        if not sum(sizes):
            return [b""] * len(sizes)
        if self._map is None or len(self._map) < sum(sizes) or self.place != place:
            with self._paths[place].open("r+b") as file:
                self._map, self.place = mmap.mmap(file.fileno(), 0), place
        position, buffers = 0, []
        for size in sizes:
            buffers.append(self._map[position : position + size])
            position += size
        return buffers

    def remove(self) -> None:
        """Remove the file, wherever it is; nobody will write to it any more."""
        for path in self._paths:
            with suppress(OSError):
                path.unlink()

    def _larger(self, size: int) -> mmap.mmap:
        """Return a mapping of so many bytes at least: all of them are there for sure."""
        size += size // 8  # payloads differ: not a new one for each that is the largest so far
        problem: OSError | None = None
        for place in range(self.place, len(self._paths)):
            path = self._paths[place]
            try:
                self._map = _mapping(path, size, place + 1 == len(self._paths))
            except OSError as error:
                problem = error
                with suppress(OSError):
                    path.unlink()  # what it has is needed elsewhere
            else:
                self.place = place
                return self._map
        reason = problem.strerror if problem else "there is none"
        raise EngineError(
            f"no room for what nodes and server send each other, {size / 1e6:.1f} MB in "
            f"{self._paths[-1].parent} ({reason}): free some there, or set TMPDIR to another folder"
        )


def _mapping(path: Path, size: int, last: bool) -> mmap.mmap:
    """Map a file of so many bytes, or more if it has more; OSError if its folder lacks the room.

    All of that may be taken where there is no other place to go to (`last`).

    The bytes are taken now: in a file that is only said to be long, a process that writes where no
    room is left is ended by SIGBUS, without a word.
    """
    with path.open("a+b") as file:
        there = file.seek(0, os.SEEK_END)
        if there < size:
            total, _, free = disk_usage(path.parent)
            if free - (size - there) < (0 if last else total // SPARE):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            _reserve(file.fileno(), size)
        return mmap.mmap(file.fileno(), 0)


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):  # macOS has none
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # some file systems cannot
                raise
    os.truncate(descriptor, size)


class Channel:
    """Sends and receives objects over a pipe and `slots` shared files, used in turn.

    A slot is written again only when its last content has been read: a sender may have at most
    `slots` objects unread, which is the worker's window. `folders`: for the files, see `Shared`.
    """

    def __init__(
        self, connection: Connection, folders: Sequence[Path], name: str, slots: int
    ) -> None:
        self._connection = connection
        names = [f"{name}-{slot}" for slot in range(slots)]
        self._shared = [Shared([folder / each for folder in folders]) for each in names]
        self._turn = 0

    @property
    def moved(self) -> bool:
        """Whether one of the files is not in the first folder."""
        return any(shared.place for shared in self._shared)

    def _next(self) -> Shared:
        self._turn += 1
        return self._shared[self._turn % len(self._shared)]

    def send(self, obj: Any) -> None:
        """Send an object.

        Raises OSError if the other end is gone, `EngineError` if there is no room for the object,
        of which the other end then hears nothing: another one may be sent.
        """
        buffers: list[pickle.PickleBuffer] = []
        head = BytesIO()
        _Pickler(head, 5, buffer_callback=buffers.append).dump(obj)
        turn = self._turn
        try:
            laid = self._next().write([b.raw() for b in buffers])
        except EngineError:
            self._turn = turn
            raise
        self._connection.send_bytes(pickle.dumps((*laid, head.getbuffer().tobytes())))

    def receive(self) -> Any:
        """Wait for an object. Raises EOFError or OSError if the other end is gone."""
        place, sizes, head = pickle.loads(self._connection.recv_bytes())
        return pickle.loads(head, buffers=self._next().read(Laid(place, sizes)))

    def remove(self) -> None:
        """Remove the files."""
        for shared in self._shared:
            shared.remove()


class Folders:
    """Where the files lie: in memory where the system has a folder there (/dev/shm), or on disk.

    Raises `EngineError` if no folder can be made.
    """

    def __init__(self) -> None:
        self._scratch: list[TempDirs] = []
        self._told = False
        for parent in dict.fromkeys(filter(None, (_memory(), _disk()))):
            sweep(parent)
            with suppress(OSError):
                self._scratch.append(TempDirs(parent))
        if not self._scratch:
            raise EngineError(
                "no folder for what nodes and server send each other can be made in "
                f"{_disk() or 'the usual places'}: set TMPDIR to one that can be written to"
            )

    @property
    def paths(self) -> list[Path]:
        """The folders, the preferred one first."""
        return [scratch.path for scratch in self._scratch]

    def tell_of(self, channel: Channel) -> None:
        """Say in the log, once, that files of a channel had to go to disk."""
        if channel.moved and not self._told:
            self._told = True
            memory, disk = (path.parent for path in (self.paths[0], self.paths[-1]))
            log.warning(
                "no room in %s (%.0f MB free): what nodes and server send each other goes to %s",
                *(memory, disk_usage(memory).free / 1e6, disk),
            )

    def close(self) -> None:
        """Remove them."""
        for scratch in self._scratch:
            scratch.close()


def _memory() -> str | None:
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def _disk() -> str | None:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return None
