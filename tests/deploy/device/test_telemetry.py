"""A node's telemetry: its size, when it is sent, what it holds, with files as of sensors."""

import errno
import json
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewire.deploy.device import telemetry
from edgewire.deploy.device.telemetry import MOST, PERIOD, Telemetry
from edgewire.deploy.monitoring.node_states import FleetStates


@pytest.fixture
def sensors(tmp_path, monkeypatch):
    """Return a function that writes a sensor's file."""
    monkeypatch.setattr(telemetry, "SENSORS", tmp_path / "class")

    def write(name, text):
        file = tmp_path / "class" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


@pytest.fixture
def seconds(monkeypatch):
    """Return a list whose last entry is the time."""
    passed = [0.0]
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: passed[-1])
    return passed


def read(content):
    return json.loads(zlib.decompress(content, -15))


def test_it_is_sent_at_times_and_after_changes_that_matter(sensors, seconds, tmp_path):
    sensors("thermal/thermal_zone0/temp", "48312\n")
    sensors("thermal/thermal_zone1/temp", "51250\n")
    sensors("thermal/thermal_zone2/temp", "off")
    sensors("hwmon/hwmon3/in0_lcrit_alarm", "0\n")
    told = Telemetry(tmp_path)
    first = read(told.due())
    assert (first["temperature"], first["undervoltage"]) == (51.25, False)
    assert first["free_disk"] > 0
    sensors("thermal/thermal_zone1/temp", "80000\n")
    assert told.due() == b""
    sensors("hwmon/hwmon3/in0_lcrit_alarm", "1\n")
    assert read(told.due())["undervoltage"] is True
    assert told.due() == b""
    told.failed(OSError(errno.ENOSPC, "No space", "/home/pi/secret"))
    found = read(told.due())
    assert found["error"] == "OSError ENOSPC"
    assert "secret" not in str(found)
    seconds.append(PERIOD - 1)
    assert told.due() == b""
    seconds.append(PERIOD + 1)
    assert told.due()
    told.until = 0.0  # after a failure of the link
    assert told.due()


def test_without_sensors_it_tells_nothing_of_them(sensors, tmp_path):
    assert {"temperature", "undervoltage"}.isdisjoint(read(Telemetry(tmp_path).due()))


@given(st.text(max_size=200), st.text("aé漢😀", min_size=60, max_size=100))
@example("漢字假名" + "".join(map(chr, range(0x20000, 0x20100, 3))), "é")  # four bytes a letter
@example("kQ3xZ9vB7nL5tR2wJ8mC4hF6pD1sG0yKqXzV", "é漢😀" * 25)  # it compresses badly
def test_its_size_is_limited_and_the_server_takes_it(kind, text):
    for said in (text, kind):
        told = Telemetry(telemetry.Path("/"), tells_errors=True)
        told.failed(type("".join(filter(str.isidentifier, kind)) or "E", (Exception,), {})(said))
        sent = told.due()
        assert 0 < len(sent) <= MOST
        states = FleetStates()
        states.pulled(7, "2026-01-01T00:00:00+00:00", sent)
        found = states.of(7)
        assert found.error
        shown = "".join(c if c.isprintable() else " " for c in said)
        assert shown.startswith(found.error_text)
        assert found.error_text or not shown.strip()
        assert found.python
