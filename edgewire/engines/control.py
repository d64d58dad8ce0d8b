"""Submits and follows runs through a SuperLink's Control API; finds why a run has failed."""

from __future__ import annotations

import hashlib
import re
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from logging import getLogger
from pathlib import Path
from types import MappingProxyType
from zipfile import ZipFile

import httpx
import tomli_w
from flwr.app import UserConfig
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files
from flwr.common.config import flatten_dict, get_fab_config
from flwr.common.constant import FAB_CONFIG_FILE, FAB_INCLUDE_KEY
from flwr.proto.control_pb2 import ListRunsRequest, StreamLogsRequest
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

from edgewire.machine.app_signature import with_signature
from edgewire.machine.errors import EngineError, UsageError, one_line
from edgewire.machine.job import Job

screen = getLogger("edgewire")
_POLL_SECONDS = 0.5
_PENDING_SECONDS = 30.0  # seconds before a warning that the run has not started
_WAITS = {
    "pending": "has not started the run for %.0f s: it is at work on others, or has no SuperExec",
    "starting": "has been starting the run's process for %.0f s: its machine is slow",
}
_WARNING = "WARNING:edgewire:"
_LAST_LINES_SECONDS = 3.0  # seconds to wait for a finished run's last log lines


def bundle(
    app_dir: Path, run_config: UserConfig, sources: Mapping[str, Path] = MappingProxyType({})
) -> Fab:
    """Return the Flower App Bundle of a folder.

    The bundle holds the files that the app's `fab-include` selects, and its signature if the file
    app.sig has one. `sources`: further files by their path in the bundle.

    Raises `EngineError` for a folder without an app, `UsageError` for a key of `run_config` that
    the app does not have, and for sources that Flower leaves out.
    """
    try:
        content, _ = build_fab_from_files(_with_sources(_files(app_dir), sources))
        config = get_fab_config(content)["tool"]["flwr"]["app"].get("config")
    except (ValueError, OSError) as error:
        raise EngineError(f"{app_dir} is no Flower app: {one_line(str(error))}") from error
    if unknown := sorted(run_config.keys() - flatten_dict(config).keys()):
        raise UsageError(
            f"{', '.join(unknown)}: not in [tool.flwr.app.config] of {app_dir / 'pyproject.toml'}"
        )
    with ZipFile(BytesIO(content)) as made:
        if missing := sorted(sources.keys() - set(made.namelist())):
            raise UsageError(
                f"Flower leaves {missing[0]} out of an app: it takes .py files, but no tests and "
                "no folder such as build; give the package another name"
            )
    content = with_signature(app_dir, content)
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def _with_sources(
    files: dict[str, bytes | Path], sources: Mapping[str, Path]
) -> dict[str, bytes | Path]:
    """Return an app's files and further ones, with a pyproject.toml that includes all of them."""
    if not sources or FAB_CONFIG_FILE not in files:
        return files
    project = tomllib.loads(Path(str(files[FAB_CONFIG_FILE])).read_text(encoding="utf-8"))
    app = project.get("tool", {}).get("flwr", {}).get("app", {})
    tops = {path.partition("/")[0] for path in sources}
    if FAB_INCLUDE_KEY in app:
        code = sorted({path.partition("/")[0] for path in sources if path.endswith(".py")})
        app[FAB_INCLUDE_KEY] += [f"/{top}" if top in sources else f"/{top}/**/*.py" for top in code]
    # The app's folder may have another folder of this name, which Python does not import. And its
    # .gitignore is about its own files.
    tops.add(".gitignore")
    others = {path: file for path, file in files.items() if path.partition("/")[0] not in tops}
    return {**others, **sources, FAB_CONFIG_FILE: tomli_w.dumps(project).encode()}


def refuse_local_only(job: Job, engine: str) -> None:
    """Raise `UsageError` for settings of a job that only `engine=local` supports."""
    if job.only_virtual:
        raise UsageError(
            f"engine={engine} has no virtual clock and cannot honour {job.only_virtual}, or "
            "engine=local"
        )
    if job.verbose:
        raise UsageError(
            f"engine={engine} cannot honour verbose=true, its log goes to {engine}.log in the run "
            "folder: drop it"
        )


