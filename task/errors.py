"""The error for mistakes that the user can correct."""


class TaskError(ValueError):
    """A user's error: one line that says what is wrong and what to do."""

    one_line = True  # whoever logs it leaves the traceback out
