"""Runs the commands of a page in their order, and compares what they print with the page."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from docs.check_without_running import ROOT
from docs.commands import ELLIPSIS, Block, blocks

OUTPUT = "text"  # the language of a block that shows what the block before it prints
MARK = "::block"  # a line of the output, before what a block prints
SECONDS = 280  # for the whole page
LEFT_OUT = (
    *(".git", ".venv", "outputs", "multirun", "data", "runs", "__pycache__", ".*_cache"),
    *("dist", ".hypothesis", "keys", "superlink"),
)
# Numbers and units differ between machines.
NUMBER = re.compile(r"[-+]?\d[\d.,:/]*(?:\s?(?:kB|MB|GB|B|ms|s|min|h)\b)?")


def run_page(page: Path, not_run: re.Pattern[str]) -> list[str]:
    """Run a page's commands in a copy of the project; return a line for each mistake.

    `not_run`: the beginnings of commands whose blocks are left out. A block of `OUTPUT` after a
    command shows some lines of what it prints. Their numbers may differ.
    """
    shell: list[Block] = []
    expected: list[tuple[Block, Block]] = []
    for block in blocks(page):
        if block.is_shell and not any(not_run.match(each.text) for each in block.commands()):
            shell.append(block)
        elif block.language == OUTPUT and shell:
            expected.append((shell[-1], block))
    script = "".join(f"echo '{MARK} {each.line}'\n{each.text}\n" for each in shell)
    with tempfile.TemporaryDirectory(prefix="edgewire-docs-") as top:
        code, printed = _run(script, Path(top))
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
    parts = re.split(rf"^{MARK} (\d+)$", printed, flags=re.MULTILINE)
    said = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    if code:
        last = ([line for line in printed.splitlines() if line.strip()] or [""])[-1]
        return [f"{name}:{max(said, default=1)}: exit code {code}: {last}"]
    return [
        f"{name}:{shown.line + number}: not printed: {line}"
        for block, shown in expected
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


def _run(script: str, top: Path) -> tuple[int, str]:
    """Run a script in a copy of the project; return its exit code, and all that it prints."""
    copy = top / "edgewire"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    (copy / ".venv").symlink_to(sys.prefix)
    # The environment is there: make must not make it again.
    head = 'set -eo pipefail\nmake() { command make --old-file=.venv/ready "$@"; }\n'
    variables = {
        **os.environ,
        "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}",
        "HOME": str(top),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    log = top / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", head + script], cwd=copy, env=variables, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            output.write(f"\nstill at work after {SECONDS} s\n".encode())
            code = -1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what the page has left running
            process.wait()
    return code, log.read_text(errors="replace")
