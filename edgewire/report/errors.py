"""Reports a user's mistakes in the commands of `report`: one line on stderr, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from edgewire.machine.surroundings import print_any_text
from edgewire.report.files.reader import left_out, noting

Given = ParamSpec("Given")


class ResultsError(Exception):
    """The requested results are missing or wrong; the message is one line."""


def mistakes_are_lines(main: Callable[Given, int]) -> Callable[Given, int]:
    """Make a command print one line and return 2 after a mistake, a file error or no matplotlib.

    Another line names the files of runs that the command has left out.
    """

    @wraps(main)
    def clear(*given: Given.args, **named: Given.kwargs) -> int:
        print_any_text()
        with noting() as notes:
            code = guarded(*given, **named)
        if notes:
            print(left_out(notes), file=sys.stderr)
        return code

    def guarded(*given: Given.args, **named: Given.kwargs) -> int:
        try:
            return main(*given, **named)
        except ResultsError as error:
            line = str(error)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            line = f"{where}{error.strerror or error}"
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "matplotlib":
                raise
            line = "drawing needs matplotlib: pip install matplotlib"
        print(f"error: {line}", file=sys.stderr)
        return 2

    return clear
