"""A node killed with SIGKILL at any point of its work does not change the run's result.

If a message kills the node each time, the message fails, and the run continues.
"""

import signal

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict

from edgewire.deploy.device.deaths import MOST
from edgewire.deploy.server import api, node_processes
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
GIVEN_UP, UNAVAILABLE = 8, 3  # Flower's codes: the ClientApp crashed; the message is unavailable
SIZE = 40_000  # 320 kB: the node stores such an array as a file


def content(number):
    return RecordDict({"arrays": ArrayRecord({"x": Array(np.full(SIZE, number + 0.1))})})


def expected(count):
    total = np.zeros(SIZE)
    for number in range(count):
        total = (total + (number + 0.1)) / 3
        yield number + 1, float(total.sum())


@pytest.mark.few(1)
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


class Restarted:
    """A node that is started again whenever it dies; `deaths`: how often it has died."""

    def __init__(self, field, *program):
        self.field, self.program, self.deaths = field, program, 0
        self._start()

    def _start(self):
        self.process = self.field.node("node", program=self.program)

    def look(self):
        """Start the node again if it has died."""
        if self.process.poll() is not None:
            assert self.process.wait() == -signal.SIGKILL, self.field.said("node.log")
            self.deaths += 1
            self._start()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("point", "deaths", "code"),
    [
        (None, [MOST, 1, 1], GIVEN_UP),  # the app kills its process
        ("objects-after", [MOST, 1, 1], GIVEN_UP),
        ("answered-before", [MOST, 1, 1], GIVEN_UP),
        ("answered-after", [MOST, 1, 1], GIVEN_UP),
        ("claim-before", [node_processes.MOST], UNAVAILABLE),  # the message is not on the disk
    ],
)
def test_a_message_that_kills_the_node_fails(point, deaths, code, fab, tmp_path):
    """Later messages of the run are tried once, and more often once a message has worked again."""
    trigger = tmp_path / "trigger"
    program = ("-m", "edgewire.deploy.node") if point is None else (KILLED, point, trigger, "--")
    with Server() as server, Field(tmp_path) as f:
        grid, f.port = bundled(server.begin_run(fab)), server.address.rpartition(":")[2]
        node = Restarted(f, *program)
        (there,) = eventually(grid.get_node_ids)

        def replied(deadly):
            """Send a message; return the reply, and how often the node has died before it."""
            trigger.touch() if deadly else trigger.unlink(missing_ok=True)
            kind = "die" if deadly and point is None else "count"
            before = node.deaths
            names = grid.push_messages([Message(content(0), there, f"train.{kind}")])

            def found():
                node.look()
                server.state.acknowledge_task_heartbeat(server.task)
                return grid.pull_messages(names)

            (reply,) = eventually(found)
            return reply, node.deaths - before

        for number in (1, 2):  # after a message that works all is as it was
            reply, died = replied(deadly=False)
            assert (reply.content["metrics"]["number"], died) == (number, 0)
            for expected in deaths:
                reply, died = replied(deadly=True)
                assert (died, reply.error.code) == (expected, code), f.said("node.log")
                if code == GIVEN_UP:
                    assert reply.error.reason.endswith(f"(deaths: {died})")
        trigger.unlink(missing_ok=True)
        node.look()
        node.process.terminate()
        assert node.process.wait(60) == 0
