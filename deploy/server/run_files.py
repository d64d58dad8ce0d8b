"""Serves the files that runs have left on the server to the client that started them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

PIECE = 1 << 20  # bytes of one read


async def results_of(output: Path | None, request: Request) -> Response:
    """Return the list of a run's files, or one of them from byte `start` on.

    The path ends in RUN or RUN/FILE; `output` holds a folder for each run. Raises status 404.
    """
    run, _, name = request.url.path.partition("/runs/")[2].partition("/")
    folder = None if output is None else output / run
    if folder is None or not _plain(run) or not folder.is_dir():
        raise HTTPException(404, f"there is no run {run}")
    if not name:
        files = [each for each in folder.iterdir() if _is_own(each)]
        return JSONResponse({each.name: each.stat().st_size for each in files})
    path = folder / name
    if not _plain(name) or not _is_own(path):
        raise HTTPException(404, f"run {run} has no {name}")
    start = request.query_params.get("start", "0")
    if not start.isdecimal():
        raise HTTPException(400, "start is a number of bytes")
    return StreamingResponse(_pieces(path, int(start)), media_type="application/octet-stream")


def _pieces(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while piece := file.read(PIECE):
            yield piece


def _is_own(path: Path) -> bool:
    """Return whether a path is a regular file: no symbolic link, and not hidden."""
    return _plain(path.name) and path.is_file() and not path.is_symlink()


def _plain(name: str) -> bool:
    """Return whether a name is a plain file name: without a folder, and not hidden."""
    return bool(name) and not name.startswith(".") and not {"/", "\\", "\0"} & set(name)
