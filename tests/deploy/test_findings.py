"""The checks of `deploy.doctor` for any machine, and what a failing check prints."""

import sys
from argparse import Namespace

import pytest
from cryptography import x509

from deploy import findings
from deploy.findings import OK, WARNING, WRONG, Finding, lasting
from tests.deploy.device.test_backoff import DAY, NOW, issued

MB = 1 << 20


@pytest.mark.parametrize(
    ("free", "level"), [(700, OK), (600, OK), (599, WARNING), (250, WARNING), (249, WRONG)]
)
def test_memory(free, level):
    (found,) = findings.enough_memory(free * MB, 600 * MB, 250 * MB)
    assert (found.level, f"{free} MB" in found.text) == (level, True)


def test_free_memory_is_the_smallest_reported_value(tmp_path):
    info = tmp_path / "meminfo"
    assert findings.free_memory(info, tmp_path) is None
    info.write_text("MemTotal:  9 kB\nMemAvailable:   2048 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert findings.free_memory(info, tmp_path) == 2 * MB
    (tmp_path / "memory.max").write_text(f"{3 * MB}\n")
    (tmp_path / "memory.current").write_text(f"{2 * MB}\n")
    assert findings.free_memory(info, tmp_path) == MB


@pytest.mark.parametrize(("version", "level"), [((3, 10), WRONG), ((3, 11), OK), ((3, 15), WRONG)])
def test_python(version, level, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    (found,) = findings.python(Namespace())
    assert found.level == level


def test_32_bit(monkeypatch):
    monkeypatch.setattr(sys, "maxsize", (1 << 31) - 1)
    (found,) = findings.bits(Namespace())
    assert found.level == WRONG


@pytest.mark.parametrize(("free", "level"), [(2 << 30, OK), (1 << 29, WARNING), (1 << 20, WRONG)])
def test_a_disk_that_is_nearly_full(free, level, monkeypatch, tmp_path):
    monkeypatch.setattr(findings.shutil, "disk_usage", lambda path: type("U", (), {"free": free}))
    (found,) = findings.disk(Namespace(state=tmp_path / "a" / "b"))
    assert found.level == level
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("start", "end", "level", "says"),
    [(-2, 400, OK, "until"), (-2, 20, WARNING, "ends in"), (-2, -1, WRONG, "has ended"),
     (1, 9, WRONG, "set the clock")],
)  # fmt: skip
def test_dates(start, end, level, says, tmp_path):
    made = issued(tmp_path, "a", start=NOW + start * DAY, end=NOW + end * DAY)
    shown = x509.load_pem_x509_certificate(made.read_bytes())
    found = lasting("it", shown, "renew it")
    assert (found.level, says in found.text) == (level, True)


def test_a_failing_check_gives_one_line():
    def check(options):
        yield Finding(OK, "a", "b")
        raise KeyError("c")

    first, second = findings.findings([("it", check)], Namespace())
    assert first.level == OK
    assert str(second) == "wrong    it           this check failed: KeyError: 'c'"
