"""`engine=ray` refuses options that would have no effect on it."""

from pathlib import Path

import pytest

from edgewire.engines.ray import refuse
from edgewire.machine.errors import UsageError
from edgewire.machine.job import Job


def job(**options):
    return Job(Path(), {}, 3, Path(), **options)


def test_options_that_need_a_virtual_clock_are_refused():
    refuse(job(), gpus_per_client=0.0)
    with pytest.raises(
        UsageError, match=r"network\.loss=0\.1: give network\.loss=0, or engine=local$"
    ):
        refuse(job(only_virtual="network.loss=0.1: give network.loss=0"), gpus_per_client=0.0)


def test_unavailable_logs_and_devices_are_refused():
    with pytest.raises(UsageError, match=r"ray\.log in the run folder"):
        refuse(job(verbose=True), gpus_per_client=0.0)
    with pytest.raises(UsageError, match=r"device=cuda:0 without engine\.gpus_per_client="):
        refuse(job(device="cuda:0"), gpus_per_client=0.0)
    refuse(job(device="cuda:0"), gpus_per_client=0.5, address="auto")
    refuse(job(device="cpu"), gpus_per_client=0.0)
