"""A web server that shows the report of runs while they go on, to this machine only.

A page is made again when it is asked for, at most every `EVERY` seconds. docs/reports.md says what
it shows, and who can see it.
"""

from __future__ import annotations

import asyncio
import html
import math
import re
import socket
import sys
import threading
import time
import webbrowser
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os.path import getmtime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from edgewire.report.format import human_seconds, one_line
from edgewire.report.html.html_report import PAGE, default_title, write_report
from edgewire.report.html.node_table import NODES
from edgewire.report.metric import ACCURACY
from edgewire.report.progress import DONE, RUNNING, SweepJob
from edgewire.report.reader import ResultsError, folders, left_out, noting, readable
from edgewire.report.runs import HISTORY, HYDRA, OVERRIDES, number

EVERY = 10.0  # seconds between two pages, at least
COST = 4.0  # there are also so many times the seconds that a page takes: a fifth of one core
SILENT = 60.0  # seconds without news, at least, after which a run may be dead
LONG = 10.0  # there are also so many times the time of a round
SHOWN = 20  # running jobs that have a line each
LONGEST = 500  # characters of a line

ADDRESS = "127.0.0.1"
# A page of another site may have a name that leads to this address. Its requests have that name.
HOST = re.compile(rb"(127\.0\.0\.1|localhost)(:\d*)?")
HEAD, LARGEST = 5.0, 16384  # seconds and bytes of a request's head
MOST = 50  # connections; one more ends the oldest
HEADERS = """\
Content-Type: text/html; charset=utf-8
Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; \
frame-ancestors 'none'
X-Content-Type-Options: nosniff
Cache-Control: no-store
Referrer-Policy: no-referrer
Cross-Origin-Resource-Policy: same-origin
Connection: close
"""
EMPTY = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><title>{title}</title></head>
<body><h1>{title}</h1><main>
</main></body></html>
"""


class Shown(NamedTuple):
    """A page, and the seconds after which a browser loads it again; None: the runs have ended."""

    page: bytes
    again: float | None = None


class WatchedReport:
    """The report of the runs below some folders, which need not exist yet.

    Several threads may ask for it. `title`: as for `write_report`.
    """

    def __init__(self, tops: Sequence[Path], title: str = "") -> None:
        self._tops, self._title = tops, title
        self._runs: dict[Path, SweepJob] = {}
        self._lock = threading.Lock()
        self._shown = Shown(b"")
        self._next = 0.0  # a time of the monotonic clock

    def shown(self) -> Shown:
        """Return the newest page, which says in its first lines how far the runs are."""
        with self._lock:
            if time.monotonic() >= self._next:
                began = time.thread_time()
                with noting() as notes:
                    lines = [*self.states()]
                    page, missing = self._report()
                if missing and lines:
                    missing = f"no report: without {OVERRIDES} the settings are unknown"
                lines += [missing, left_out(notes)]
                shown = [html.escape(one_line(line, LONGEST)) for line in lines if line]
                status = "".join(f"<p>{line}</p>" for line in shown)
                page = page.replace("<main>", f'<main>\n<div role="status">{status}</div>', 1)
                self._shown = Shown(page.encode())
                pause = max(EVERY, COST * (time.thread_time() - began))
                self._next = time.monotonic() + pause
            return self._shown._replace(again=self._again())

    def _report(self) -> tuple[str, str]:
        """Return the report's page, and why there is none yet."""
        with TemporaryDirectory() as out:
            try:
                write_report(self._tops, Path(out), self._title)
                return Path(out, PAGE).read_text(encoding="utf-8"), ""
            except (ResultsError, OSError) as error:
                title = html.escape(one_line(self._title or default_title(self._tops)))
                return EMPTY.format(title=title), f"waiting: {error}"

    def states(self) -> Iterator[str]:
        """Yield a line for each run that goes on, and one with the number of runs of each state."""
        found = sorted(
            folder for top in self._tops for folder, names in folders(top)
            if HYDRA.name in names or HISTORY in names
        )  # fmt: skip
        self._runs = {each: self._runs.get(each) or SweepJob(each) for each in found}
        for run in self._runs.values():
            run.update()
        if len(found) > 1:
            states = Counter(run.state for run in self._runs.values())
            yield ", ".join(f"{count} {state}" for state, count in states.items())
        running = [run for run in self._runs.values() if run.state == RUNNING or len(found) == 1]
        yield from (_line(run, len(found) > 1) for run in running[:SHOWN])

    def _again(self) -> float | None:
        ended = self._runs and all(run.state in DONE for run in self._runs.values())
        if ended and not set(self._runs) - set(self._tops):  # to a sweep jobs may be added
            return None
        return max(self._next - time.monotonic(), 0.0)


