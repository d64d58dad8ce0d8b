"""`engine=superlink`: runs a job on real devices, at a SuperLink that is already running.

The ServerApp is a process on the SuperLink's machine, and writes its files there. This engine
copies the files into the run folder. It copies them from this project's server
(`edgewire.deploy.server`), or from the folder EDGEWIRE_OUTPUT on this machine.

An unfinished run is resumed at the SuperLink, in the same folder there. Until the run ends,
`superlink.json` in the run folder holds the name of that folder.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import closing, suppress
from datetime import datetime
from logging import getLogger
from pathlib import Path
from typing import Any

import click
import httpx
from flwr.common.serde import fab_to_proto, user_config_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient

from edgewire.engines.control import (
    DIED,
    bundle,
    cause_of,
    follow,
    refuse_local_only,
    repeat_warnings,
)
from edgewire.engines.download import (
    GROWING,
    LocalFiles,
    ServedFiles,
    Source,
    fetch_all,
    follow_files,
)
from edgewire.engines.superlink_client import REPEATED, Superlink, is_refused, one_line_errors
from edgewire.machine.errors import EngineError, UsageError
from edgewire.machine.job import CHECKPOINT, PLACE, Job
from edgewire.machine.processes import orderly_exit, undisturbed

RESULT = "result.json"  # a file that the app writes
FINISHED, INTERRUPTED = "finished", "interrupted"  # values of `ended` in a result
log = getLogger("edgewire")
RESUME = "resume"  # the app's run-config key for a run that continues
_MOST_RUNS = 100  # number of a SuperLink's newest runs that are searched for a run
_LOOK_SECONDS = 1.0
_END_SECONDS = 30.0  # wait for a stopped ServerApp to write its files
_OUTPUT = "EDGEWIRE_OUTPUT"


def run_on_superlink(
    job: Job, *, address: str | None = None, certificate: str | None = None, wait: float = 3600.0
) -> None:
    """Run a job to its end at the SuperLink at `address`; the log is `superlink.log`.

    `certificate`: the file of the CA that has signed the SuperLink's certificate; None: no TLS.
    `wait`: for how many seconds to wait, at most, until as many nodes as the job needs are online.

    Raises `UsageError` for invalid settings. Raises `EngineError` for a run that failed, was
    stopped, or has left no result.
    """
    refuse(job, address=address, certificate=certificate, wait=wait)
    with (
        closing(Superlink(str(address), certificate)) as superlink,
        closing(superlink.control(REPEATED)) as control,
    ):
        try:
            with orderly_exit(), one_line_errors(str(address)):
                _run(job, superlink, control, wait)
        except EngineError as error:
            lost = isinstance(error.__cause__, httpx.HTTPError | click.ClickException)
            if lost and (job.folder / PLACE).exists():
                again = f"`python run.py resume={job.folder}` resumes the run"
                raise EngineError(f"{error}; once it is there again, {again}") from error
            raise


def refuse(
    job: Job, *, address: str | None = None, certificate: str | None = None, wait: float = 3600.0
) -> None:
    """Raise `UsageError` for a job that this engine cannot run, and for invalid options."""
    if not address:
        raise UsageError("engine=superlink needs engine.address=HOST:PORT of a SuperLink")
    if not wait >= 0:
        raise UsageError(f"engine.wait must be 0 or more seconds, not {wait:g}")
    refuse_local_only(job, "superlink")


def _run(job: Job, superlink: Superlink, control: ControlHttpClient, wait: float) -> None:
    resumed, place = bool(job.run_config.get(RESUME)), job.folder / PLACE
    name = _name_in(place) if resumed else _new_name(place)
    source = source_of(superlink, name)
    output = job.folder / "superlink.log"
    if resumed:
        expect_there(source, job.folder, name)
    (job.folder / GROWING).unlink(missing_ok=True)
    status, values = None, dict(job.run_config, output=name)
    if resumed and (run_id := _under_way(control, name)):
        # the run continues, or the server has not noticed that the run's process is dead
        log.warning("the run is still under way at the SuperLink: it is followed")
        status = _followed(control, run_id, output, source, job.folder)
        if _ended(source, job.folder) == INTERRUPTED:
            status = None  # a signal has stopped it; it continues from its checkpoint
    if resumed and CHECKPOINT not in source.sizes():
        if _ended(source, job.folder) == FINISHED:  # while no client followed it
            _forget(place)
            return
        log.warning("there is no checkpoint of the run yet: it starts from the beginning")
        values[RESUME] = False
    if status is None or status.sub_status != "completed":
        run_id = start_run(job, superlink, control, values, wait)
        status = _followed(control, run_id, output, source, job.folder)
    found = REPEATED.invoke(fetch_all, source, job.folder)
    again = f"; `python run.py resume={job.folder}` resumes the run"
    if status.sub_status != "completed":
        cause = cause_of(status, output.read_text(encoding="utf-8", errors="replace"))
        raise EngineError(f"{cause} (log: {output}){again if DIED in status.details else ''}")
    if RESULT not in found:
        raise EngineError(f"the run has ended, and left no {RESULT} (log: {output})")
    if _read_ended(job.folder) == INTERRUPTED:
        raise EngineError(f"a signal has stopped the run at the server (log: {output}){again}")
    _forget(place)


def _forget(place: Path) -> None:
    """Remove the files that only an unfinished run needs: `superlink.json` and the checkpoint."""
    place.unlink(missing_ok=True)
    (place.parent / CHECKPOINT).unlink(missing_ok=True)


def _new_name(place: Path) -> str:
    """Return a new name for the run's folder at the server; store it in `place` for a resume."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    place.write_text(json.dumps({"output": name}) + "\n")
    return name


