"""The errors that engines raise."""


class EngineError(RuntimeError):
    """An engine failed. The message is one line with the reason and what the user can do."""


class Ended(SystemExit):
    """This process received a signal to end. It does not count as a failure of a node."""


class UsageError(EngineError):
    """A user's mistake in an engine's options."""


def one_line(text: str) -> str:
    """Return a text as one line."""
    return " ".join(text.split())