def _files(app_dir: Path) -> dict[str, bytes | Path]:
    """Return the files that `flwr run` collects, but skip hidden folders.

    To collect a hidden `.venv` would take seconds.
    """
    files: dict[str, bytes | Path] = {}
    for entry in app_dir.resolve().iterdir():
        if entry.is_file():
            files[entry.name] = entry
        elif entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            files |= {f"{entry.name}/{name}": path for name, path in collect_files(entry).items()}
    return files


def follow(
    client: ControlHttpClient, run_id: int, log: Path, on_poll: Callable[[], None] = lambda: None
) -> RunStatus:
    """Wait for the end of a run, and copy its output to `log`; return its last status.

    `on_poll`: called twice a second. If the run has not started after some time, a warning is
    logged.
    """
    before, warn_at, waits = "", 0.0, dict(_WAITS)
    copier = threading.Thread(target=_copy_log, args=(client, run_id, log), daemon=True)
    copier.start()
    while True:
        runs = client.ListRuns(ListRunsRequest(run_id=run_id))
        status: RunStatus = runs.run_dict[run_id].status
        on_poll()
        if status.status == "finished":
            copier.join(_LAST_LINES_SECONDS)
            return status
        if status.status != before:
            before, warn_at = status.status, time.monotonic() + _PENDING_SECONDS
        elif before in waits and time.monotonic() > warn_at:
            screen.warning("the SuperLink " + waits.pop(before), _PENDING_SECONDS)
        time.sleep(_POLL_SECONDS)


def _copy_log(client: ControlHttpClient, run_id: int, log: Path) -> None:
    copied = 0.0  # the time of the last part
    # RuntimeError: the client is closed, because the run was stopped.
    with log.open("a", encoding="utf-8") as output, suppress(httpx.HTTPStatusError, RuntimeError):
        while True:
            with suppress(httpx.TransportError):
                asked = StreamLogsRequest(run_id=run_id, after_timestamp=copied)
                for part in client.StreamLogs(asked):
                    output.write(part.log_output)
                    output.flush()
                    copied = part.latest_timestamp
                return
            time.sleep(_POLL_SECONDS)


def repeat_warnings(file: Path, start: int = 0) -> int:
    """Log the warnings in a ServerApp's log from byte `start` on; return its last line's end.

    They are those of the logger `edgewire`, in `logging.BASIC_FORMAT`.
    """
    with file.open("rb") as text:
        text.seek(start)
        new = text.read()
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        if line.startswith(_WARNING):
            screen.warning("%s", line.removeprefix(_WARNING))
    return start + len(whole)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*(?P<line>[A-Z]\w*: (?P<message>.+))")
_PREFIXES = ("Simulation failed with exception: ", "ServerApp failed with exception: ")
DIED = "No heartbeat received from the task"  # Flower's message for a dead process
_EMPTY_WORDS = {
    "": "the run failed without saying why",
    "An error was encountered. Ending simulation.": "the simulation failed",
    DIED: "the run's process died: out of memory?",
}


def cause_of(status: RunStatus, log: str) -> str:
    """Return, in one line, why a run failed: the ServerApp's exception, or the log's first one.

    `status`: the run's last status; `log`: the text of its log.
    """
    if status.sub_status == "stopped":
        return "the run was stopped"
    details = status.details
    for prefix in _PREFIXES:
        details = details.removeprefix(prefix)
    details = one_line(details)
    lines = [_COLOUR.sub("", line).strip() for line in log.splitlines()]
    raised = [match for match in map(_RAISED.fullmatch, lines) if match]
    if details not in _EMPTY_WORDS:
        # Flower's details lack the exception's type. A KeyError would then say only 'name'.
        named = (match["line"] for match in raised if match["message"] == details)
        return next(named, details)
    return raised[0]["line"] if raised else _EMPTY_WORDS[details]
