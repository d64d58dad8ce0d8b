"""The errors that engines raise."""

from argparse import ArgumentParser
from typing import NoReturn


class EngineError(RuntimeError):
    """An engine failed. The message is one line with the reason and what the user can do."""


class Ended(SystemExit):
    """This process received a signal to end. It does not count as a failure of a node."""


class UsageError(EngineError):
    """A user's mistake in an engine's options."""


class Parser(ArgumentParser):
    """A parser of a command line that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with this message."""
        raise UsageError(f"{message}; --help lists the options")


def one_line(text: str) -> str:
    """Return a text as one line."""
    return " ".join(text.split())
