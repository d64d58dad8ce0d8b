"""The one error for what the user can put right."""


class TaskError(ValueError):
    """The user's own mistake: one line that says what is wrong and what to do."""

    one_line = True  # all that there is to say: who logs it leaves the traceback out
