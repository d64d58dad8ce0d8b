"""What a node keeps of one run on its disk: the run's `Context.state`, and its last reply.

Both are written together, as one file that is there whole or not at all: memory that goes with a
reply is never without it, nor the other way round. Arrays lie in it as raw bytes. Those that have
not changed stay in the file in which they are; a file goes when nothing in it counts any more.

    u64 length of the head, xxh3 of the head (8 bytes), head (JSON), the blobs end to end
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import (
    config_record_from_proto,
    config_record_to_proto,
    metric_record_from_proto,
    metric_record_to_proto,
)
from flwr.proto import recorddict_pb2
from xxhash import xxh3_64_digest, xxh3_64_hexdigest

_HEAD = struct.Struct("<Q8s")
_SMALL = 4096  # bytes: what is no longer is written every time
_ANSWERED = 16  # ids that are kept: a message that comes twice is replied to once
_SUFFIX = ".state"
log = getLogger("edgewire")


@dataclass
class Blob:
    """Bytes in a file: which file, where its blobs of these bytes begin, how many, their xxh3."""

    file: int
    at: int
    size: int
    mark: str


@dataclass
class Shelf:
    """One run's folder. `open_shelf` reads it.

    `state`: the run's state as it was after the last reply; `answered`: the ids of the messages
    that were replied to last, the newest at the end.
    """

    folder: Path
    state: RecordDict = field(default_factory=RecordDict)
    answered: list[str] = field(default_factory=list)
    _number: int = 0  # of the newest file
    _reply: Blob | None = None
    _arrays: dict[tuple[str, str], Blob] = field(default_factory=dict)

    def reply(self) -> bytes:
        """Return the last reply as it was given to `commit`. Raises `OSError`, `ValueError`."""
        if self._reply is None:
            raise ValueError("no reply is kept")
        return _read(self.folder, self._reply)

    def commit(self, state: RecordDict, message: str, reply: bytes) -> None:
        """Write the state and the reply to `message`; both are durable when this returns.

        Raises `OSError` if that cannot be; then all is as it was before.
        """
        number = self._number + 1
        draft = Draft(number)
        last = draft.put(memoryview(reply))
        found = {
            (name, key): _bytes_of(array)
            for name, record in state.items()
            if isinstance(record, ArrayRecord)
            for key, array in record.items()
        }
        arrays = self._unchanged({place: content for place, (_, content) in found.items()})
        for place, (_, content) in found.items():
            if place not in arrays:
                arrays[place] = draft.put(content)
        records = list[Any]()
        for name, record in state.items():
            if isinstance(record, ArrayRecord):
                entries = [[k, found[name, k][0], vars(arrays[name, k])] for k in record]
                records.append([name, "arrays", entries])
            else:
                kind = "config" if isinstance(record, ConfigRecord) else "metrics"
                records.append([name, kind, vars(draft.put(_plain_bytes(record)))])
        answered = [*self.answered[1 - _ANSWERED :], message]
        head = {"answered": answered, "reply": vars(last), "records": records}
        _write(self.folder, number, json.dumps(head).encode(), draft.blobs)
        self.state, self.answered = state, answered
        self._number, self._reply, self._arrays = number, last, arrays
        _remove_others(self.folder, {number, *(blob.file for blob in arrays.values())})

    def _unchanged(self, found: dict[tuple[str, str], memoryview]) -> dict[tuple[str, str], Blob]:
        """Return the arrays that stay where they are: not small, and most of their file."""
        same, live = dict[tuple[str, str], Blob](), dict[int, int]()
        for place, content in found.items():
            blob = self._arrays.get(place)
            if blob is None or blob.size != content.nbytes or blob.size <= _SMALL:
                continue
            if blob.mark == xxh3_64_hexdigest(content):
                same[place] = blob
                live[blob.file] = live.get(blob.file, 0) + blob.size
        sizes = {file: _size(self.folder, file) for file in live}
        return {p: b for p, b in same.items() if live[b.file] * 2 > sizes[b.file]}


class Draft:
    """The blobs of a file that is to be written."""

    def __init__(self, number: int) -> None:
        self.blobs = list[memoryview]()
        self._number, self._end = number, 0

    def put(self, content: memoryview) -> Blob:
        """Add a blob; return where it will be."""
        blob = Blob(self._number, self._end, content.nbytes, xxh3_64_hexdigest(content))
        self.blobs.append(content)
        self._end += content.nbytes
        return blob


def open_shelf(folder: Path) -> Shelf:
    """Return what a run's folder holds; an empty one if there is none, or if it is damaged."""
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(_numbers(folder), default=0)
    if newest:
        try:
            return _opened(folder, newest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the state in %s is damaged (%s): it starts anew", folder, error)
    return Shelf(folder, _number=newest)


def _opened(folder: Path, number: int) -> Shelf:
    head = json.loads(_head(folder, number))
    reply = Blob(**head["reply"])
    _read(folder, reply)  # it must be whole: the state is what came after it
    state, arrays = RecordDict(), dict[tuple[str, str], Blob]()
    for name, kind, content in head["records"]:
        if kind == "arrays":
            record = ArrayRecord()
            for key, form, place in content:
                arrays[name, key] = blob = Blob(**place)
                record[key] = _array(form, _read(folder, blob))
            state[name] = record
        else:
            state[name] = _plain(kind, _read(folder, Blob(**content)))
    return Shelf(folder, state, head["answered"], number, reply, arrays)


def _plain_bytes(record: ConfigRecord | MetricRecord) -> memoryview:
    if isinstance(record, ConfigRecord):
        return memoryview(config_record_to_proto(record).SerializeToString())
    return memoryview(metric_record_to_proto(record).SerializeToString())


def _plain(kind: str, content: bytes) -> ConfigRecord | MetricRecord:
    if kind == "config":
        return config_record_from_proto(recorddict_pb2.ConfigRecord.FromString(content))
    return metric_record_from_proto(recorddict_pb2.MetricRecord.FromString(content))


def _bytes_of(array: Array) -> tuple[list[Any], memoryview]:
    """Return what an array is, and its bytes: raw, where it is over a vector of numpy's."""
    vector = getattr(array, "vector", None)
    if isinstance(vector, np.ndarray) and not vector.dtype.hasobject:
        flat = np.ascontiguousarray(vector).reshape(-1)
        return [vector.dtype.str, list(vector.shape), ""], flat.view(np.uint8).data
    return [array.dtype, list(array.shape), array.stype], memoryview(array.data)


def _array(form: list[Any], content: bytes) -> Array:
    dtype, shape, stype = form
    if stype:
        return Array(dtype, tuple(shape), stype, content)
    return Array(np.ndarray(tuple(shape), dtype, content))


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number}{_SUFFIX}"


