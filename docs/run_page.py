"""Runs the commands of a page in their order, and compares what they print with the page."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.check_without_running import ROOT
from docs.commands import ELLIPSIS, Block, blocks

OUTPUT = "text"  # the language of a block that shows what the block before it prints
MARK = "::block"  # a line of the output, before what a block prints
SECONDS = 600  # for the whole page; a busy machine needs more than the usual three minutes
LEFT_OUT = (
    *(".git", ".venv", "outputs", "multirun", "data", "runs", "__pycache__", ".*_cache"),
    *("dist", ".hypothesis", "keys", "superlink"),
)
# Numbers and units differ between machines.
NUMBER = re.compile(r"[-+]?\d[\d.,:/]*(?:\s?(?:kB|MB|GB|B|ms|s|min|h)\b)?")


@contextmanager
def page_run(page: Path, not_run: re.Pattern[str]) -> Iterator[Callable[[], list[str]]]:
    """Run a page's commands in a copy of the project; yield `mistakes`, which waits for their end.

    `not_run`: the beginnings of commands whose blocks are left out. A block of `OUTPUT` after a
    command shows some lines of what it prints. Their numbers may differ. At the end of this context
    all processes end, also those that the page has left running.
    """
    shell: list[Block] = []
    expected: list[tuple[Block, Block]] = []  # commands, and what they print
    for block in blocks(page):
        if block.is_shell and not any(not_run.match(each.text) for each in block.commands()):
            shell.append(block)
        elif block.language == OUTPUT and shell:
            expected.append((shell[-1], block))
    # The environment is there: make must not make it again.
    script = 'set -eo pipefail\nmake() { command make --old-file=.venv/ready "$@"; }\n'
    script += "".join(f"echo '{MARK} {each.line}'\n{each.text}\n" for each in shell)
    path = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
    until = time.monotonic() + SECONDS
    with TemporaryDirectory(prefix="edgewire-docs-") as top, Path(top, "log").open("w+b") as log:
        copy = Path(top, "edgewire")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        (copy / ".venv").symlink_to(sys.prefix)
        variables = {"PATH": path, "HOME": top, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=copy, env={**os.environ, **variables},
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

        def mistakes() -> list[str]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
            printed = Path(log.name).read_text(errors="replace")
            name = shown(page)
            parts = re.split(rf"^{MARK} (\d+)$", printed, flags=re.MULTILINE)
            said = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
            if code := process.returncode:
                last = next((each for each in reversed(printed.splitlines()) if each.strip()), "")
                return [f"{name}:{max(said, default=1)}: exit code {code}: {last}"]
            if code is None:
                return [f"{name}:{max(said, default=1)}: still at work after {SECONDS} s"]
            return [
                f"{name}:{shown.line + number}: not printed: {line}"
                for block, shown in expected
                for number, line in enumerate(shown.text.splitlines())
                if not is_printed(line, said[block.line])
            ]

        try:
            yield mistakes
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def shown(page: Path) -> str:
    """Return a page's path as messages have it."""
    return str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)


def is_printed(line: str, printed: str) -> bool:
    """Return whether a line of a page is a part of a line that was printed, but for its numbers.

    "..." stands for any text within the line.
    """
    parts = [re.escape(_shape(part)) for part in line.split(ELLIPSIS)]
    wanted = re.compile(".*".join(parts))
    return any(wanted.search(_shape(each)) for each in printed.splitlines())


def _shape(line: str) -> str:
    return " ".join(NUMBER.sub("#", line).split())
