"""The errors that engines raise."""


class EngineError(RuntimeError):
    """An engine failed; the message is one line: what went wrong, and what to do or read."""


class Ended(SystemExit):
    """This process was told to end; it is no failure of the node that was at work."""


class UsageError(EngineError):
    """A user's mistake in an engine's options."""


def described(error: BaseException) -> str:
    """Return an error's type and its text, if any, in one line."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return f"{name}: {text}" if text else name
