"""A client that sends too much, too little or nothing is disconnected and takes little memory."""

import socket
import ssl
import time
from contextlib import ExitStack, suppress

import httpx
import pytest

from edgewire.deploy import certificates
from edgewire.deploy.certificates import make_ca, make_server
from edgewire.deploy.server import certificate_file, connections
from edgewire.deploy.server.connections import LONGEST_HEAD, MOST_UNASKED
from tests.deploy.served import FakeNode, Server

SOON = 5.0  # seconds, on a busy machine


@pytest.fixture(scope="module")
def server():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEAD_SECONDS", 0.4)
        patch.setattr(connections, "STALLED_SECONDS", 0.4)
        patch.setattr(connections, "SLOWEST", 100)
        patch.setattr(connections, "LOOKS", 0.1)
        patch.setattr(connections, "MOST_UNUSED", 4 << 20)
        with Server() as there:
            yield there


@pytest.fixture
def connect(server):
    """Return a function that opens a connection and sends bytes."""
    connections = []

    def call(data=b""):
        connections.append(made := socket.create_connection(server.place, timeout=SOON))
        made.sendall(data)
        return made

    yield call
    for each in connections:
        each.close()


def rest_of(connection):
    """Return the bytes that arrive until the server closes the connection."""
    came = b""
    try:
        while piece := connection.recv(1 << 16):
            came += piece
    except ConnectionError:
        pass
    return came


BEGUN = (
    b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: here\r\ncontent-type: application/protobuf\r\n"
)


@pytest.mark.parametrize(
    "head", [b"", b"G", BEGUN, BEGUN + b"x: y", BEGUN + b"content-length: 9\r\n\r\nfour"]
)
def test_an_interrupted_request_is_not_waited_for(head, connect):
    connection = connect(head)
    begun = time.monotonic()
    assert rest_of(connection) == b""
    assert 0.3 < time.monotonic() - begun < SOON


@pytest.mark.parametrize("head", [BEGUN, BEGUN + b"content-length: 99999\r\n\r\n"])
def test_a_request_sent_byte_by_byte_is_not_waited_for(head, connect):
    connection = connect(head)
    ended = time.monotonic() + SOON
    with suppress(ConnectionError):
        while time.monotonic() < ended:
            connection.sendall(b"x")
            time.sleep(0.05)
    assert time.monotonic() < ended


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * (8 << 20),
        BEGUN + b"x: " + b"y" * (8 << 20),
        BEGUN + b"x: y\r\n" * (1 << 20),
        b"GET /" + b"a" * LONGEST_HEAD + b" HTTP/1.1\r\n\r\n",
        BEGUN + b"x: " + b"y" * LONGEST_HEAD + b"\r\n\r\n",
    ],
)
def test_an_endless_head_is_not_read_beyond_its_limit(head, connect, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 60)
    connection = connect()
    with suppress(ConnectionError):  # before all bytes are sent
        connection.sendall(head)
    assert rest_of(connection) == b""


