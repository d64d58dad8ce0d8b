"""What the server knows about nodes: it believes no node, and counts each reply once."""

import json
import zlib
from dataclasses import asdict, fields
from datetime import UTC, datetime
from types import SimpleNamespace

from flwr.proto.node_pb2 import NodeInfo
from hypothesis import example, given
from hypothesis import strategies as st

from edgewire.deploy.device.telemetry import MOST
from edgewire.deploy.monitoring import node_states
from edgewire.deploy.monitoring.node_states import FleetStates, NodeState
from tests.deploy.served import FakeNode

STAMP = "2026-01-01T00:00:00+00:00"
TOLD = ("edgewire", "flower", "python", "free_disk", "temperature", "undervoltage", "error")
TOLD += ("error_text",)
ODD = [None, True, -1, 1e999, 10**400, [], [1], {}, {"a": 1}]
VALUES = st.sampled_from(ODD) | st.floats() | st.text(max_size=100)
NAMES = st.sampled_from([field.name for field in fields(NodeState)]) | st.text(max_size=9)


def packed(text):
    return zlib.compress(text.encode(errors="surrogatepass"), 9, -15)


@given(st.binary(max_size=MOST) | st.dictionaries(NAMES, VALUES).map(json.dumps).map(packed))
@example(packed("[" * 1000))
@example(packed('{"error": "' + "A" * 1_000_000))
@example(packed('{"error": "\\u001b[2J", "temperature": NaN, "free_disk": 1e999, "node": 8}'))
@example(packed('{"error_text": "\\u202eabc", "undervoltage": 1, "python": "3\\n", "name": "x"}'))
def test_telemetry_sets_nothing_but_sound_values_of_the_nodes_own_fields(telemetry):
    states, before = FleetStates(), asdict(NodeState(7))
    states.pulled(7, STAMP, telemetry)
    found = asdict(states.of(7))
    for name in set(before) - set(TOLD) - {"clock_offset", "clock_ahead"}:
        assert found[name] == before[name]
    for name in ("edgewire", "flower", "python", "error", "error_text"):
        assert isinstance(found[name], str)
        assert len(found[name]) <= 80
        assert found[name].isprintable()
    for name, most in (("free_disk", 1e18), ("temperature", 300)):
        assert found[name] is None or -100 <= found[name] <= most
    assert -1e10 <= found["clock_ahead"] <= 1e10
    assert found["undervoltage"] in (None, True, False)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_pull_is_answered_whatever_its_telemetry_is_unless_it_is_too_long(servers):
    node = FakeNode(servers[1].address)
    for telemetry in (b"\0", b"\xff" * MOST, packed("[" * 1000), packed('{"failures": 9}')):
        assert node.message(process=b"1234" + telemetry) is None
    assert node.post("pull", node.signed() + b"1234" + bytes(2 * MOST)).status_code == 413
    found = servers[1].states.of(node.node.node_id)
    assert (found.failures, found.error, found.free_disk) == (0, "", None)
    assert found.uplink_bytes > 4 * len(node.signed())
    node.leave()


def test_sound_telemetry_is_taken_and_an_unknown_field_ignored():
    told = {"edgewire": "0.1.0", "free_disk": 5, "temperature": 51.5, "undervoltage": True}
    states = FleetStates()
    states.pulled(7, STAMP, packed(json.dumps({**told, "error": "OSError ENOSPC", "new": 1})))
    found = asdict(states.of(7))
    assert told.items() <= found.items()
    assert found["error"] == "OSError ENOSPC"
    assert found["clock_offset"] < 0
    now = datetime.now(UTC).isoformat()  # signed with the server's time, by a node that is ahead
    states.pulled(7, now, packed('{"clock_ahead": 600}'))
    assert 590 < states.of(7).clock_offset <= 600


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=20),
    st.sets(st.integers(0, 19)),
)
def test_a_reply_that_is_repeated_counts_once(replies, failed):
    """Each reply is sent as often as its second number says."""
    states, streak = FleetStates(), 0
    for number, (_, times) in enumerate(replies):
        for _ in range(times):
            states.replied(7, f"{number}", number in failed)
        streak = streak + 1 if number in failed else 0
    found = states.of(7)
    assert found.failures == len([n for n in range(len(replies)) if n in failed])
    assert found.streak == streak


def test_the_states_are_bounded_and_forget_the_nodes_that_are_silent(monkeypatch):
    monkeypatch.setattr(node_states, "MOST", 3)
    states = FleetStates()
    for node in (1, 2, 3, 1, 4, 5):
        states.replied(node, f"{node}", failed=True)
    about = {1: ("online", 1e9), 2: ("offline", 0), 5: ("registered", 0), 6: ("unregistered", 0)}
    listed = [
        NodeInfo(node_id=n, name=f"n{9 - n}", status=s, online_until=u, heartbeat_interval=60)
        for n, (s, u) in about.items()
    ]
    found = states.all(SimpleNamespace(get_node_info=lambda: listed))
    assert [(each.name, each.status, each.failures) for each in found] == [
        ("n4", "registered", 1), ("n7", "offline", 0), ("n8", "online", 1)
    ]  # fmt: skip
    assert [each.last_seen is None for each in found] == [True, True, False]