def _size(folder: Path, number: int) -> int:
    try:
        return _path(folder, number).stat().st_size
    except OSError:
        return 1 << 62  # it is gone: nothing of it is worth keeping


def _numbers(folder: Path) -> Iterator[int]:
    for file in folder.glob(f"*{_SUFFIX}"):
        if file.stem.isdecimal():
            yield int(file.stem)


def _head(folder: Path, number: int) -> bytes:
    with _path(folder, number).open("rb") as file:
        size, mark = _HEAD.unpack(file.read(_HEAD.size))
        head = file.read(min(size, os.fstat(file.fileno()).st_size))
    if xxh3_64_digest(head) != mark:
        raise ValueError("its head is not what was written")
    return head


def _read(folder: Path, blob: Blob) -> bytes:
    with _path(folder, blob.file).open("rb") as file:
        size, _ = _HEAD.unpack(file.read(_HEAD.size))
        file.seek(_HEAD.size + size + blob.at)
        content = file.read(blob.size)
    if xxh3_64_hexdigest(content) != blob.mark:
        raise ValueError(f"file {blob.file} is not what was written")
    return content


def _write(folder: Path, number: int, head: bytes, blobs: list[memoryview]) -> None:
    draft = folder / "draft"
    try:
        with draft.open("wb") as file:
            file.write(_HEAD.pack(len(head), xxh3_64_digest(head)) + head)
            for blob in blobs:
                file.write(blob)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        draft.unlink(missing_ok=True)  # a full disk has room again
        raise
    draft.replace(_path(folder, number))
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make a folder's own entries durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_others(folder: Path, needed: set[int]) -> None:
    for number in list(_numbers(folder)):
        if number not in needed:
            _path(folder, number).unlink(missing_ok=True)
