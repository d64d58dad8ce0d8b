"""The error for mistakes that the user can correct."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class TaskError(ValueError):
    """A user's error. Its message is one line that says what is wrong and what to do.

    An error about several things may have them as lines of a text `screen`, for a terminal.
    """

    one_line = True  # a log shows it without a traceback


def described(error: BaseException) -> str:
    """Return an error's type and the first 400 characters of its text, in one line."""
    text = " ".join(str(error).split())[:400]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def errors_as(before: str, after: str = "") -> Iterator[None]:
    """Turn any error but a `TaskError` into one: `before`, the error in brackets, `after`."""
    try:
        yield
    except TaskError:
        raise
    except Exception as error:  # users' code, files and libraries raise errors of a dozen types
        raise TaskError(f"{before} ({described(error)}){after}") from error


def listed(names: Sequence[str], most: int = 12, between: str = ", ") -> str:
    """Return the first names for a message, and how many more there are."""
    more = f"{between.strip(', ')} and {len(names) - most:,} more" * (len(names) > most)
    return between.join(names[:most]) + more


class NoData(TaskError):
    """There are no data where a source looked for them; a server may do without."""


class MissingOption(TaskError):
    """The configuration lacks an option. The message names options only, no files or values."""
