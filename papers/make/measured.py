"""Stores the output of a benchmark in the repository, for the pages' tables.

`python -m papers.make.measured NAME MODULE [ARGUMENTS...]` runs `python -m papers.benchmarks.MODULE
ARGUMENTS` and writes its JSON to papers/runs/benchmarks/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewire.report.format import NOTHING
from edgewire.report.reader import ResultsError, mistakes_are_lines
from papers.make.run_archive import FOLDER, ROOT, commit_of


@dataclass(frozen=True)
class Measured:
    """A benchmark's command, the commit of its code, and its JSON; all empty if it has not run."""

    command: str = ""
    commit: str = ""
    result: Any = None

    def value(self, path: Sequence[str]) -> str:
        """Return the value at a path in the JSON as a table's cell; "-" if the value is missing.

        A float has three digits.
        """
        found = self.result
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            return NOTHING
        return f"{found:.3g}" if isinstance(found, float) else str(found)


def measured_file(root: Path, name: str) -> Path:
    """Return the file of a benchmark's values. Raises `ResultsError` for an invalid name."""
    if not re.fullmatch(r"\w+", name):
        raise ResultsError(f"a benchmark's name is letters, digits and _, not {name!r}")
    return root / FOLDER / "benchmarks" / f"{name}.json"


def read_measured(file: Path) -> Measured:
    """Return a benchmark's stored values, empty ones if the file is missing.

    Raises `ResultsError` for a file in another format.
    """
    if not file.is_file():
        return Measured()
    try:
        content = json.loads(file.read_text())
        return Measured(str(content["command"]), str(content["commit"]), content["result"])
    except (ValueError, TypeError, KeyError) as error:
        raise ResultsError(f"{file} is nothing that a benchmark left: {error!r}") from error


@mistakes_are_lines
def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run a benchmark and store what it prints; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m papers.make.measured", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="of the file: runs/benchmarks/NAME.json")
    parser.add_argument("module", metavar="MODULE", help="of the folder papers/benchmarks/")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    asked = parser.parse_args(arguments)
    name, module, arguments = asked.name, asked.module, asked.arguments
    file = measured_file(root, name)
    if not (root / "papers" / "benchmarks" / f"{module}.py").is_file():
        raise ResultsError(f"no benchmark {module}: papers/benchmarks/{module}.py is not there")
    command = ["-m", f"papers.benchmarks.{module}", *arguments]
    done = subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or "nothing was said").splitlines()[-1]
        raise ResultsError(f"papers.benchmarks.{module} ended with code {done.returncode}: {last}")
    try:
        result = json.loads(done.stdout)
    except ValueError as error:
        raise ResultsError(f"papers.benchmarks.{module} printed no JSON: {error}") from error
    kept = {"command": f"python {shlex.join(command)}", "commit": commit_of(root)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**kept, "result": result}, indent=1) + "\n")
    print(f"{file} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
