"""A node killed with SIGKILL at any point of its work does not change the run's result."""

import signal

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from edgewire.deploy.server import api
from edgewire.protocol.choose_grid import bundled
from tests.deploy.processes import ROOT, eventually
from tests.deploy.served import Server
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


@pytest.mark.few(2)
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("part", range(3))
def test_a_node_killed_at_every_point_continues(part, compact, fab, tmp_path, monkeypatch):
    points = POINTS[part::3]
    if not compact:  # nodes then use Flower's own calls, by which no lost message comes again
        monkeypatch.setattr(api, "COMPACT", "edgewire-other")
        points = [*POINTS[1:], *PLAIN][part::3]
    names, replies, trigger = [], {}, tmp_path / "trigger"
    with Server() as server, Field(tmp_path) as f:
        grid, f.port = bundled(server.begin_run(fab)), server.address.rpartition(":")[2]

        def all_replied():
            server.state.acknowledge_task_heartbeat(server.task)
            found = grid.pull_messages([name for name in names if name not in replies])
            replies.update((each.metadata.reply_to_message_id, each) for each in found)
            return len(replies) == len(names)

        for number, point in enumerate([*points, None]):
            program = (
                ("-m", "edgewire.deploy.node") if point is None else (KILLED, point, trigger, "--")
            )
            trigger.unlink(missing_ok=True)
            node = f.node("node", program=program)
            (there,) = eventually(grid.get_node_ids)
            eventually(all_replied)  # the work that remained
            if point is not None:
                trigger.touch()  # before the message, which a fast node has in an instant
            names += grid.push_messages([Message(content(number), there, "train.count")])
            if point is not None:
                assert node.wait(20) == -signal.SIGKILL, (point, f.said("node.log"))
        eventually(all_replied)
        node.terminate()
        assert node.wait(5) == 0, f.said("node.log")
        assert not grid.get_node_ids()
    said = [replies[name].content["metrics"] for name in names]
    assert [(m["number"], m["total"]) for m in said] == list(expected(len(points) + 1))
    assert len({m["process"] for m in said}) > len(points) / 2
