"""Checks every command in the pages: `make docs-check`.

A command in a fenced block is checked without running it: its configuration is composed, or its
options are parsed. All commands of docs/tutorial.md are run, and print what the page shows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from docs.check_without_running import ROOT, Wrong, check
from docs.commands import blocks
from docs.run_page import page_run, shown

TUTORIAL = Path("docs/tutorial.md")
# These need modules that the page shows; tests/docs/test_your_task.py runs them.
OWN_CODE = re.compile(r"python run\.py .*(packages|_target_)=")
# These commands of the tutorial do not end, or need a screen.
NOT_RUN = re.compile(r"python -m (edgewire\.report \S+ --watch|webbrowser)\b|ssh ")


def pages() -> list[Path]:
    """Return the pages whose commands are checked."""
    tops = ("README.md", "CONTRIBUTING.md", "papers/benchmarks/README.md", "compression/README.md")
    return [ROOT / name for name in tops] + sorted((ROOT / "docs").rglob("*.md"))


def check_page(page: Path, ran: bool = False) -> list[str]:
    """Check the commands of a page; return a line for each mistake.

    `ran`: the commands of the page were run, except those of `NOT_RUN`.
    """
    wrong: list[str] = []
    for block in blocks(page):
        if not block.is_shell:
            continue
        try:
            commands = block.commands()
            done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
            if done.returncode:
                raise Wrong(done.stderr.strip().splitlines()[0])
        except (ValueError, Wrong) as error:
            wrong.append(f"{shown(page)}:{block.line}: {error}")
            continue
        for command in commands:
            try:
                own = page.name == "your-task.md" and OWN_CODE.match(command.text)
                if not own and (not ran or NOT_RUN.match(command.text)):
                    check(command)
            except Wrong as error:
                wrong.append(f"{shown(page)}:{command.line}: {command.text}: {error}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all pages and print the mistakes; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m docs.check", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="only these pages")
    parser.add_argument("--no-run", action="store_true", help="run no command")
    asked = parser.parse_args(arguments)
    os.chdir(ROOT)
    began, wrong = time.monotonic(), list[str]()
    asked_pages = [each.resolve() for each in asked.pages] or pages()
    for page in asked_pages:
        if not page.is_file():
            parser.error(f"{page}: no such page")
    with ExitStack() as stack:
        tutorial = ROOT / TUTORIAL
        running = tutorial in asked_pages and not asked.no_run
        mistakes_of_run: Callable[[], list[str]] = list
        if running:
            mistakes_of_run = stack.enter_context(page_run(tutorial, NOT_RUN))
        for page in asked_pages:  # while the commands of the tutorial are running
            wrong += check_page(page, ran=running and page == tutorial)
        wrong += mistakes_of_run()
    print(f"{len(wrong)} mistakes, {time.monotonic() - began:.0f} s", *wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
