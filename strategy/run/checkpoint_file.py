"""Reads and writes a run's checkpoint, one file of named parts in the run's folder.

The first line is JSON. It holds the format, each part's name and size, and a checksum of the parts,
which follow. The file is replaced atomically, so the previous checkpoint stays until the new one is
complete.
"""

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from xxhash import xxh3_64

from edgewire.conf.schema import ConfigError
from edgewire.strategy.run.whole_files import replace_file

FILE = "checkpoint"
MARK, FORMAT = "edgewire-checkpoint", 11  # increase FORMAT if older versions cannot read the file


def write(folder: Path, parts: Mapping[str, bytes]) -> None:
    """Write a checkpoint into a folder, and replace an older checkpoint there atomically.

    `parts`: the checkpoint's content, as named byte strings. If the function raises `OSError`, the
    older checkpoint stays.
    """
    sizes = [[name, len(part)] for name, part in parts.items()]
    head = json.dumps({MARK: FORMAT, "parts": sizes, "checksum": _checksum(parts)})
    replace_file(folder / FILE, f"{head}\n", *parts.values(), durable=True)


def _checksum(parts: Mapping[str, bytes]) -> str:
    found = xxh3_64()
    for name, part in parts.items():
        found.update(f"{name} {len(part)}\n".encode())
        found.update(part)
    return found.hexdigest()


def forget(folder: str) -> None:
    """Remove the checkpoint in a folder, because no run will resume from it any more."""
    if folder:
        with suppress(OSError):
            (Path(folder) / FILE).unlink(missing_ok=True)


def expect(folder: Path) -> None:
    """Raise `ConfigError` with a one-line message for a folder from which no run can resume."""
    if not folder.is_dir():
        raise ConfigError(f"resume={folder}: there is no such folder")
    if (folder / FILE).is_file():
        return
    ended, more = None, "rounds=10"
    with suppress(OSError, ValueError, KeyError, TypeError):
        result = json.loads((folder / "result.json").read_text())
        ended = result["ended"]
        more += f" privacy.epsilon={2 * result['privacy']['budget']:g} privacy.noise=null"
    if ended == "finished":
        raise ConfigError(
            f"resume={folder}: this run is finished; {shlex.quote(f'start={folder}')} {more} "
            "trains its model on, in a new folder"
        )
    raise ConfigError(
        f"resume={folder}: there is no checkpoint: the run stopped before its first one, or "
        "checkpoint_every= switched checkpoints off"
    )


def read(folder: Path) -> dict[str, bytes]:
    """Read the checkpoint in a folder; return its parts, which are byte strings, by name.

    Raises `ConfigError` with a one-line message for a missing, damaged or incompatible checkpoint.
    """
    expect(folder)
    try:
        with (folder / FILE).open("rb") as file:
            head: Any = json.loads(file.readline(1 << 20))
            found = head[MARK]
            if found != FORMAT:
                raise ConfigError(
                    f"resume={folder}: the checkpoint is of another version ({found!r}, not "
                    f"{FORMAT}): resume with the version that has written it"
                )
            parts = {str(name): file.read(size) for name, size in head["parts"]}
            whole = not file.read(1) and head["checksum"] == _checksum(parts)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError) as error:
        raise ConfigError(f"resume={folder}: the checkpoint cannot be read: {error!r}") from error
    if not whole:
        raise ConfigError(f"resume={folder}: the checkpoint is damaged: start a new run")
    return parts
