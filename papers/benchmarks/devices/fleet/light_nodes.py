"""Light nodes: they send a node's requests to a server and train nothing.

Thousands of them run in one process, each with one TLS connection and its own key.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesResponse,
)
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from edgewire.deploy import compact_bundle
from edgewire.deploy.device.client import LARGEST, WAIT
from edgewire.deploy.signed_header import headers, sign_header

FLEET = "/v1/fleet/"
PROTOBUF = {"content-type": "application/protobuf", "accept-encoding": "gzip"}
INTERVAL = 60  # seconds between two heartbeats, as the node promises


class Connection:
    """One HTTP/1.1 connection of an asyncio program."""

    def __init__(self, port: int, tls: ssl.SSLContext | None) -> None:
        self._port, self._tls = port, tls
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, method: str, path: str, head: dict[str, str], pieces: Sequence[bytes] = ()
    ) -> bytes:
        """Send a request; return the response's body. Raises `RuntimeError` for a bad status."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        reader, writer = self._streams
        size = sum(map(len, pieces))
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {size}"]
        lines += [f"{name}: {value}" for name, value in head.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        status, fields = _read_head(await reader.readuntil(b"\r\n\r\n"))
        body = await _body(reader, fields)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {body[:200]!r}")
        return body

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode().split("\r\n")[:-2]
    fields = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), fields


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readline()
    return b"".join(pieces)


class LightNode:
    """A node that is registered in the file that `write_registered` makes."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self._key, public = generate_key_pairs()
        self.public_key = public_key_to_bytes(public)
        self.node = Node(node_id=number)

    def connect(self, port: int, tls: ssl.SSLContext | None) -> None:
        """Use this server from now on; the connection is opened by the first request."""
        self.connection = Connection(port, tls)

    async def activate(self) -> None:
        """Become online. Raises `RuntimeError` if the server does not know the node."""
        asks = ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=INTERVAL)
        body = await self.call("activate-node", asks)
        if (found := ActivateNodeResponse.FromString(body).node_id) != self.number:
            raise RuntimeError(f"node {self.number} is known as {found}")

    async def call(self, what: str, asks: Message) -> bytes:
        """Return the body of the response to one of Flower's calls, as it was sent."""
        stamp = datetime.now(UTC).isoformat()
        signed = headers(self.public_key, stamp, sign_message(self._key, stamp.encode()))
        content = asks.SerializeToString()
        return await self.connection.ask("POST", FLEET + what, {**PROTOBUF, **signed}, [content])

    async def compact(self, what: str, pieces: Sequence[bytes] = (), wait: int = 0) -> bytes:
        """Return the body of the response to a compact call, "pull" or "push"."""
        signed = sign_header(self.number, wait, lambda text: bytes(sign_message(self._key, text)))
        path = f"{FLEET}edgewire/compact/{what}"
        return await self.connection.ask("POST", path, {}, [signed, *pieces])

    async def message(self) -> PullMessagesResponse:
        """Return the next message, without its objects."""
        while not (content := await self.compact("pull", wait=WAIT)):
            pass
        (_, head), *_ = compact_bundle.parts_of(content, LARGEST)
        found: PullMessagesResponse = PullMessagesResponse.FromString(head)
        return found

    async def app_of(self, run_id: int) -> bytes:
        """Download the app of a run; return the body of the response, which may be compressed."""
        body = await self.call("get-run", GetRunRequest(node=self.node, run_id=run_id))
        digest = GetRunResponse.FromString(body).run.fab_hash
        return await self.call(
            "get-fab", GetFabRequest(node=self.node, hash_str=digest, run_id=run_id)
        )


def write_registered(count: int, file: Path) -> list[LightNode]:
    """Make nodes with keys, and write the server's file of registered nodes for them."""
    nodes = [LightNode(1 << 40 | number, f"n{number}") for number in range(count)]
    stamp = datetime.now(UTC).isoformat()
    known = [
        NodeInfo(
            node_id=each.number, owner_aid=NOOP_FLWR_AID, owner_name=NOOP_ACCOUNT_NAME,
            status="registered", registered_at=stamp, public_key=each.public_key, name=each.name,
        )
        for each in nodes
    ]  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([MessageToDict(each) for each in known]))
    return nodes


async def all_online(nodes: Sequence[LightNode], at_once: int = 20) -> None:
    """Activate all nodes, `at_once` at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(node: LightNode) -> None:
        async with gate:
            await node.activate()

    await asyncio.gather(*map(one, nodes))
