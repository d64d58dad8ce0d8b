"""A web server that shows the report of runs while they go on, to this machine only.

A page is made again when it is asked for, at most every `EVERY` seconds. docs/reports.md says what
it shows, and who can see it.
"""

from __future__ import annotations

import html
import math
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from tempfile import TemporaryDirectory
from typing import Any

from edgewire.report.format import one_line
from edgewire.report.html.html_report import PAGE, default_title, write_report
from edgewire.report.progress import DONE, Jobs
from edgewire.report.reader import ResultsError, left_out, noting
from edgewire.report.runs import OVERRIDES

EVERY = 10.0  # seconds between two pages, at least
COST = 4.0  # there are also so many times the seconds that a page takes: a fifth of one core
LONGEST = 500  # characters of a line

ADDRESS = "127.0.0.1"
# A page of another site may have a name that leads to this address. Its requests have that name.
HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d*)?")
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
EMPTY = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><title>{title}</title></head>
<body><h1>{title}</h1><main>
</main></body></html>
"""


class WatchedReport:
    """The report of the runs below some folders, which need not exist yet.

    Several threads may ask for it. `title`: as for `write_report`.
    """

    def __init__(self, tops: Sequence[Path], title: str = "") -> None:
        self._tops, self._title = tops, title
        self.jobs = Jobs(tops)
        self.lock = threading.Lock()
        self._page = b""
        self._next = 0.0  # a time of the monotonic clock

    def shown(self) -> tuple[bytes, float | None]:
        """Return the newest page, which says in its first lines how far the runs are.

        The second value is in how many seconds a browser loads it again; None: the runs have ended.
        """
        with self.lock:
            if time.monotonic() >= self._next:
                began = time.thread_time()
                with noting() as notes:
                    lines = [*self.jobs.lines()]
                    page, missing = self._report()
                if missing and lines:
                    missing = f"no report: without {OVERRIDES} the settings are unknown"
                lines += [missing, left_out(notes)]
                shown = [html.escape(one_line(line, LONGEST)) for line in lines if line]
                status = "".join(f"<p>{line}</p>" for line in shown)
                page = page.replace("<main>", f'<main>\n<div role="status">{status}</div>', 1)
                self._page = page.encode()
                pause = max(EVERY, COST * (time.thread_time() - began))
                self._next = time.monotonic() + pause
            return self._page, self._again()

    def _report(self) -> tuple[str, str]:
        """Return the report's page, and why there is none yet."""
        with TemporaryDirectory() as out:
            try:
                write_report(self._tops, Path(out), self._title)
                return Path(out, PAGE).read_text(encoding="utf-8"), ""
            except (ResultsError, OSError) as error:
                title = html.escape(one_line(self._title or default_title(self._tops)))
                return EMPTY.format(title=title), f"waiting: {error}"

    def _again(self) -> float | None:
        runs = self.jobs.runs
        ended = runs and all(run.state in DONE for run in runs.values())
        if ended and not set(runs) - set(self._tops):  # to a sweep jobs may be added
            return None
        return max(self._next - time.monotonic(), 0.0)


# The server


class PageServer(ThreadingTCPServer):
    """Serves the page of a report on a port of the loopback address; 0: any free port.

    Raises `ResultsError` if the port cannot be used.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 50

    def __init__(self, report: WatchedReport, port: int) -> None:
        self.report = report
        try:
            super().__init__((ADDRESS, port), PageHandler)
        except (OSError, OverflowError) as error:
            raise ResultsError(f"--port {port}: {error}; --port 0 takes a free port") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show the traceback of a mistake in the program, but not that the client has gone."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class PageHandler(BaseHTTPRequestHandler):
    """Answers one request, of which only the head counts, with the page or an error.

    Each connection has a thread, which ends if it is idle for `timeout` seconds. So no client keeps
    the others out.
    """

    timeout = 5.0
    server: PageServer

    def do_GET(self) -> None:
        """Answer with the page."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not HOST.fullmatch(hosts[0]):
            self.send_error(400)
        elif self.path.partition("?")[0] != "/":
            self.send_error(404)
        else:
            self._answer(200, *self.server.report.shown())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with a status and no page; another method than GET also ends here."""
        self._answer(code)

    def _answer(self, status: int, page: bytes = b"", again: float | None = None) -> None:
        self.send_response_only(status)
        headers = {**HEADERS, "Content-Length": len(page)}
        if again is not None:
            headers["Refresh"] = math.ceil(again) + 1
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def watch(tops: Sequence[Path], title: str, port: int) -> int:
    """Serve the report of some folders until Ctrl-C; return the exit code.

    Raises `ResultsError` for a port that cannot be used, `ModuleNotFoundError` without matplotlib.
    """
    import matplotlib as matplotlib  # without it no page can be drawn

    report = WatchedReport([top.absolute() for top in tops], title)
    with PageServer(report, port) as server:
        address = f"http://{ADDRESS}:{server.server_address[1]}/"
        name = one_line(title or default_title(tops))
        print(f"{address} shows {name}; Ctrl-C ends the page, not the run", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
        with report.lock:  # a page that is being made has files in a temporary folder
            return 0
