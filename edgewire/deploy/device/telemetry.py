"""Telemetry of a node: how its device is, in at most `MOST` bytes that are added to a pull.

It is JSON with the fields of `edgewire.deploy.monitoring.node_states.NodeState` that a node knows,
compressed by raw deflate.
"""

from __future__ import annotations

import errno
import json
import platform
import shutil
import time
import zlib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgewire.protocol.flower_releases import installed

MOST = 200  # bytes
PERIOD = 600.0  # seconds
SENSORS = Path("/sys/class")  # where Linux has them
TEMPERATURES = "thermal/thermal_zone*/temp"  # thousandths of a degree Celsius
SUPPLIES = "hwmon/hwmon*/in*_lcrit_alarm"  # 1 if a voltage is too low, as on a Raspberry Pi


class Telemetry:
    """Makes a node's telemetry. `folder`: its state, on the disk whose free space counts.

    `tells_errors`: it also holds the text of errors, which may name files.
    """

    def __init__(self, folder: Path, tells_errors: bool = False) -> None:
        self._folder, self._tells_errors = folder, tells_errors
        self.until = 0.0  # when to send it again, on `time.monotonic`
        self._sent: Any = None
        self._usual = {"flower": installed(), "python": platform.python_version()}
        with suppress(PackageNotFoundError):
            self._usual["edgewire"] = version("edgewire")

    def failed(self, error: object) -> None:
        """Note the last error, if this is an exception."""
        if isinstance(error, BaseException):
            number = getattr(error, "errno", None)  # an app's error may have anything there
            name = errno.errorcode.get(number, "") if isinstance(number, int) else ""
            kind = type(error).__name__.encode("ascii", "replace").decode()
            self._usual["error"] = f"{kind} {name}".strip()[:40]
            if self._tells_errors:
                text = (c if c.isprintable() else " " for c in str(error)[:80])
                self._usual["error_text"] = "".join(text)

    def due(self, ahead: float = 0.0) -> bytes:
        """Return the telemetry every `PERIOD` seconds, and after another kind of error or a change
        of the voltage; otherwise b"".

        `ahead`: the seconds by which the node signs earlier than by its own clock.
        """
        alarms = _numbers(SUPPLIES)
        told: dict[str, Any] = self._usual | ({"undervoltage": any(alarms)} if alarms else {})
        state = told.get("error"), told.get("undervoltage")
        if state == self._sent and time.monotonic() < self.until:
            return b""
        self._sent, self.until = state, time.monotonic() + PERIOD
        told["clock_ahead"] = round(ahead)
        if heat := _numbers(TEMPERATURES):
            told = {**told, "temperature": max(heat) / 1000}
        with suppress(OSError):
            told = {**told, "free_disk": shutil.disk_usage(self._folder).free}
        for length in (80, 40, 30, 20, 10, 5):  # a letter takes up to four bytes
            for key in {"error", "error_text"} & told.keys():
                told[key] = told[key][:length]
            line = json.dumps(told, ensure_ascii=False).encode(errors="replace")
            if len(packed := zlib.compress(line, 9, -15)) <= MOST:
                return packed
        return b""


def _numbers(files: str) -> list[int]:
    """Return the numbers in the files of sensors that can be read."""
    found = []
    for file in SENSORS.glob(files):
        with suppress(OSError, ValueError):  # a sensor that is off
            found.append(int(file.read_text()))
    return found
