"""The error for mistakes that the user can correct."""


class TaskError(ValueError):
    """A user's error. Its message is one line that says what is wrong and what to do."""

    one_line = True  # a log shows it without a traceback


class NoData(TaskError):
    """There are no data where a source looked for them; a server may do without."""


class MissingOption(TaskError):
    """The configuration lacks an option. The message names options only, no files or values."""
