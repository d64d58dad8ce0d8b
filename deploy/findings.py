"""The findings of `deploy.doctor` (ok, warning, wrong), and its checks of any machine."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

OK, WARNING, WRONG = "ok", "warning", "wrong"
PYTHONS = ((3, 11), (3, 14))  # the first and the last supported version
MEMINFO, LIMITS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
LITTLE_DISK, NO_DISK = 1 << 30, 100 << 20  # bytes
SOON = 30  # days before a certificate expires


@dataclass(frozen=True)
class Finding:
    """One line of `deploy.doctor`: the level, what was checked, and the result or the advice."""

    level: str
    what: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<8} {self.what:<12} {' '.join(self.text.split())}"


Check = Callable[[argparse.Namespace], Iterable[Finding]]  # a function of the options
CheckTable = Sequence[tuple[str, Check]]  # the checks with their names, in the order of the output


def findings(checks: CheckTable, options: argparse.Namespace) -> Iterable[Finding]:
    """Yield the findings of the checks, in order. An exception in a check becomes a finding."""
    for what, check in checks:
        try:
            yield from check(options)
        except Exception as error:
            yield Finding(WRONG, what, f"this check failed: {type(error).__name__}: {error}")


def python(options: argparse.Namespace) -> Iterable[Finding]:
    """Check that this version of Python is supported."""
    (first, last), found = PYTHONS, sys.version_info[:2]
    says = platform.python_version()
    if first <= found <= last:
        yield Finding(OK, "Python", says)
    else:
        wanted = " to ".join(".".join(map(str, each)) for each in PYTHONS)
        yield Finding(WRONG, "Python", f"{says}, and {wanted} is needed")


def bits(options: argparse.Namespace) -> Iterable[Finding]:
    """Check that Python is a 64-bit build, which PyTorch's packages need."""
    machine = platform.machine()
    if sys.maxsize > 1 << 32:
        yield Finding(OK, "64 bit", machine)
    else:
        yield Finding(WRONG, "64 bit", f"no, {machine}: install a 64-bit system; PyTorch needs it")


def enough_memory(free: int | None, enough: int, least: int) -> Iterable[Finding]:
    """Check the free memory in bytes: below `enough` it is a warning, below `least` it is wrong.

    `free`: None if it is not known.
    """
    if free is None:
        yield Finding(WARNING, "memory", "this system does not say how much is free")
        return
    text = f"{free >> 20} MB are free"
    if free >= enough:
        yield Finding(OK, "memory", text)
    else:
        level = WARNING if free >= least else WRONG
        yield Finding(level, "memory", f"{text}: {enough >> 20} MB are wanted; add swap, say")


def free_memory(meminfo: Path = MEMINFO, limits: Path = LIMITS) -> int | None:
    """Return the bytes of memory that a new process can use; None if Linux does not tell.

    The smaller of two numbers counts: the machine's free memory, and the unused part of the
    cgroup's limit.
    """
    found = []
    with suppress(OSError, StopIteration, ValueError, IndexError):
        lines = meminfo.read_text().splitlines()
        line = next(each for each in lines if each.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) << 10)
    with suppress(OSError, ValueError):  # ValueError for "max": the cgroup has no limit
        limit = int((limits / "memory.max").read_text())
        found.append(limit - int((limits / "memory.current").read_text()))
    return min(found, default=None)


def disk(options: argparse.Namespace) -> Iterable[Finding]:
    """Check that the folder `--state` can be written to and has free space.

    The check leaves no file in the folder.
    """
    there = folder = options.state
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"1")
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(there).free
    except OSError as error:
        advice = "give it to the user that this is started as, or name another"
        yield Finding(
            WRONG, "disk", f"--state {folder} cannot be written: {error.strerror}; {advice}"
        )
        return
    text = f"--state {folder}: {free >> 20} MB are free"
    if free < LITTLE_DISK:
        level = WARNING if free >= NO_DISK else WRONG
        yield Finding(level, "disk", f"{text}, which is little: make room")
    else:
        yield Finding(OK, "disk", text)


def lasting(name: str, certificate: x509.Certificate, renew: str) -> Finding:
    """Check whether a certificate is valid now.

    `name`: the name of the certificate in the line; `renew`: the advice for a certificate that has
    expired or soon expires.
    """
    what = "certificate"
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    days = (ends - now).days
    if begins > now:
        return Finding(WRONG, what, f"{name} is valid from {begins:%Y-%m-%d} on: set the clock")
    if ends <= now:
        return Finding(WRONG, what, f"{name} has ended on {ends:%Y-%m-%d}: {renew}")
    if days < SOON:
        return Finding(WARNING, what, f"{name} ends in {days} days: {renew}")
    return Finding(OK, what, f"{name}, until {ends:%Y-%m-%d}")


def names_of(certificate: x509.Certificate) -> str:
    """Return the names and addresses that a certificate is valid for, separated by commas."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    return ", ".join(str(each.value) for each in found)


def secret(file: Path, what: str) -> Iterable[Finding]:
    """Yield a warning if other users may read a key file."""
    if file.stat().st_mode & 0o077:
        yield Finding(WARNING, what, f"others may read {file}: chmod 600 {file}")
