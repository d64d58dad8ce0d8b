"""Serves the files that runs have written on the server; removes those of old runs, and apps."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from edgewire.engines.download import LocalFiles
from edgewire.machine.job import CHECKPOINT

PIECE = 1 << 20  # bytes that are read at once
DAY = 86400.0  # seconds


async def results_of(output: Path, request: Request) -> Response:
    """Return the sizes of a run's files, or one file from byte `start` on.

    The request's path ends in RUN or RUN/FILE. `output`: the folder that holds each run's folder.
    Raises `HTTPException` 404 for an unknown run or file, 400 for an invalid `start`.
    """
    run, _, name = request.url.path.partition("/runs/")[2].partition("/")
    folder = output / run
    if not is_plain(run) or not folder.is_dir():
        raise HTTPException(404, f"there is no run {run}")
    if not name:
        sizes = LocalFiles(folder).sizes()
        return JSONResponse({each: size for each, size in sizes.items() if is_plain(each)})
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


def each_day(*given: Any) -> NoReturn:
    """Call `remove_old` now and each day; a folder that cannot be removed stays until then."""
    while True:
        with suppress(OSError):
            remove_old(*given)
        time.sleep(DAY)


def remove_old(runs: Path, apps: Path, days: float | None, most: int | None, state: Any) -> None:
    """Remove old folders, but no unfinished run, and no app that a run of `state` still needs.

    `days`: the age from which a finished run is removed. The newest run tells the time, because the
    machine's clock may be wrong. `most`: the number of apps to keep. None: all are kept.
    """
    if days is not None:
        ends = {each: end for each in runs.glob("*/") if (end := _end(each)) is not None}
        newest = max(ends.values(), default=0.0)
        for each in [each for each, end in ends.items() if end < newest - days * DAY]:
            shutil.rmtree(each, ignore_errors=True)
    if most is not None:
        found = sorted(apps.glob("*/"), key=lambda each: each.stat().st_mtime, reverse=True)
        going = [run for run in state.get_run_info() if run.status.status != "finished"]
        for each in found[most:]:
            start = each.name.rpartition(".")[2]  # the first digits of the app's SHA-256
            if not any(run.fab_hash.startswith(start) for run in going):
                shutil.rmtree(each, ignore_errors=True)


def _end(run: Path) -> float | None:
    """Return when a run has finished, in seconds since 1970; None if it has not."""
    result = run / "result.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        if json.loads(result.read_text())["ended"] == "finished":
            return None if (run / CHECKPOINT).exists() else result.stat().st_mtime
    return None
