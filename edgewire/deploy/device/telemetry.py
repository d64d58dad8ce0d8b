"""Telemetry of a node: how its device is, in at most `MOST` bytes that are added to a pull.

It is JSON with the fields of `edgewire.deploy.server.fleet.NodeState` that a node knows, compressed
by raw deflate.
"""

from __future__ import annotations

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
        self._versions = {"flower": installed(), "python": platform.python_version()}
        with suppress(PackageNotFoundError):
            self._versions["edgewire"] = version("edgewire")

    def due(self, error: str, text: str) -> bytes:
        """Return the telemetry every `PERIOD` seconds and after a change, otherwise b"".

        `error`, `text`: the kind and the text of the last error, or "". The free space and the
        temperature change all the time, so they do not count.
        """
        alarms = _numbers(SUPPLIES)
        said: dict[str, Any] = {**self._versions, "undervoltage": any(alarms) if alarms else None}
        said |= {"error": error, "error_text": text if self._tells_errors else ""}
        if said == self._sent and time.monotonic() < self.until:
            return b""
        self._sent, self.until = dict(said), time.monotonic() + PERIOD
        said["temperature"] = max((each / 1000 for each in _numbers(TEMPERATURES)), default=None)
        with suppress(OSError):
            said["free_disk"] = shutil.disk_usage(self._folder).free
        for length in (80, 40, 20, 0):  # letters take up to four bytes each
            said["error_text"] = said["error_text"][:length]
            known = {name: value for name, value in said.items() if value not in (None, "")}
            line = json.dumps(known, ensure_ascii=False, separators=(",", ":"))
            if len(packed := zlib.compress(line.encode(errors="replace"), 9, -15)) <= MOST:
                return packed
        return b""


def _numbers(files: str) -> list[int]:
    """Return the numbers in the files of sensors that can be read."""
    found = []
    for file in SENSORS.glob(files):
        with suppress(OSError, ValueError):  # a sensor that is off
            found.append(int(file.read_text()))
    return found