def _line(run: SweepJob, named: bool) -> str:
    """Return how far a run is, in one line. `named`: whether it begins with the folder's name."""
    parts = [f"{run.folder.name} {run.state}" if named else run.state]
    if run.row:
        name = f"{ACCURACY.name} " if ACCURACY.name in run.values else ""
        parts += [f"round {run.row['round']} of {run.row['rounds']}", f"{name}{run.measured}"]
        parts += [f"{each} {way}" for each, way in zip(run.sent(), ("up", "down"), strict=True)]
    if run.left is not None:
        parts.append(f"about {human_seconds(round(run.left))} left")
    found = [readable(getmtime, run.folder / name) for name in (HISTORY, NODES)]
    silence = time.time() - max((each for each in found if each is not None), default=math.inf)
    done, seconds = (number(run.row.get(key)) or 0.0 for key in ("round", "seconds"))
    if run.state == RUNNING and silence > max(SILENT, LONG * seconds / max(done, 1.0)):
        parts.append(f"nothing was written for {human_seconds(silence)}: it may be dead")
    return ", ".join(parts)


# The server


async def serve(report: WatchedReport, listening: socket.socket) -> None:
    """Answer requests for the page until this task is cancelled.

    A connection has a single request. It ends if the request's head does not come in `HEAD`
    seconds, and if `MOST` newer connections are open: no client can keep the others out.
    """
    opened: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened[writer] = None
        if len(opened) > MOST:
            next(iter(opened)).transport.abort()
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD)
            writer.write(await asyncio.to_thread(response, head, report))
            writer.close()
            await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # the client has gone, or has sent no request
        except asyncio.CancelledError:
            pass  # the command ends; Python 3.11 would print a traceback of a cancelled task
        finally:
            opened.pop(writer)
            writer.transport.abort()

    async with await asyncio.start_server(answer, sock=listening, limit=LARGEST) as server:
        await server.serve_forever()


def response(head: bytes, report: WatchedReport) -> bytes:
    """Return the response to a request, of which only the head counts: the page, or an error."""
    first, *lines = head.split(b"\r\n")
    fields = [line.partition(b":") for line in lines]
    hosts = [value.strip() for name, _, value in fields if name.strip().lower() == b"host"]
    method, _, rest = first.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    shown, more = Shown(b""), ""
    if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
        status = "400 Bad Request"
    elif method != b"GET":
        status = "405 Method Not Allowed"
    elif path != b"/":
        status = "404 Not Found"
    else:
        status, shown = "200 OK", report.shown()
    if shown.again is not None:
        more = f"Refresh: {math.ceil(shown.again) + 1}\n"
    text = f"HTTP/1.1 {status}\n{HEADERS}{more}Content-Length: {len(shown.page)}\n\n"
    return text.replace("\n", "\r\n").encode() + (shown.page or b"")


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of the loopback address; 0: any free port.

    Raises `ResultsError` if the port cannot be used.
    """
    try:
        return socket.create_server((ADDRESS, port))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ResultsError(f"--port {port}: {why}; --port 0 takes a free port") from error


def watch(tops: Sequence[Path], title: str, port: int, browser: bool) -> int:
    """Serve the report of some folders until Ctrl-C; return the exit code.

    `browser`: whether to open a browser, if the output is a terminal. Raises `ResultsError` for a
    port that cannot be used, `ModuleNotFoundError` without matplotlib.
    """
    import matplotlib as matplotlib  # without it no page can be drawn

    report = WatchedReport([top.absolute() for top in tops], title)
    with listen(port) as listening:
        address = f"http://{ADDRESS}:{listening.getsockname()[1]}/"
        name = one_line(title or default_title(tops))
        print(f"{address} shows {name}; Ctrl-C ends the page, not the run", flush=True)
        if browser and sys.stdout.isatty():
            with suppress(webbrowser.Error):
                webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            asyncio.run(serve(report, listening))
    return 0
