"""What a process asks of the C library: memory that is freed is there for the next tensor."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from task.process import settle
settle()
for _ in range(4):
    large = [torch.ones(8_000_000) for _ in range(3)]
    del large
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    large = [torch.ones(8_000_000) for _ in range(3)]
    del large
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, torch.get_num_threads())
"""


def faults(**variables):
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    count, threads = done.stdout.split()
    assert threads == "1"
    return int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another")
def test_large_tensors_are_faulted_in_once_unless_the_user_has_chosen():
    page = os.sysconf("SC_PAGE_SIZE")
    assert faults() < 32_000_000 / page  # of 30 tensors, not the pages of one
    chosen = faults(MALLOC_TRIM_THRESHOLD_="100000", MALLOC_MMAP_THRESHOLD_="100000")
    assert chosen > 10 * 32_000_000 / page
