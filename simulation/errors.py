"""What an engine raises when it cannot do its work."""


class EngineError(RuntimeError):
    """One clear line for the user: what went wrong and what to do or read."""
