"""Functions for benchmarks on real processes: select cases, print results, handle errors."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from edgewire.machine.errors import UsageError
from edgewire.machine.processes import orderly_exit

Case = TypeVar("Case")


def chosen(cases: Mapping[str, Case], names: str) -> dict[str, Case]:
    """Return the cases with these comma-separated names. Raises `UsageError` for other names."""
    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        if name not in cases:
            raise UsageError(f"there is no case {name}: {', '.join(cases)}")
    return {name: cases[name] for name in wanted}


def printed(measure: Callable[[], dict[str, Any]]) -> int:
    """Print the result of `measure` as JSON; return the exit code, 2 for a user's mistake."""
    try:
        with orderly_exit():
            report = measure()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    json.dump(report, sys.stdout, indent=1)
    print()
    return 0
