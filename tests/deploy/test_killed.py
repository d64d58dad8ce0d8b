"""A node killed with SIGKILL at any point of its work does not change the run's result."""

import signal

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from tests.deploy.fake_superlink import FakeSuperLink
from tests.deploy.processes import ROOT, eventually
from tests.deploy.servers import Field

KILLED = str(ROOT / "tests" / "deploy" / "killed.py")
POINTS = [
    "claim-before", "claim-after", "objects-after", "answered-before", "answered-after",
    "files-before", "files-after", "removal-before", "removal-after", "commit-after", "push-after",
]  # fmt: skip
PLAIN = ["call-PushMessagesRequest", "call-PushObjectRequest"]
SIZE = 40_000  # 320 kB: the node stores such an array as a file


def content(number):
    return RecordDict({"arrays": ArrayRecord({"x": Array(np.full(SIZE, number + 0.1))})})


def expected(count):
    total = np.zeros(SIZE)
    for number in range(count):
        total = (total + (number + 0.1)) / 3
        yield number + 1, float(total.sum())


@pytest.mark.few(1)
@pytest.mark.parametrize("bundled", [False, True])
def test_a_node_killed_at_every_point_continues(bundled, fab, tmp_path):
    superlink = FakeSuperLink(fab, bundled=bundled, redelivers=True)
    points = POINTS if bundled else POINTS + PLAIN
    names, trigger = [], tmp_path / "trigger"
    with Field(tmp_path) as f:
        f.port = superlink.server_port
        for number, point in enumerate([*points, None]):
            program = (
                ("-m", "edgewire.deploy.node") if point is None else (KILLED, point, trigger, "--")
            )
            trigger.unlink(missing_ok=True)
            node = f.node("node", program=program)
            eventually(lambda: superlink.nodes)
            eventually(
                lambda: all(superlink.said(name) for name in names)
            )  # the work that remained
            names.append(superlink.ask(content(number), "train.count"))
            if point is not None:
                trigger.touch()
                assert node.wait(20) == -signal.SIGKILL, (point, f.said("node.log"))
        eventually(lambda: superlink.said(names[-1]))
        node.terminate()
        assert node.wait(5) == 0, f.said("node.log")
    superlink.stop()
    said = [superlink.said(name).content["metrics"] for name in names]
    assert [(m["number"], m["total"]) for m in said] == list(expected(len(points) + 1))
    assert len({m["process"] for m in said}) > len(points) / 2
    assert not superlink.online
