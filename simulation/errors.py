"""What an engine raises when it cannot do its work."""


class EngineError(RuntimeError):
    """One clear line for the user: what went wrong and what to do or read."""


class UsageError(EngineError):
    """The user's own mistake in an engine's options."""
