"""The server's session: what it sends to each node, which replies it accepts, what it counts."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import Traffic, payload_record, reason_of
from edgewire.compression.flower.headers import HEADER, DownlinkHeader, UplinkHeader, read, written
from edgewire.compression.flower.native_tensors import (
    INITIAL,
    NATIVE,
    OTHER_INITIAL,
    Initial,
    with_payload,
)
from edgewire.compression.flower.records import STYPE, payload_records
from edgewire.compression.flower.server import session as server_session
from edgewire.compression.flower.server.delta_sync import ModelUpdate
from edgewire.compression.flower.server.inbox import Inbox
from edgewire.compression.flower.server.norm_screen import Screens
from edgewire.compression.flower.server.session import InitialModel, ServerSession
from edgewire.compression.flower.server.statistics_screen import StatisticsSplit
from edgewire.compression.flower.traffic import NO_STREAMS
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from tests.spoil import COUNTED, UNUSABLE

pytestmark = pytest.mark.usefixtures("identity")
LAYOUT = Layout(("weight", "bias"), ((8, 5), (5,)), ("float32",) * 2)
PLAIN_BYTES = 1000  # the model's bytes in Flower's format
CODEC = make_codec(coder="raw")
NUMBER = 2  # the number in the messages' headers
METRICS = {"num-examples": 3, "loss": 0.5}


class Newest:
    """A fake `DeltaSync`: a model update has one byte for each version that the node lacks."""

    skips = True

    def __init__(self, version=5):
        self.version, self.made = version, []

    def knows(self, version):
        return version > 0

    def model_update(self, base):
        self.made.append(base)
        size = 100 if base is None else self.version - base
        header = {"version": self.version, **({} if base is None else {"base": base})}
        return ModelUpdate(payload_records({"payload": bytes(size)}), header)


def asked(talk, *nodes, **header):
    header = DownlinkHeader(NUMBER, workers=3, **header)
    return [message for message, _ in talk.messages(nodes, "train.step", {"lr": 0.1}, header)]


def update():
    return np.linspace(-1, 1, LAYOUT.size, dtype=np.float32)


def answer(message, sequence=None, version=None, metrics=METRICS, number=NUMBER):
    content = {"arrays": payload_record(CODEC.encode(update(), LAYOUT))}
    content["metrics"] = MetricRecord(metrics)
    content[HEADER] = written(UplinkHeader(number, sequence, version))
    return Message(RecordDict(content), reply_to=message)


def read_reply(talk, reply, measured=()):
    """Return what the server reads in a reply of node 7."""
    inbox = Inbox(talk, StatisticsSplit(LAYOUT), Screens(), measured)
    return inbox.read(7, NUMBER, reply, np.empty(0, np.float32), {})


def received(talk, measured=(), **reply):
    """Send node 7 a message; return what the server reads in the reply."""
    (message,) = asked(talk, 7)
    return read_reply(talk, answer(message, **reply), measured)


def session():
    return ServerSession(Newest(), Traffic(), InitialModel(LAYOUT, PLAIN_BYTES))


@pytest.fixture(autouse=True)
def no_streams(monkeypatch):
    """Let the fake payloads of `Newest` have no streams."""
    monkeypatch.setattr(server_session, "stream_sizes", lambda payloads, layout: NO_STREAMS)


@pytest.fixture
def talk():
    return session()


# What nodes receive.


def test_a_message_holds_the_config_a_header_and_the_model(talk):
    (message,) = asked(talk, 7, checksum=b"12345678")
    assert message.metadata.dst_node_id == 7
    assert message.metadata.message_type == "train.step"
    assert set(message.content) == {"arrays", "config", HEADER}
    assert dict(message.content["config"]) == {"lr": 0.1}
    assert all(array.stype == STYPE for array in message.content["arrays"].values())
    expected = DownlinkHeader(number=2, workers=3, version=5, checksum=b"12345678")
    assert read(message.content, DownlinkHeader) == expected


def test_nodes_share_contents_or_model_updates_where_possible(talk):
    for node, version in ((1, 3), (2, 3), (3, 4), (4, 3)):
        talk.versions.send(node, ModelUpdate(ArrayRecord(), {"version": version}))
        talk.versions.confirm(node, version)
    talk.acks.decode(4, CODEC.encode(update(), LAYOUT), 9, LAYOUT)
    talk.acks.applied([4])
    contents = [message.content for message in asked(talk, 1, 2, 3, 4, 5, 6)]
    assert contents[0] is contents[1]
    assert contents[4] is contents[5]
    assert len({id(content) for content in contents}) == 4
    assert contents[3]["arrays"] is contents[0]["arrays"]  # the nodes differ in the header only
    notes = [read(content, DownlinkHeader) for content in contents]
    assert [header.applied for header in notes] == [None, None, None, 9, None, None]
    assert [header.base for header in notes] == [3, 3, 4, 3, None, None]
    assert talk.versions.sync.made == [3, 4, None]


def test_every_message_is_counted(talk):
    asked(talk, 1, 2)
    assert talk.traffic.downlink_bytes == 2 * 100
    assert talk.traffic.downlink_bytes_float32 == 2 * PLAIN_BYTES
    talk.versions.confirm(1, 5)
    talk.versions.sync.version = 8
    asked(talk, 1, 2)
    assert talk.traffic.downlink_bytes == 2 * 100 + 3 + 100
    assert talk.traffic.downlink_bytes_float32 == 4 * PLAIN_BYTES


# What nodes reply.


def test_a_reply_gives_an_update_and_the_nodes_metrics(talk):
    found = received(talk, ["loss"], version=5)
    np.testing.assert_array_equal(found.values, update())
    assert dict(found.metrics) == METRICS
    assert talk.traffic.uplink_bytes == len(CODEC.encode(update(), LAYOUT))
    assert talk.traffic.uplink_bytes_float32 == PLAIN_BYTES
    assert talk.traffic.client_updates == 0  # counted only when the update is applied
    assert talk.versions.base_of(7) == 5


def test_an_error_gives_its_reason_and_the_nodes_version_is_unknown(talk):
    received(talk, version=5)
    assert talk.versions.base_of(7) == 5
    (message,) = asked(talk, 7)
    before = talk.traffic.as_dict()
    error = Message(
        Error(1, "Traceback (most recent call last):\nRuntimeError: no power"), reply_to=message
    )
    with pytest.raises(PayloadError, match=r"^RuntimeError: no power$"):
        read_reply(talk, error)
    assert talk.versions.base_of(7) is None
    assert talk.traffic.as_dict() == before  # no bytes are counted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "<class 'edgewire.client.app.Undisclosed'>:<'TaskError; its log'>",
            "Undisclosed: TaskError; its log",
        ),
        ("<class 'ZeroDivisionError'>:<''>", "ZeroDivisionError"),
        ("<class 'm.f.<locals>.Odd'>:<'first\n'x'>:<last'>", "Odd: first 'x'>:<last"),
        (
            "<class 'ray.RayTaskError'>:<'Traceback (most recent call last):\n  x\nOdd: y'>",
            "RayTaskError: Odd: y",
        ),
        ("Error in loading:\n\tsize of a\n", "Error in loading: size of a"),
        ("<class ''>:<'x'>", "<class ''>:<'x'>"),
        ("<class 'x", "<class 'x"),
        ("", "no reason given"),
        (None, "no reason given"),
    ],
)
def test_a_reason_is_reported_in_plain_words(talk, given, said):
    (message,) = asked(talk, 7)
    assert reason_of(Message(Error(1, given), reply_to=message)) == said


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_reply_is_refused_in_one_line(talk, name):
    (message,) = asked(talk, 7)
    reply = answer(message, sequence=1, version=5)
    spoil, words = UNUSABLE[name]
    spoil(reply)
    size = sum(len(a.data) for a in reply.content.get("arrays", ArrayRecord()).values())
    with pytest.raises(PayloadError, match=words) as refused:
        read_reply(talk, reply, ["loss"])
    assert "\n" not in str(refused.value)
    assert talk.traffic.uplink_bytes == (size if name in COUNTED else 0)
    assert talk.traffic.uplink_bytes_float32 == (PLAIN_BYTES if name in COUNTED else 0)
    assert talk.acks.pending == []
    talk.acks.applied(talk.acks.pending)
    assert talk.acks.last_applied(7) == 0


def test_an_applied_reply_is_not_read_again(talk):
    received(talk, sequence=1)
    assert talk.acks.pending == [7]
    received(talk, sequence=1)  # the first reply was not applied, so this one is accepted
    talk.acks.applied([7])
    with pytest.raises(PayloadError, match="update 1 was applied already"):
        received(talk, sequence=1)
    received(talk, sequence=2)
    (message,) = asked(talk, 7)
    assert read(message.content, DownlinkHeader).applied == 1


def test_native_tensors_are_sent_when_they_differ_from_the_initial_ones():
    initial = Initial({"count": np.array(3), "table": np.arange(4)})
    talk = ServerSession(Newest(), Traffic(), InitialModel(LAYOUT, PLAIN_BYTES, initial))
    header = DownlinkHeader(NUMBER)
    for count, parts in ((3, {INITIAL}), (3, set()), (5, {NATIVE})):
        ((message, _),) = talk.messages([7], "train", {}, header, {"count": np.array(count)})
        sent = message.content["arrays"]
        assert set(sent) == {"payload", *parts}
        assert initial.all(sent[NATIVE].data if NATIVE in sent else None)["count"] == count
        if INITIAL in parts:
            assert sent[INITIAL].data == initial.whole
        assert read(message.content, DownlinkHeader).initial == initial.checksum


def test_frozen_parameters_are_sent_only_to_a_node_that_has_others():
    initial = Initial({"base": np.arange(50.0), "mask": np.arange(4)}, frozen=["base"])
    talk = ServerSession(Newest(), Traffic(), InitialModel(LAYOUT, PLAIN_BYTES, initial))

    def sent(node):
        ((message, _),) = talk.messages([node], "train", {}, DownlinkHeader(NUMBER))
        arrays = message.content["arrays"]
        held = initial.read(arrays[INITIAL].data) if INITIAL in arrays else {}
        return message, set(held)

    assert [sent(node)[1] for node in (7, 8, 7)] == [{"mask"}, {"mask"}, set()]
    message, _ = sent(7)
    error = Message(Error(0, f"PayloadError: {OTHER_INITIAL} than the server's"), reply_to=message)
    with pytest.raises(PayloadError, match=OTHER_INITIAL):
        read_reply(talk, error)
    assert [sent(node)[1] for node in (8, 7, 7)] == [set(), {"base", "mask"}, set()]


def test_a_second_payload_is_refused_in_a_model_without_native_tensors(talk):
    (message,) = asked(talk, 7)
    reply = answer(message)
    reply.content["arrays"] = with_payload(reply.content["arrays"], NATIVE, b"x")
    with pytest.raises(PayloadError, match="holds 2 payloads, one is asked for"):
        read_reply(talk, reply)


def test_a_forgotten_node_puts_nothing_back_when_it_returns(monkeypatch):
    monkeypatch.setattr("edgewire.compression.flower.server.session.SPARE", 1)
    talk = session()
    received(talk, sequence=1)
    talk.acks.applied([7])
    asked(talk, 8)
    assert talk.gone(lambda: [8]) == set()  # within the limit: two absent nodes, SPARE is 1
    asked(talk, 9, 10)
    assert talk.gone(lambda: [8]) == {7, 9, 10}
    first, eleventh = (read(m.content, DownlinkHeader) for m in asked(talk, 7, 11))
    assert (first.applied, first.undecided) == (None, 1)
    # Node 11 may also be a node that the server has forgotten.
    assert (eleventh.applied, eleventh.undecided) == (None, 1)
    (again,) = asked(talk, 7)
    header = read(again.content, DownlinkHeader)
    # No reply of node 7 is in the model: the node adds its last update back to its residual.
    assert (header.applied, header.undecided) == (None, None)
