"""Sends objects between processes: small ones through a pipe, large ones by shared memory.

A pipe moves a large buffer in many small steps. Shared memory needs one copy into it and one copy
out of it. The shared memory consists of mapped files. They are in /dev/shm while it has room, else
on disk. They are removed when the run ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import disk_usage
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app.metadata import Metadata

from edgewire.compression.flower.records import filled, values_of
from edgewire.machine.errors import EngineError
from edgewire.machine.temp_dirs import TempDirs
from edgewire.simulation.workers.node_host import log

LARGE = 1 << 15  # bytes: buffers of at least this size use shared memory
MEMORY = "/dev/shm"
SPARE = 4  # 1/SPARE of /dev/shm stays free for other programs, such as torch's DataLoader
RECORDS = (RecordDict, ArrayRecord, ConfigRecord, MetricRecord)


class _Pickler(pickle.Pickler):
    """Pickles Flower's objects without their checks, and the bytes of large Arrays out of band.

    To pickle and to load a message's ten objects as usual takes twice as long. Objects of
    other classes inside a content are pickled as usual.
    """

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in RECORDS:
            return _filled, (kind, values_of(obj))
        if kind is Metadata:
            return _made, (kind, vars(obj))
        if kind is not Array:
            return NotImplemented
        data = obj.data
        if type(data) is bytes and len(data) >= LARGE:
            data = pickle.PickleBuffer(data)
        return _made, (kind, {**vars(obj), "data": data})


def _filled(kind: Any, values: dict[str, Any]) -> Any:
    """`filled`, by a name that stays the same if an app brings a library of its own."""
    return filled(kind, values)


def _made(kind: Any, attributes: dict[str, Any]) -> Any:
    """Return an object with these attributes, without a call of its constructor."""
    made = kind.__new__(kind)
    vars(made).update(attributes)
    return made


class Shared:
    """A memory-mapped file that grows as needed. One process writes it, another one reads it.

    `paths`: the possible paths of the file, the preferred one first. If the folder of a path has no
    room, the file moves to the next path and stays there.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._map: mmap.mmap | None = None
        self.place = 0

    def write(self, buffers: list[memoryview]) -> list[int]:
        """Write buffers one after another, to the path `place`; return their sizes in bytes.

        Raises `EngineError` if no folder of the possible paths has room for them.
        """
        sizes = [view.nbytes for view in buffers]
        if not sum(sizes):
            return sizes
        if self._map is None or len(self._map) < sum(sizes):
            self._map = self._larger(sum(sizes))
        self._map.seek(0)
        for view in buffers:
            self._map.write(view)
        return sizes

    def read(self, place: int, sizes: list[int]) -> list[bytes]:
        """Return copies of the buffers, from the path `place`."""
        if not sum(sizes):
            return [b""] * len(sizes)
        if self._map is None or len(self._map) < sum(sizes) or self.place != place:
            with self._paths[place].open("r+b") as file:
                self._map, self.place = mmap.mmap(file.fileno(), 0), place
        self._map.seek(0)
        return [self._map.read(size) for size in sizes]

    def remove(self) -> None:
        """Remove the file from every path; no process may write to it afterwards."""
        for path in self._paths:
            with suppress(OSError):
                path.unlink()

    def _larger(self, size: int) -> mmap.mmap:
        """Return a mapping of at least `size` bytes, all of them reserved."""
        size += size // 8  # spare room: payload sizes vary, and growing the file often is slow
        reason: str | None = None
        for place in range(self.place, len(self._paths)):
            path = self._paths[place]
            try:
                found = _mapping(path, size, place + 1 == len(self._paths))
            except OSError as error:
                reason = error.strerror
                with suppress(OSError):
                    path.unlink()  # frees its space for others
            else:
                self.place = place
                return found
        raise EngineError(
            f"no room for what nodes and server send each other, {size / 1e6:.1f} MB in "
            f"{self._paths[-1].parent} ({reason}): free some there, or set TMPDIR to another folder"
        )


def _mapping(path: Path, size: int, last: bool) -> mmap.mmap:
    """Map a file of at least `size` bytes. Raises `OSError` if its folder has no room.

    `last`: this is the last possible path, so the file may use all of the free space.

    The function reserves the bytes now. Otherwise, on a full disk, a process that writes to the
    file would get SIGBUS and end without a message.
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
    """Sends and receives objects over a pipe and `slots` shared files, which it uses in rotation.

    A file must be read before it is overwritten. So a sender must have at most `slots` unread
    objects, which the worker's `WINDOW` ensures. `folders`: the possible folders of the files, the
    preferred one first.
    """

    def __init__(
        self, connection: Connection, folders: Sequence[Path], name: str, slots: int
    ) -> None:
        self._connection = connection
        names = [f"{name}-{slot}" for slot in range(slots)]
        self._shared = deque(Shared([folder / each for folder in folders]) for each in names)

    @property
    def moved(self) -> bool:
        """Whether a file is not in the preferred folder."""
        return any(shared.place for shared in self._shared)

    def send(self, obj: Any) -> None:
        """Send an object.

        Raises `OSError` if the other end is closed, and `EngineError` if the object has no room.
        After an `EngineError` the other end has received nothing, and the channel is still usable.
        """
        buffers: list[pickle.PickleBuffer] = []
        dumped = BytesIO()
        _Pickler(dumped, 5, buffer_callback=buffers.append).dump(obj)
        views, small = [b.raw() for b in buffers], dumped.getbuffer()
        # Both ends write to one pipe. Two objects that fill it would block both ends for ever.
        if beside := small.nbytes >= LARGE:
            views.append(small)
        shared = self._shared[0]
        sizes = shared.write(views)
        self._shared.rotate(-1)
        head = None if beside else small.tobytes()
        self._connection.send_bytes(pickle.dumps((shared.place, sizes, head)))

    def receive(self) -> Any:
        """Wait for an object. Raises `EOFError` or `OSError` if the other end is closed."""
        place, sizes, head = pickle.loads(self._connection.recv_bytes())
        buffers = self._shared[0].read(place, sizes)
        self._shared.rotate(-1)
        return pickle.loads(buffers.pop() if head is None else head, buffers=buffers)

    def remove(self) -> None:
        """Remove the files."""
        for shared in self._shared:
            shared.remove()


class Folders:
    """The folders of the shared files: one in memory if the system has /dev/shm, one on disk.

    Raises `EngineError` if no folder can be made.
    """

    def __init__(self) -> None:
        self._temp_dirs: list[TempDirs] = []
        self._told = False
        parents = [MEMORY]
        with suppress(FileNotFoundError):  # no usable folder for temporary files
            parents.append(tempfile.gettempdir())
        for parent in dict.fromkeys(parents):
            with suppress(OSError):
                self._temp_dirs.append(TempDirs(parent))
        if not self._temp_dirs:
            raise EngineError(
                "no folder for what nodes and server send each other can be made in "
                f"{parents[-1]}: set TMPDIR to one that can be written to"
            )

    @property
    def paths(self) -> list[Path]:
        """The folders, the preferred one first."""
        return [each.path for each in self._temp_dirs]

    def tell_of(self, channel: Channel) -> None:
        """Log that a channel's files had to move to disk; log this only once."""
        if channel.moved and not self._told:
            self._told = True
            memory, disk = (path.parent for path in (self.paths[0], self.paths[-1]))
            log.warning(
                "no room in %s (%.0f MB free): what nodes and server send each other goes to %s",
                *(memory, disk_usage(memory).free / 1e6, disk),
            )

    def close(self) -> None:
        """Remove the folders."""
        for each in self._temp_dirs:
            each.close()
