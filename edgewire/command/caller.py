"""Who has called the command: the command line, or Python code (`edgewire.command.python_api`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

COMPARE = "compare"  # the first word of the command that compares methods


@dataclass(frozen=True)
class Caller:
    """`python`: whether Python code has called; it gets results and exceptions, not lines.

    `progress`: whether to show the progress of a run.
    """

    python: bool = False
    progress: bool = True


_callers = [Caller()]


def caller() -> Caller:
    """Return who has called the command that is running."""
    return _callers[-1]


@contextmanager
def called_from(new: Caller) -> Iterator[None]:
    """In this context, the command has this caller."""
    _callers.append(new)
    try:
        yield
    finally:
        _callers.pop()
