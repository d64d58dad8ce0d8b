"""The error for mistakes that the user can correct."""


class TaskError(ValueError):
    """A user's error. Its message is one line that says what is wrong and what to do."""

    one_line = True  # a log shows it without a traceback
