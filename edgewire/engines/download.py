"""Copies a run's files from the server or a folder: the history during the run, then all files."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import httpx

from edgewire.engines.superlink_client import REPEATED

GROWING = "history.jsonl"  # its new rows are copied during the run
REPLACED = "nodes.json"  # copied during the run with the rows; all other files at the run's end
PAUSE = 5.0  # seconds between two copies of the file
_PART = ".part"  # suffix of an incomplete copy


class ServedFiles:
    """The files of a run on this project's server (module `edgewire.deploy.server.run_files`)."""

    def __init__(self, http: httpx.Client, run: str) -> None:
        self._http, self._path = http, f"/v1/control/edgewire/runs/{run}"

    def sizes(self) -> dict[str, int]:
        """Return the files' names and sizes in bytes; {} if the run does not exist."""
        found = REPEATED.invoke(self._http.get, self._path)
        if found.status_code == 404:
            return {}
        sizes: dict[str, int] = found.raise_for_status().json()
        return sizes

    def read(self, name: str, start: int, into: Path) -> None:
        """Append a file's content from byte `start` on to the local file `into`."""
        where = f"{self._path}/{name}"
        with self._http.stream("GET", where, params={"start": start}) as found:
            found.raise_for_status()
            with into.open("ab") as file:
                for piece in found.iter_bytes():
                    file.write(piece)


class LocalFiles:
    """The files of a run in a folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        """Return the files' names and sizes in bytes; {} if the run does not exist."""
        sizes = {}
        for each in self._folder.glob("*"):
            with suppress(FileNotFoundError):  # the run renames a file when it is whole
                if each.is_file():
                    sizes[each.name] = each.stat().st_size
        return sizes

    def read(self, name: str, start: int, into: Path) -> None:
        """Append a file's content from byte `start` on to the local file `into`."""
        with (self._folder / name).open("rb") as there, into.open("ab") as file:
            there.seek(start)
            shutil.copyfileobj(there, file)


Source = ServedFiles | LocalFiles  # the place from which a run's files are copied


def follow_files(source: Source, folder: Path) -> None:
    """Copy what a run has written to the files that other programs read during the run.

    New rows are appended to the copy of the history in `folder`. The file `REPLACED` is copied at
    most every `PAUSE` seconds.
    """
    sizes = source.sizes()
    here = folder / GROWING
    have = here.stat().st_size if here.exists() else 0
    there = sizes.get(GROWING, 0)
    if there < have:  # a resumed run has removed the rows after its checkpoint
        here.unlink()
        have = 0
    if there > have:
        source.read(GROWING, have, here)
    copy = folder / REPLACED
    age = time.time() - copy.stat().st_mtime if copy.exists() else PAUSE
    if REPLACED in sizes and not 0 <= age < PAUSE:  # below 0: the clock was set back
        _fetch(source, REPLACED, folder)


def _fetch(source: Source, name: str, folder: Path) -> None:
    """Copy a file into `folder`, atomically."""
    partial = folder / f"{name}{_PART}"
    partial.unlink(missing_ok=True)
    source.read(name, 0, partial)
    os.replace(partial, folder / name)


def fetch_all(source: Source, folder: Path) -> list[str]:
    """Copy all files of a run into `folder`, each atomically; return their names."""
    names = [name for name in source.sizes() if not name.endswith(_PART)]
    for name in names:
        _fetch(source, name, folder)
    return names
