"""Worker processes can be limited to one core and to a number of megabytes."""

import os
import sys

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from edgewire.machine.errors import UsageError
from edgewire.simulation.clock import VirtualClock
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers.limits import Limits, allowed_cores
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import make_pool

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has these limits")


def app(message, context):
    size = message.content["config"]["megabytes"]
    block = torch.ones(size * 250_000)
    metrics = {"sum": float(block[-1]), "cores": len(os.sched_getaffinity(0))}
    return Message(
        RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord(metrics)}), reply_to=message
    )


def answers(limits, *megabytes):
    pool = make_pool(NodeHostSpec(app, 1, 1, {}), 1, limits)
    try:
        grid = LocalGrid(pool, 1, VirtualClock())
        messages = [
            Message(RecordDict({"config": ConfigRecord({"megabytes": size})}), 1, "train")
            for size in megabytes
        ]
        return list(grid.send_and_receive(messages))
    finally:
        pool.close()


@linux
def test_a_worker_survives_a_refused_allocation():
    first, second, third = answers(Limits(memory_mb=4000, pin=True), 100, 6000, 100)
    assert first.content["metrics"]["cores"] == 1
    assert second.has_error()
    assert "memory" in second.error.reason
    assert not third.has_error()


@linux
def test_without_limits_a_worker_has_the_machines_resources():
    (reply,) = answers(Limits(), 10)
    assert reply.content["metrics"]["cores"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("memory", [0, -1, float("inf"), float("nan")])
def test_impossible_limits_are_refused(memory):
    with pytest.raises(UsageError, match="memory_mb must be above 0"):
        Limits(memory).check()


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert allowed_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert allowed_cores() == 64
