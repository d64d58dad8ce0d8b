"""Settings of the C library: freed memory is reused for the next tensor."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import os, resource, torch
from edgewire.task.process import configure_process

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        large = [torch.ones(8_000_000) for _ in range(3)]
        del large
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

os.environ["MALLOC_TRIM_THRESHOLD_"] = "100000"  # the user has chosen
configure_process()
chosen = faults()
del os.environ["MALLOC_TRIM_THRESHOLD_"]
configure_process()
faults()
print(chosen, faults(), torch.get_num_threads())
"""


@pytest.mark.system
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another")
def test_large_tensors_reuse_memory_unless_the_user_chose_settings():
    pages = 32_000_000 / os.sysconf("SC_PAGE_SIZE")  # pages of a tensor; thirty are made
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env={k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        | {"MALLOC_TRIM_THRESHOLD_": "100000", "MALLOC_MMAP_THRESHOLD_": "100000"},
        capture_output=True,
        text=True,
        check=True,
    )
    chosen, kept, threads = map(int, done.stdout.split())
    assert chosen > 10 * pages
    assert kept < chosen / 5
    assert threads == 1
