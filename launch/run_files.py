"""What a run leaves on another machine, or in another folder, brought here while it grows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import httpx

GROWING = "history.jsonl"  # what is followed; all else is fetched at the end
_PART = ".part"  # of a file that is still being written


class Source(Protocol):
    """Where a run's files are."""

    def sizes(self) -> dict[str, int]:
        """Return the names of the files there are, with their bytes; none if there is no run."""

    def read(self, name: str, start: int, into: Path) -> None:
        """Append a file, from byte `start` on, to another."""


class Served:
    """Files that a server of ours hands out (`deploy.server.run_files`)."""

    def __init__(self, http: httpx.Client, run: str) -> None:
        self._http, self._path = http, f"/v1/control/edgewire/runs/{run}"

    def sizes(self) -> dict[str, int]:
        """See `Source`."""
        found = self._http.get(self._path)
        if found.status_code == 404:
            return {}
        sizes: dict[str, int] = found.raise_for_status().json()
        return sizes

    def read(self, name: str, start: int, into: Path) -> None:
        """See `Source`."""
        where = f"{self._path}/{name}"
        with self._http.stream("GET", where, params={"start": start}) as found:
            found.raise_for_status()
            with into.open("ab") as file:
                for piece in found.iter_bytes():
                    file.write(piece)


class Near:
    """Files in a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        """See `Source`."""
        if not self._folder.is_dir():
            return {}
        files = [path for path in self._folder.iterdir() if path.is_file()]
        return {path.name: path.stat().st_size for path in files}

    def read(self, name: str, start: int, into: Path) -> None:
        """See `Source`."""
        with (self._folder / name).open("rb") as there, into.open("ab") as file:
            there.seek(start)
            while piece := there.read(1 << 20):
                file.write(piece)


def follow_history(source: Source, folder: Path) -> None:
    """Append to the folder's history what the run's has more."""
    here = folder / GROWING
    have = here.stat().st_size if here.exists() else 0
    there = source.sizes().get(GROWING, 0)
    if there < have:  # a run that was resumed has cut off what came after its checkpoint
        here.unlink()
        have = 0
    if there > have:
        source.read(GROWING, have, here)


def fetch_all(source: Source, folder: Path) -> list[str]:
    """Bring all files that a run has left into the folder, whole; return their names."""
    names = [name for name in source.sizes() if not name.endswith(_PART)]
    for name in names:
        partial = folder / f"{name}{_PART}"
        partial.unlink(missing_ok=True)
        source.read(name, 0, partial)
        os.replace(partial, folder / name)
    return names
