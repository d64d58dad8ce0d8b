"""Shifts the clock in every process with this folder on its module path.

The offset is CLOCK_OFF seconds; and as many more as the file CLOCK_FILE says, once it exists.
"""

import datetime
import os
import time

_off, _time = float(os.environ.get("CLOCK_OFF", "0")), time.time
_file = os.environ.get("CLOCK_FILE", "")


class Shifted(datetime.datetime):
    """A datetime whose `now` reads the shifted clock."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "Shifted":
        """Return the shifted time."""
        found: Shifted = cls.fromtimestamp(time.time(), tz)
        return found


def shifted() -> float:
    """Return the shifted time in seconds since 1970."""
    more = 0.0
    if _file and os.path.exists(_file):
        with open(_file) as file:
            more = float(file.read() or 0)
    return _time() + _off + more


time.time = shifted
datetime.datetime = Shifted  # type: ignore[misc]
