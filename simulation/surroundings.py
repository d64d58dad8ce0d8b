"""Makes a process work for a user without a home folder, and with an output that is not UTF-8."""

import io
import os
import sys


def find_home() -> None:
    """If the user has no home folder, set HOME to /, as Docker does, also for child processes.

    Such a user has no entry in the password database. `Path.home` and `~` would raise an error,
    also at the import of Flower's modules.
    """
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = "/"


def print_any_text() -> None:
    """Let a command print any text: `?` replaces a character that its output cannot encode."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
