"""Serves the files that a run has written on the server to the client that started the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

PIECE = 1 << 20  # bytes that are read at once


async def results_of(output: Path | None, request: Request) -> Response:
    """Return the sizes of a run's files, or one file from byte `start` on.

    The request's path ends in RUN or RUN/FILE. `output`: the folder that holds each run's folder.
    Raises `HTTPException` 404 for an unknown run or file, 400 for an invalid `start`.
    """
    run, _, name = request.url.path.partition("/runs/")[2].partition("/")
    folder = None if output is None else output / run
    if folder is None or not is_plain(run) or not folder.is_dir():
        raise HTTPException(404, f"there is no run {run}")
    if not name:
        files = [each for each in folder.iterdir() if is_plain(each.name) and each.is_file()]
        return JSONResponse({each.name: each.stat().st_size for each in files})
    path = folder / name
    if not is_plain(name) or not path.is_file():
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


def is_plain(name: str) -> bool:
    """Return whether a name has no folder and does not begin with a dot."""
    return bool(name) and not name.startswith(".") and not {"/", "\\", "\0"} & set(name)
