"""Checks every command in the pages: `make docs-check`.

A command in a fenced block is checked without running it: its configuration is composed, or its
options are parsed. The other commands are listed with a reason. All commands of docs/tutorial.md
are run, and print what the page shows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from docs.check_without_running import COMPOSED, LISTED, PARSED, ROOT, Checked, Wrong, check
from docs.commands import Block, blocks
from docs.run_page import PageRun
from edgewire.report.format import markdown_table

RUN = "run"
KINDS = (RUN, COMPOSED, PARSED, LISTED)
TUTORIAL = Path("docs/tutorial.md")
# These commands of the tutorial do not end, or need a screen.
NOT_RUN = re.compile(r"python -m (edgewire\.report \S+ --watch|webbrowser)\b|ssh ")


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages whose commands are checked."""
    tops = ("README.md", "CONTRIBUTING.md", "papers/benchmarks/README.md", "compression/README.md")
    return [root / name for name in tops] + sorted((root / "docs").rglob("*.md"))


def check_page(page: Path, ran: bool = False) -> tuple[list[Checked], list[str]]:
    """Check the commands of a page; return how each was checked, and a line for each mistake.

    `ran`: the commands of the page were run, except those of `NOT_RUN`.
    """
    found: list[Checked] = []
    wrong: list[str] = []
    for block in blocks(page):
        if not block.is_shell:
            continue
        try:
            commands = block.commands()
            _expect_syntax(block)
        except (ValueError, Wrong) as error:
            wrong.append(f"{_shown(page)}:{block.line}: {error}")
            continue
        for command in commands:
            try:
                if ran and not NOT_RUN.match(command.text):
                    found.append(Checked(RUN))
                else:
                    found.append(check(command))
            except Wrong as error:
                wrong.append(f"{_shown(page)}:{command.line}: {command.text}: {error}")
    return found, wrong


def _expect_syntax(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    if done.returncode:
        raise Wrong(done.stderr.strip().splitlines()[0])


def _shown(page: Path) -> str:
    return str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)


def table(checked: Iterable[tuple[Path, list[Checked]]]) -> str:
    """Return a table: for each page, and for all pages, how many commands were checked how."""
    rows = [(_shown(page), Counter(each.kind for each in found)) for page, found in checked]
    rows = [(name, counts) for name, counts in rows if counts]
    rows.append(("all pages", sum((counts for _, counts in rows), Counter())))
    cells = [[name, *(str(counts[kind]) for kind in KINDS)] for name, counts in rows]
    return markdown_table(["page", *KINDS], cells, numbers=len(KINDS))


def listed(checked: Iterable[Checked]) -> list[str]:
    """Return a line for each reason why commands are only listed, with their programs."""
    programs: dict[str, set[str]] = {}
    for each in checked:
        if each.kind == LISTED:
            programs.setdefault(each.reason, set()).add(each.program)
    return [f"  {reason}: {', '.join(sorted(names))}" for reason, names in programs.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all pages, print a table and the mistakes; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m docs.check", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="only these pages")
    parser.add_argument("--no-run", action="store_true", help="run no command")
    asked = parser.parse_args(arguments)
    os.chdir(ROOT)
    began, wrong = time.monotonic(), list[str]()
    checked: list[tuple[Path, list[Checked]]] = []
    asked_pages = [each.resolve() for each in asked.pages] or pages()
    for page in asked_pages:
        if not page.is_file():
            parser.error(f"{page}: no such page")
    with ExitStack() as stack:
        tutorial = ROOT / TUTORIAL
        running = tutorial in asked_pages and not asked.no_run
        run = stack.enter_context(PageRun(tutorial, NOT_RUN)) if running else None
        for page in asked_pages:  # while the commands of the tutorial are running
            found, mistakes = check_page(page, ran=running and page == tutorial)
            checked.append((page, found))
            wrong += mistakes
        wrong += run.mistakes() if run is not None else []
    print(table(checked))
    print("\nlisted:", *listed(each for _, found in checked for each in found), sep="\n")
    print(f"\n{len(wrong)} mistakes, {time.monotonic() - began:.0f} s", *wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
