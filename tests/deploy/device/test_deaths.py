"""A message that ends the node's process is given up after its deaths, and no other message is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy.device import deaths
from edgewire.deploy.device.deaths import MOST, Deaths, NodeDied
from edgewire.deploy.device.node_database import NodeDatabase

ENDS = ["killed", "told", "power", "offline", "both"]


class Machine:
    """A node's disk and its process. `left`: the message on the disk."""

    def __init__(self, database, boot):
        self.database, self.boot, self.left = database, boot, ""
        self.boots = itertools.count()
        self.power()
        self.start()

    def power(self):
        self.boot.write_text(f"{next(self.boots)}\n")

    def start(self):
        self.process = Deaths(self.database, self.left)

    def end(self, how):
        """End the process, and start another one; return whether the end is a death."""
        if how == "told":
            self.process.spare()
        if how in ("offline", "both"):  # the next one ends before the server is reached
            self.start()
        if how in ("power", "both"):
            self.power()
        self.start()
        return how in ("killed", "offline")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Return a function that makes a machine whose disk is empty."""
    folder = tmp_path_factory.mktemp("node")
    database = NodeDatabase(folder)

    def made():
        database.remove("deaths")
        return Machine(database, folder / "boot")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deaths, "BOOT", folder / "boot")
        yield made
    database.close()


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.lists(st.sampled_from(ENDS), max_size=6), st.booleans()
        ),
        max_size=6,
    )
)
def test_a_message_is_given_up_after_its_deaths_alone(machine, messages):
    """A message: its run, how its processes end, and whether idle processes die after it."""
    marked = set()
    m = machine()
    for number, (run, ends, idle) in enumerate(messages):
        m.left, died = str(number), 0
        m.process.begin(m.left, run)
        for how in ends:
            died += m.end(how)
            if died >= (1 if run in marked else MOST):
                marked.add(run)
                for _ in range(2):  # also if sending the reply fails
                    with pytest.raises(NodeDied, match=rf"\(deaths: {died}\)$"):
                        m.process.begin(m.left, run)
                break
            m.process.begin(m.left, run)
            m.process.begin(m.left, run)  # as after a failed request
        else:
            m.process.over(run)
            marked.discard(run)
            for _ in range(4 * idle):
                m.end("killed")  # the next process sends the last reply again
                m.process.begin(m.left, run)
                m.process.over(run)


def test_a_message_of_a_process_that_lives_costs_no_write(machine, monkeypatch):
    m = machine()
    m.process.begin("0", "a")
    m.process.over("a")
    monkeypatch.delattr(NodeDatabase, "write")
    for number in range(1, 9):
        m.process.begin(str(number), "a")
        m.process.over("a")


def test_a_count_that_cannot_be_written_is_written_later(machine, monkeypatch):
    m = machine()
    m.left = "0"
    m.process.begin("0", "a")
    m.end("killed")
    with monkeypatch.context() as patch:
        patch.setattr(NodeDatabase, "write", full)
        for _ in range(2 * MOST):
            with pytest.raises(OSError, match="full"):
                m.process.begin("0", "a")
        m.process.spare()
    m.process.begin("0", "a")
    m.end("killed")
    m.process.begin("0", "a")
    m.end("killed")
    with pytest.raises(NodeDied):
        m.process.begin("0", "a")


def full(*given):
    raise OSError(28, "the disk is full")


def test_only_the_last_runs_are_remembered(machine):
    m = machine()
    for number in range(40):
        m.left = str(number)
        m.process.begin(m.left, str(number))
        for _ in range(MOST - 1):
            m.end("killed")
            m.process.begin(m.left, str(number))
        m.end("killed")
        with pytest.raises(NodeDied):
            m.process.begin(m.left, str(number))
    assert len(m.database.read("deaths")) < 300
