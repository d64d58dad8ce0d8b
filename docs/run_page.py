"""Runs the commands of a page in their order, and compares what they print with the page."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
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


class PageRun:
    """Runs a page's commands in a copy of the project, which takes minutes.

    `not_run`: the beginnings of commands whose blocks are left out. A block of `OUTPUT` after a
    command shows some lines of what it prints. Their numbers may differ.
    """

    def __init__(self, page: Path, not_run: re.Pattern[str]) -> None:
        self._page = page
        self._shell: list[Block] = []
        self._expected: list[tuple[Block, Block]] = []  # commands, and what they print
        for block in blocks(page):
            if block.is_shell and not any(not_run.match(each.text) for each in block.commands()):
                self._shell.append(block)
            elif block.language == OUTPUT and self._shell:
                self._expected.append((self._shell[-1], block))
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    def __enter__(self) -> PageRun:
        """Start the commands."""
        self._top = TemporaryDirectory(prefix="edgewire-docs-")
        top = Path(self._top.name)
        copy, self._log = top / "edgewire", top / "log"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        (copy / ".venv").symlink_to(sys.prefix)
        # The environment is there: make must not make it again.
        script = 'set -eo pipefail\nmake() { command make --old-file=.venv/ready "$@"; }\n'
        script += "".join(f"echo '{MARK} {each.line}'\n{each.text}\n" for each in self._shell)
        variables = {
            **os.environ,
            "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}",
            "HOME": str(top),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                ["bash", "-c", script], cwd=copy, env=variables, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes, also those that the page has left running, and remove the copy."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._top.cleanup()

    def mistakes(self) -> list[str]:
        """Wait for the end of the commands; return a line for each mistake."""
        assert self._process is not None
        try:
            code = self._process.wait(max(self._began + SECONDS - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            code = -1
        printed = self._log.read_text(errors="replace")
        name = self._page.relative_to(ROOT) if self._page.is_relative_to(ROOT) else self._page
        parts = re.split(rf"^{MARK} (\d+)$", printed, flags=re.MULTILINE)
        said = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
        if code:
            last = ([line for line in printed.splitlines() if line.strip()] or [""])[-1]
            what = f"exit code {code}" if code > 0 else f"still at work after {SECONDS} s"
            return [f"{name}:{max(said, default=1)}: {what}: {last}"]
        return [
            f"{name}:{shown.line + number}: not printed: {line}"
            for block, shown in self._expected
            for number, line in enumerate(shown.text.splitlines())
            if not is_printed(line, said[block.line])
        ]


def is_printed(line: str, printed: str) -> bool:
    """Return whether a line of a page is a part of a line that was printed, but for its numbers.

    "..." stands for any text within the line.
    """
    parts = [re.escape(_shape(part)) for part in line.split(ELLIPSIS)]
    wanted = re.compile(".*".join(parts))
    return any(wanted.search(_shape(each)) for each in printed.splitlines())


def _shape(line: str) -> str:
    return " ".join(NUMBER.sub("#", line).split())
