"""Reports an error to who has called the command: one line, and an exit code.

The exit code is 2 for the user's own mistake, and 1 for a run that has failed or diverged. For a
stopped run it is 128 plus the signal's number (130: Ctrl-C, 143: SIGTERM).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from edgewire.compression.base import PayloadError
from edgewire.conf.schema import ConfigError
from edgewire.conf.words import explained
from edgewire.machine.errors import Ended, EngineError, UsageError
from edgewire.report.loggers import LoggerError
from edgewire.report.progress import VIEW
from edgewire.report.reader import ResultsError
from edgewire.task.errors import TaskError

MISTAKES = ConfigError, TaskError, UsageError, LoggerError, ResultsError  # of the user's
# The other errors of a system, such as a full disk, go by: `keep` resumes such a run.
WRONG_PATHS = FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError
STOPPED = 130  # exit code after Ctrl-C


class Caller:
    """`python`: whether Python code has called; it gets results and exceptions, not lines.

    `shell`: whether that code belongs to a command, so that hints are for a shell. `progress`:
    whether to show the progress of a run. `folder`: the folder of the run that this process has
    begun last; `columns`: those of the table that were printed last. `searching`: whether its runs
    are one step of a search, which no word continues.
    """

    python = False
    shell = False
    progress = True
    folder: Path | None = None
    columns = ""
    searching = False


CALLER = Caller()  # of the command that is running


class Diverged(Exception):
    """The run has diverged, so its model is useless. The message says what to try."""


class RunFailed(Exception):
    """A call from Python has failed. The message is one line that says what to do."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback: one line."""
        return [f"{type(self).__name__}: {self}"]


@contextmanager
def mistakes_fail() -> Iterator[None]:
    """In this context, an error about the user's input is a `RunFailed`."""
    try:
        yield
    except MISTAKES as error:
        raise RunFailed(str(error)) from None


class Failed(SystemExit):
    """A run failed, and its error was printed, unless Python code has called.

    `code`: the exit code; `line`: the printed line. `diverged`: whether the run has ended, and its
    model has diverged.
    """

    def __init__(self, code: int, line: str, *, diverged: bool = False) -> None:
        super().__init__(code)
        self.line, self.diverged = line, diverged


class Stopped(SystemExit):
    """A run was stopped by Ctrl-C or a signal. `code`: the exit code; `line`: the printed line."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(code)
        self.line = line


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn an error of the code in this context into one printed line, and raise `Failed`.

    The exit code of `Failed` is 2 for a user's mistake, else 1. If the run is stopped, this context
    prints one line with the notes of the exception, and raises `Stopped`. If Python code has
    called, nothing is printed.
    """
    code, kind, failed = 0, "error", Exception()
    try:
        yield
    except Diverged as error:
        code, kind, failed = 1, "warning", error
    except (HydraException, OmegaConfBaseException, RunFailed, *MISTAKES) as error:
        code, failed = 2, error
    except (EngineError, PayloadError) as error:  # PayloadError: the server's own model diverged
        code, failed = 1, error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = 2 if isinstance(error, (*WRONG_PATHS, PermissionError)) else 1
        failed = ConfigError(f"{where}{error.strerror or error}")
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        # errors for which Hydra has no class
        parts = Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts
        if not {"hydra", "omegaconf"} & set(parts):
            raise
        code, failed = 2, ConfigError(explained(error, sys.argv[1:]))
    except (KeyboardInterrupt, Ended) as error:
        notes = getattr(error, "__notes__", ["no run was under way"])
        line = ": ".join(["stopped", *notes])
        _print(line)
        ended = cast(int, error.code) if isinstance(error, Ended) else STOPPED
        raise Stopped(ended, line) from error
    if code:
        if os.environ["EDGEWIRE_FULL_ERROR"]:
            raise failed
        lines = (each.strip().rstrip(".") for each in str(failed).splitlines() if each.strip())
        refused = isinstance(failed, HydraException | OmegaConfBaseException)
        line = explained(failed, sys.argv[1:]) if refused else ". ".join(lines)
        _print(f"{kind}: {getattr(failed, 'screen', line)}")
        raise Failed(code, line, diverged=isinstance(failed, Diverged))


def _print(line: str) -> None:
    if not CALLER.python and VIEW not in os.environ:
        print(line, file=sys.stderr)
