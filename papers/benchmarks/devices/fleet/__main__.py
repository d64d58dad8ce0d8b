"""`python -m papers.benchmarks.devices.fleet CASE ...`: prints the case's result as JSON.

A case is a module `case_NAME.py` of this folder. Its function `measured(words)` takes the command
line after the case's name, and returns the result.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from papers.benchmarks.devices.cases import chosen, printed

PREFIX = "case_"


def main(words: list[str]) -> int:
    """Print a case's result; a user's mistake gives one line and exit code 2."""
    files = Path(__file__).parent.glob(f"{PREFIX}*.py")
    cases = {each.stem.removeprefix(PREFIX): each.stem for each in sorted(files)}
    if len(words) < 1 or words[0].startswith("-"):
        print(f"{__doc__}\nCases: {', '.join(cases)}")
        return 2

    def measure() -> dict[str, object]:
        (module,) = chosen(cases, words[0]).values()
        found: dict[str, object] = import_module(f"{__package__}.{module}").measured(words[1:])
        return found

    return printed(measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
