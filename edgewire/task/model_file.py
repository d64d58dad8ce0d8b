"""The checksum of a file with a model's weights; this module does not import torch."""

import hashlib
from functools import lru_cache
from pathlib import Path

from edgewire.task.errors import TaskError


def sha256_of(file: str) -> str:
    """Return the SHA-256 of a file as hexadecimal digits; raises `TaskError` if it is unreadable.

    The digest of an unchanged file (same size and time of change) is computed once a process.
    """
    try:
        path = Path(file).resolve()
        if not path.is_file():
            raise TaskError(f"model.file={file}: there is no such file here")
        status = path.stat()
        return _sha256(path, status.st_mtime_ns, status.st_size)
    except TaskError:
        raise
    except (OSError, ValueError) as error:
        raise TaskError(f"model.file={file} cannot be read: {error}") from error


@lru_cache(maxsize=8)
def _sha256(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
