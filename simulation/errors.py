"""What an engine raises when it cannot do its work."""


class EngineError(RuntimeError):
    """One clear line for the user: what went wrong and what to do or read."""


class Ended(SystemExit):
    """This process was told to end: no node's own doing, even where a node was at work."""


class UsageError(EngineError):
    """The user's own mistake in an engine's options."""


def described(error: BaseException) -> str:
    """Return an error's type and, if it says anything, its text: in one line."""
    name, text = type(error).__name__, " ".join(str(error).split())
    return f"{name}: {text}" if text else name
