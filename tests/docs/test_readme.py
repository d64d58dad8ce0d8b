"""The README's first run prints the numbers in the README."""

import re

import pytest

from tests.runs import ROOT

README = (ROOT / "README.md").read_text()
LINES = ("sent up", "sent down", "on a link", "updates")


def numbers(text, name):
    """Return the numbers of a summary's line."""
    (line,) = re.findall(rf"^{name} .*$", text, re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


def test_the_first_run_sends_the_bytes_on_the_page(command):
    code, printed, _ = command()
    assert code == 0
    for name in LINES:
        # Another zstd version or CPU changes a few bytes of each update.
        assert numbers(printed.out, name) == pytest.approx(numbers(README, name), rel=5e-3), name
