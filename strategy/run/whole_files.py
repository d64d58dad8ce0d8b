"""Replaces files as a whole, so that a full disk or a kill leaves the earlier file."""

import os
from contextlib import suppress
from pathlib import Path


class NotWritten(OSError):
    """A run's end cannot be written. The message is one line: why, and what is on the disk."""


def replace_file(path: Path, *parts: bytes | str, durable: bool = False) -> None:
    """Write a file's new content beside the file, then replace the file by it atomically.

    `parts`: the content; texts are written as UTF-8. `durable`: True to return only when the
    content is on the disk. If the function raises `OSError`, the earlier file stays.
    """
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            for part in parts:
                file.write(part.encode() if isinstance(part, str) else part)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        error.filename = str(path)
        with suppress(OSError):
            partial.unlink()
        raise
    if durable:
        with suppress(OSError):  # not every system writes a folder's entries to the disk
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