CALL = b"/v1/control/list-nodes"  # the Fleet API takes no chunked bodies
CHUNKED = BEGUN.replace(b"/v1/fleet/push-object", CALL) + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("head", [CHUNKED, CHUNKED + b"1\r\nx\r\n"])
@pytest.mark.parametrize(
    ("begun", "more"), [(b"0\r\nx: ", b"y"), (b"0\r\n", b"x: y\r\n"), (b"1;x=", b"y")]
)
def test_endless_trailers_are_not_read_beyond_their_limit(head, begun, more, connect, monkeypatch):
    monkeypatch.setattr(connections, "STALLED_SECONDS", 60)
    connection = connect(head + begun)
    with suppress(ConnectionError):
        for _ in range(100):  # bytes that arrive with a body are not counted
            connection.sendall(more * (LONGEST_HEAD // 16 // len(more)))
            time.sleep(0.01)
        raise AssertionError


def test_trailers_are_no_headers(connect):
    """A trailer is not read as a header; a `via` header would mark the request as forwarded."""
    head = (
        b"POST /v1/control/list-nodes HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    answers = []
    for trailer in (b"", b"via: a proxy\r\n"):
        connection = connect(head + b"0\r\n" + trailer + b"\r\n")
        answers.append(connection.recv(1 << 16).partition(b"\r\n")[0])
    assert answers[0] == answers[1] != b"HTTP/1.1 403 Forbidden"


def test_an_endless_body_is_not_read_after_the_answer(connect):
    connection, sent = (
        connect(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 99999999999\r\n\r\n"),
        0,
    )
    assert connection.recv(1 << 16).startswith(b"HTTP/1.1 404 ")
    with suppress(ConnectionError):
        while sent < 64 << 20:
            connection.sendall(bytes(1 << 20))
            sent += 1 << 20
    assert 4 << 20 <= sent < 64 << 20


def test_a_short_head_and_a_long_body_are_accepted(server):
    with httpx.Client(trust_env=False) as client:
        for _ in range(2):  # on one connection
            found = client.post(
                f"http://{server.address}/v1/fleet/push-messages",
                headers={"content-type": "application/protobuf", "x": "y" * (LONGEST_HEAD - 1000)},
                content=bytes(3 << 20),
            )
            assert found.status_code in (400, 401)


def test_a_client_that_waits_for_a_reply_stays_connected(server):
    node = FakeNode(server.address)
    begun = time.monotonic()
    assert node.message(wait=2) is None
    assert time.monotonic() - begun > 1.9
    time.sleep(0.8)  # the connection stays open longer than one request may take
    assert node.message() is None
    node.leave()


def test_a_client_that_does_not_read_its_response_is_disconnected(tmp_path):
    """A client that never reads its response is disconnected; one that reads late is not."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model").write_bytes(bytes(8 << 20))
    ask = b"GET /v1/control/edgewire/runs/run/model HTTP/1.1\r\nhost: here\r\n\r\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "STALLED_SECONDS", 0.4)
        patch.setattr(connections, "LOOKS", 0.1)
        with Server(output=tmp_path) as server:
            for pause, whole in ((0.15, True), (1.5, False)):
                with socket.socket() as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                    connection.settimeout(SOON)
                    connection.connect(server.place)
                    connection.sendall(ask)
                    time.sleep(pause)
                    assert (len(rest_of(connection)) > 8 << 20) is whole


def test_many_idle_connections_block_no_other_client(server, connect, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 60)
    silent = [connect() for _ in range(MOST_UNASKED + 20)]
    found = httpx.get(f"http://{server.address}/v1/fleet/edgewire", trust_env=False)
    assert found.text == "1"
    for each in silent[:20]:
        assert rest_of(each) == b""
    silent[-1].settimeout(0.1)
    with pytest.raises(TimeoutError):
        silent[-1].recv(1)


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01"])
def test_silent_tls_handshakes_are_limited_in_time_and_number(begun, tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 1.0)
    monkeypatch.setattr(connections, "MOST_OPENING", 10)
    make_ca(tmp_path)
    make_server(tmp_path, ["127.0.0.1"], renew=False)
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    with Server(keys=tmp_path) as server, ExitStack() as stack:
        silent = []
        for _ in range(15):
            line = socket.create_connection(server.place, timeout=SOON)
            silent.append(stack.enter_context(line))
            line.sendall(begun)
        opened = time.monotonic()
        url = f"https://{server.address}/v1/fleet/edgewire"
        assert httpx.get(url, trust_env=False, verify=trusted).text == "1"
        for each in silent[:5]:
            assert rest_of(each) == b""
        assert time.monotonic() - opened < 0.9
        for each in silent[5:]:
            assert rest_of(each) == b""
        assert 0.5 < time.monotonic() - opened < SOON


def test_a_renewed_certificate_is_taken_up_and_files_that_do_not_fit_are_not(tmp_path, caplog):
    """New connections get it, an open one goes on; a key of another server changes nothing."""
    make_ca(tmp_path)
    make_server(tmp_path, ["127.0.0.1"])
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.crt")

    def serial():
        plain = socket.create_connection(server.place, timeout=SOON)
        with trusted.wrap_socket(plain, server_hostname="127.0.0.1") as line:
            return line.getpeercert()["serialNumber"]

    def until(done):
        over = time.monotonic() + SOON
        while not done() and time.monotonic() < over:
            time.sleep(0.02)
        return done()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate_file, "LOOKS", 0.05)
        with Server(keys=tmp_path) as server, httpx.Client(verify=trusted, trust_env=False) as kept:
            url = f"https://{server.address}/v1/fleet/edgewire"
            first, opened = serial(), kept.get(url)
            make_server(tmp_path, ["127.0.0.1"], renew=True)
            assert until(lambda: serial() != first)
            assert kept.get(url).text == opened.text == "1"
            second = serial()
            key = (tmp_path / "server.key").read_bytes()
            for damage in (b"", key[:-40], (tmp_path / "ca.key").read_bytes()):
                (tmp_path / "server.key").write_bytes(damage)
                time.sleep(0.2)
                assert serial() == second
            assert "the certificate in use stays" in caplog.text
            (tmp_path / "server.key").write_bytes(key)
            make_server(tmp_path, ["127.0.0.1"], renew=True)
            assert until(lambda: serial() != second)


@pytest.mark.parametrize(("days", "said"), [(29, "ends in 28 days"), (31, ""), (0, "in 0 days")])
def test_a_certificate_that_ends_soon_is_said_once_a_day(days, said, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(certificates, "SERVER_DAYS", days)
    make_ca(tmp_path)
    make_server(tmp_path, ["127.0.0.1"])
    files = tmp_path / "server.crt", tmp_path / "server.key"
    file = certificate_file.CertificateFile(files, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    for _ in range(3):
        file.look()
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == bool(said)
    assert all(said in line for line in warned)
