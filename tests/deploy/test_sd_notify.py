"""What a service tells systemd; without systemd nothing happens."""

import socket
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from edgewire.deploy.sd_notify import ALIVE, READY, notify
from tests.deploy.processes import eventually, free_port
from tests.deploy.servers import Field


@pytest.mark.parametrize("name", ["FOLDER/notify", "@FOLDER/notify"])
def test_a_state_arrives_and_a_systemd_that_is_busy_or_gone_is_not_waited_for(name, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        at = name.replace("FOLDER", folder)
        monkeypatch.setenv("NOTIFY_SOCKET", at)
        notify(READY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
            there.bind(at.replace("@", "\0"))
            for _ in range(2000):  # more than a socket holds
                notify(READY)
            assert there.recv(999) == b"READY=1"
        notify(READY)
        assert set(Path(folder).iterdir()) <= {Path(at)}
    for nothing in ("", "no socket", "@", "/"):
        monkeypatch.setenv("NOTIFY_SOCKET", nothing)
        notify(READY)
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY)


def test_a_server_is_ready_when_it_listens_and_a_node_without_a_server(tmp_path, notified):
    with Field(tmp_path) as f:
        words = [
            "--port",
            str(f.port),
            "--insecure",
            "--host",
            "127.0.0.1",
            "--state",
            str(tmp_path),
        ]
        f.start([sys.executable, "-m", "edgewire.deploy.server", *words], "server.log")
        eventually(lambda: READY in notified())
        assert httpx.get(f"http://127.0.0.1:{f.port}/healthz", trust_env=False).text == "ok\n"
        assert eventually(lambda: ALIVE in notified())
        f.port = free_port()
        f.node("node")
        eventually(lambda: READY in notified())
