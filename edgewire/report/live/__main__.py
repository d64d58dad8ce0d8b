"""Shows a run in a browser while it goes on.

`python -m edgewire.report.live RUN` prints the address of a page that follows the run in the folder
RUN. Only this machine can open the page. Ctrl-C ends the command; the run goes on.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgewire.report.errors import mistakes_are_lines
from edgewire.report.live.run_watcher import FolderWatcher, expect_run


def port(text: str) -> int:
    """Return a port's number; a `type` for `argparse`."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, not {text}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m edgewire.report.live", description=__doc__)
    made.add_argument("run", type=Path, metavar="RUN", help="the folder of a run or a sweep")
    made.add_argument(
        "--port", type=port, default=0, help="the port of the page (default: any that is free)"
    )
    made.add_argument(
        "--no-browser", action="store_true", help="print the address, and open no browser"
    )
    return made


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the page of a run until Ctrl-C; return the exit code."""
    asked = parser().parse_args(arguments)
    watcher = FolderWatcher(expect_run(asked.run))
    from edgewire.report.live.server import ADDRESS, listen, serve  # it takes a second to import

    with listen(asked.port) as listening:
        address = f"http://{ADDRESS}:{listening.getsockname()[1]}/"
        name = "".join(each if each.isprintable() else "?" for each in watcher.folder.name)
        print(f"{address} shows {name}; Ctrl-C ends the page, not the run", flush=True)
        if sys.stdout.isatty() and not asked.no_browser:
            with suppress(webbrowser.Error):
                webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            serve(watcher, listening)
    return 0


if __name__ == "__main__":
    sys.exit(main())