def _name_in(place: Path) -> str:
    try:
        return str(json.loads(place.read_text())["output"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{place} does not say where the run is: on which engine was it begun?"
        ) from error


def expect_there(source: Source, folder: Path, name: str) -> None:
    """Raise `EngineError` if a run has written files to `folder` but the server has none of it."""
    begun = any(f.exists() and f.stat().st_size for f in (folder / CHECKPOINT, folder / GROWING))
    if begun and not source.sizes():
        raise EngineError(
            f"the server has nothing of this run: it has another --state, or {name} was removed "
            f"from its runs; what is in {folder} stays as it is (without resume= a new run starts)"
        )


def _under_way(control: ControlHttpClient, name: str) -> int:
    """Return the id of the unfinished run whose folder at the server has this name; or 0."""
    runs = control.ListRuns(ListRunsRequest(limit=_MOST_RUNS)).run_dict
    for run_id, run in runs.items():
        values = user_config_from_proto(run.override_config)
        if values.get("output") == name and run.status.status != "finished":
            return int(run_id)
    return 0


def _ended(source: Source, folder: Path) -> str:
    """Copy the files of a run; return how the run has ended, "" if it has no result."""
    return _read_ended(folder) if RESULT in REPEATED.invoke(fetch_all, source, folder) else ""


def _read_ended(folder: Path) -> str:
    """Return how a run has ended, from its result in `folder`; "" if the result is damaged."""
    try:
        return str(json.loads((folder / RESULT).read_text())["ended"])
    except (ValueError, KeyError, TypeError):  # truncated: the run continues from its checkpoint
        return ""


def start_run(
    job: Job,
    superlink: Superlink,
    control: ControlHttpClient,
    values: dict[str, Any],
    wait: float,
) -> int:
    """Wait for the nodes, then submit a run with these values; return its id."""
    fab = bundle(job.app_dir, values, job.sources)
    wait_for_nodes(control, job.nodes, wait, more=bool(values.get(RESUME)))
    request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(values))
    try:
        with closing(superlink.control()) as once:  # to ask twice could start two runs
            run_id: int = once.StartRun(request).run_id
    except httpx.TransportError as error:
        run_id = 0 if is_refused(error) else _under_way(control, values["output"])
        if not run_id:
            raise
    if not run_id:
        raise EngineError(f"the SuperLink at {superlink.address} takes no app of this size")
    return run_id


def _followed(
    control: ControlHttpClient, run_id: int, output: Path, source: Source, folder: Path
) -> RunStatus:
    """Follow a run; return its last status. If this process is stopped, stop the run too."""
    output.write_bytes(b"")
    repeated = 0

    def look() -> None:
        nonlocal repeated
        repeated = repeat_warnings(output, repeated)
        REPEATED.invoke(follow_files, source, folder)

    try:
        status = follow(control, run_id, output, look)
        repeat_warnings(output, repeated)
        return status
    except BaseException:
        with undisturbed():
            _stop(control, run_id, source, folder)
        raise


def source_of(superlink: Superlink, name: str) -> Source:
    """Return the place from which a run's files are copied. Raises `UsageError` without one."""
    if superlink.bundles:
        return ServedFiles(superlink.http, name)
    if folder := os.environ.get(_OUTPUT):
        return LocalFiles(Path(folder) / name)
    raise UsageError(
        f"the SuperLink at {superlink.address} hands out no files: start `python -m "
        f"edgewire.deploy.server` in its place, or set {_OUTPUT} to its folder, if it is here"
    )


def wait_for_nodes(
    control: ControlHttpClient, wanted: int, seconds: float, *, more: bool = False
) -> None:
    """Wait until `wanted` nodes are online; log their number whenever it changes.

    `more`: more than `wanted` nodes may be online, because a resumed run knows its nodes. Raises
    `UsageError` if more nodes are online and `more` is False. Raises `EngineError` if fewer nodes
    are online after `seconds`.
    """
    deadline, before = time.monotonic() + seconds, -1
    while (there := online(control)) < wanted:
        if there != before:
            log.warning("waiting for nodes: %d of %d are online", there, wanted)
        if time.monotonic() >= deadline:
            raise EngineError(
                f"{there} of {wanted} nodes came online within engine.wait={seconds:g} s: start "
                f"the others, or give nodes={max(there, 1)}"
            )
        before = there
        time.sleep(_LOOK_SECONDS)
    if there > wanted and not more:
        raise UsageError(
            f"{there} nodes are online, more than nodes={wanted}: stop the others, or give "
            f"nodes={there}"
        )


def online(control: ControlHttpClient) -> int:
    """Return the number of nodes that are online."""
    found = control.ListNodes(ListNodesRequest())
    now = datetime.fromisoformat(found.now).timestamp()  # the server's clock
    return sum(each.status == "online" and each.online_until > now for each in found.nodes_info)


def _stop(control: ControlHttpClient, run_id: int, source: Source, folder: Path) -> None:
    """Stop a run, and copy the files that it writes at its end."""
    with suppress(httpx.HTTPError, click.ClickException, SystemExit):
        if control.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status.status == (
            "finished"
        ):
            return
        control.StopRun(StopRunRequest(run_id=run_id))
        until = time.monotonic() + _END_SECONDS
        while RESULT not in source.sizes() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS / 2)
        fetch_all(source, folder)
