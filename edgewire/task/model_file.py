"""The file with a model's weights, and its checksum; this module does not import torch."""

import hashlib
import json
from pathlib import Path
from typing import Any

from edgewire.task.errors import errors_as

MODEL = "model.safetensors"  # in a run's folder
KEY = "edgewire"  # in the metadata: what the file says of its model


def file_of(path: str) -> str:
    """Return the path of a model's file; `path`: this file, or the folder of a run."""
    found = Path(path).expanduser()
    return str(found / MODEL if found.is_dir() else found)


def said_in(path: str) -> dict[str, Any]:
    """Return what a model's file says of its model (`ModelInfo`); {}: nothing.

    `path`: as in `file_of`. Raises `TaskError` for a file that cannot be read.
    """
    from safetensors import safe_open

    with errors_as(f"{path} is no model's file", ": give the folder of a run"):
        with safe_open(file_of(path), "np") as opened:
            said = (opened.metadata() or {}).get(KEY)
        return dict(json.loads(said)) if said else {}


def sha256_of(file: str) -> str:
    """Return the SHA-256 of a file, or of a run's model, as hexadecimal digits.

    Raises `TaskError` if it is unreadable.
    """
    with errors_as(f"model.file={file} cannot be read"), open(file_of(file), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
