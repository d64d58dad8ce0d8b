"""Numbered files in a node's folder: each holds a head and blobs, and is written atomically.

A blob is a byte string, such as an array. The head describes the blobs. Format: u64 length of the
head, xxh3 of the head (8 bytes), the head (JSON), the blobs end to end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from xxhash import xxh3_64_digest, xxh3_64_hexdigest

_HEAD = struct.Struct("<Q8s")
_SUFFIX = ".state"


@dataclass
class Blob:
    """Where a blob is: number of its file, offset after the head, size (both in bytes), xxh3."""

    file: int
    at: int
    size: int
    mark: str


class Draft:
    """The blobs of a new file, before it is written."""

    def __init__(self, number: int) -> None:
        self.blobs = list[memoryview]()
        self._number, self._end = number, 0

    def put(self, content: memoryview) -> Blob:
        """Add a blob; return its place in the file that will be written."""
        blob = Blob(self._number, self._end, content.nbytes, xxh3_64_hexdigest(content))
        self.blobs.append(content)
        self._end += content.nbytes
        return blob


def path_of(folder: Path, number: int) -> Path:
    """Return the path of a numbered file."""
    return folder / f"{number}{_SUFFIX}"


def size_of(folder: Path, number: int) -> int:
    """Return a file's size in bytes, or 1 << 62 for a missing file.

    Blobs that are a small share of their file are written again, so those of a missing file too.
    """
    try:
        return path_of(folder, number).stat().st_size
    except OSError:
        return 1 << 62


def numbers_in(folder: Path) -> Iterator[int]:
    """Yield the numbers of all numbered files in a folder."""
    for file in folder.glob(f"*{_SUFFIX}"):
        if file.stem.isdecimal():
            yield int(file.stem)


def head_of(folder: Path, number: int) -> bytes:
    """Return a file's head. Raises `OSError`, and `ValueError` for a damaged file."""
    with path_of(folder, number).open("rb") as file:
        size, mark = _begun(file)
        head = file.read(size)
    if xxh3_64_digest(head) != mark:
        raise ValueError("its head is not what was written")
    return head


def _begun(file: BinaryIO) -> tuple[int, bytes]:
    """Return a head's length and xxh3. Raises `ValueError` for a file that is too short."""
    try:
        size, mark = _HEAD.unpack(file.read(_HEAD.size))
    except struct.error as error:
        raise ValueError("it breaks off at its beginning") from error
    if size > os.fstat(file.fileno()).st_size:
        raise ValueError("its head is longer than the file")
    return size, mark


def read(folder: Path, blob: Blob) -> bytes:
    """Return a blob's content. Raises `OSError`, and `ValueError` for a damaged blob."""
    with path_of(folder, blob.file).open("rb") as file:
        size, _ = _begun(file)
        file.seek(_HEAD.size + size + blob.at)
        content = file.read(blob.size)
    if xxh3_64_hexdigest(content) != blob.mark:
        raise ValueError(f"file {blob.file} is not what was written")
    return content


def write(folder: Path, number: int, head: bytes, blobs: list[memoryview]) -> None:
    """Write a file atomically. It is durable when this function returns. Raises `OSError`."""
    draft = folder / "draft"
    try:
        with draft.open("wb") as file:
            file.write(_HEAD.pack(len(head), xxh3_64_digest(head)) + head)
            for blob in blobs:
                file.write(blob)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        draft.unlink(missing_ok=True)  # a full disk gets its space back
        raise
    draft.replace(path_of(folder, number))
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_others(folder: Path, needed: set[int]) -> None:
    """Remove all numbered files except the needed ones."""
    for number in list(numbers_in(folder)):
        if number not in needed:
            path_of(folder, number).unlink(missing_ok=True)
