"""Two machines with the same key and state: one gets messages, the other gets an error."""

import re
from types import MappingProxyType

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest

from edgewire.deploy.device.backoff import reason_of
from edgewire.deploy.device.client import FleetClient, ServerRefusal
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.device.node_folder import NodeFolder
from edgewire.deploy.server.node_processes import NodeProcesses
from edgewire.machine.liveness import GONE
from edgewire.protocol.choose_grid import bundled
from tests.deploy.served import Server, question

ONE, TWO = b"1111", b"2222"


class Idle:
    """The state of a SuperLink that has no message and no name of a node."""

    message_ins_store = MappingProxyType({})

    @staticmethod
    def get_node_info(node_ids):
        return []


def test_a_process_that_returns_after_another_came_is_refused(caplog):
    twins = NodeProcesses()
    asked = [(7, ONE), (7, ONE), (8, TWO), (7, TWO), (7, TWO), (7, ONE), (7, TWO), (7, ONE)]
    assert [twins.is_ousted(*each, Idle) for each in asked] == [False] * 5 + [True, False, True]
    (said,) = caplog.messages
    assert "two nodes are online with the key of node 7" in said


def test_a_process_that_restarts_repeatedly_is_no_duplicate():
    twins = NodeProcesses()
    numbers = [n.to_bytes(4) for n in range(1000)]
    assert not any(twins.is_ousted(7, number, Idle) for number in numbers)


def test_the_first_process_goes_on_after_the_other_has_gone(clock, monkeypatch):
    twins = NodeProcesses(clock)
    for number in (ONE, TWO):
        twins.is_ousted(7, number, Idle)
    clock.now += GONE - 1
    assert twins.is_ousted(7, ONE, Idle)
    clock.now += 1
    with monkeypatch.context() as patch:
        patch.setattr(twins, "again", lambda *_: True)
        assert twins.is_ousted(7, ONE, Idle)  # the other machine is computing
    assert not twins.is_ousted(7, ONE, Idle)
    assert twins.is_ousted(7, TWO, Idle)


def test_a_node_without_a_process_number_is_never_refused():
    twins = NodeProcesses()
    assert not any(twins.is_ousted(7, number, Idle) for number in (b"", ONE, b"", TWO, b""))


@pytest.fixture
def machines(tmp_path):
    """Return a server, and two online clients that use the same key, as if on two machines."""
    with Server() as server:
        node_folder = NodeFolder(tmp_path)
        found = []
        for _ in range(2):
            fleet = FleetClient(server.address, node_folder.key(), insecure=True)
            member = Membership(fleet, node_folder, registers=True)
            member.enter()
            assert fleet.bundles()
            found.append((fleet, member))
        yield server, found
        for fleet, member in found:
            member.stop()
            fleet.close()


def test_a_state_that_was_copied_to_another_machine_is_noticed(machines):
    server, ((first, one), (second, two)) = machines
    assert one.node_id == two.node_id
    grid = bundled(server.begin_run())
    grid.push_messages([question(one.node_id)])
    request = PullMessagesRequest(node=one.node)
    (message,) = first.pull(request)[0].messages_list
    # The same machine may have restarted.
    assert second.pull(request)[0].messages_list[0] == message
    with pytest.raises(ServerRefusal) as refused:
        first.pull(request)
    said = reason_of(refused.value, first)
    assert re.match("another node has come online with this node's key and state: ", said)
    assert second.pull(request)[0].messages_list[0] == message
