"""A client of Flower's Fleet API, with Flower's public protobufs and a node's signatures.

This project's server offers two bundled calls, which replace many calls of Flower. The first call
waits for a message and returns the message with its objects. The second call sends a reply with its
objects. Both calls use the compact form (`compact_bundle.py`, `signed_header.py`).
"""

from __future__ import annotations

import datetime
import json
import os
import re
import ssl
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import fleet_pb2
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from google.protobuf.message import DecodeError, Message

from edgewire.deploy import compact_bundle
from edgewire.deploy.signed_header import PROCESS, headers, sign_header
from edgewire.protocol.bundle import parts_of

LARGEST = 1 << 32  # the most bytes of a bundle from a server
BUNDLED = "edgewire"  # the path of a bundled call begins with this
COMPACT = f"{BUNDLED}-compact"  # HTTP header with the number of the server's compact format
WAIT = 40  # seconds that the server holds a pull
COUNTED = 45.0  # seconds after a pull in which no heartbeat is needed
DUPLICATE_NODE = 409  # HTTP status: a newer process uses this node's key
RUN_IS_OVER, NOT_ACTIVATED, ONLY_REGISTERED = 2007, 2004, 2001  # Flower's error codes
_CONNECT, _ANSWER = 10.0, 60.0  # seconds
# Seconds that an idle connection stays open: a new one costs 3 kB. The server closes it later.
_KEPT = 60.0
_PROTOBUF = "application/protobuf"
_BINARY = {"content-type": _PROTOBUF, "accept": _PROTOBUF, "accept-encoding": "gzip"}
Reply = TypeVar("Reply", bound=Message)


class ServerRefusal(Exception):
    """The server has answered with an error.

    `status`: the HTTP status; `code`: Flower's error code, or None; `detail`: the error's text;
    `ahead`: by how many seconds this machine's clock is ahead of the server's, None for a response
    without a date; `path`: the request's path.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.code, self.detail = _said(response)
        self.ahead = ahead_of(response)
        self.path = response.request.url.path
        super().__init__(f"{self.path} was refused: {self.status} {self.detail}")


class FleetClient:
    """Makes signed calls to one server; safe for several threads.

    `address`: host:port. `root_certificates`: a PEM file; None: the system's certificates. Every
    call may raise `ServerRefusal`, and `httpx.TransportError` if the server cannot be reached.
    After a refused signature, the calls are signed with the server's time: `ahead` seconds less.
    After a pull, the server needs no heartbeat until the time `counted_until` (on
    `time.monotonic`).
    """

    def __init__(
        self,
        address: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        insecure: bool = False,
        root_certificates: Path | None = None,
    ) -> None:
        self.address, self.secure = address, not insecure
        self.public_key = public_key_to_bytes(key.public_key())
        self._key = key
        self._base = f"{'http' if insecure else 'https'}://{address}/v1/fleet/"
        verify: ssl.SSLContext | bool = not insecure
        self._root = None if insecure else root_certificates
        if self._root is not None:
            verify = ssl.create_default_context(cafile=self._root)
        self._tls = verify
        self._http = httpx.Client(
            verify=verify,
            timeout=httpx.Timeout(_ANSWER, connect=_CONNECT),
            limits=httpx.Limits(keepalive_expiry=_KEPT),
        )
        for name in ("accept", "accept-encoding", "connection", "user-agent"):
            del self._http.headers[name]  # these headers cost 110 bytes a request
        self._number, self.ahead = os.urandom(PROCESS), 0.0
        self.counted_until = 0.0  # seconds

    def call(self, request: Message, kind: type[Reply], *, timeout: float = _ANSWER) -> Reply:
        """Return the server's response to a request of Flower's Fleet API."""
        headers = {**_BINARY, **self._signed()}
        # Flower's path of a GetRunRequest is get-run, of a RegisterNodeFleetRequest register-node.
        words = re.findall("[A-Z][a-z]+", request.DESCRIPTOR.name)
        path = "-".join(word.lower() for word in words if word not in ("Fleet", "Request"))
        return self._parsed(self._post(path, request.SerializeToString(), headers, timeout), kind)

    def bundles(self) -> bool:
        """Ask the server which calls it offers; return whether it offers the bundled calls."""
        return says_bundled(self.get(BUNDLED))

    def get(self, path: str) -> httpx.Response:
        """Return the response to a GET of a path below the Fleet API, whatever its status."""
        return self._http.get(self._base + path, headers=self._signed())

    def pull(
        self, request: fleet_pb2.PullMessagesRequest, telemetry: bytes = b""
    ) -> tuple[fleet_pb2.PullMessagesResponse, dict[str, bytes]]:
        """Return the next message and its objects by their ids.

        The server holds the call until a message exists. After `WAIT` seconds it sends a response
        without a message.
        """
        self.counted_until = time.monotonic() + COUNTED
        try:
            content = self._bundled("pull", request.node.node_id, WAIT, self._number + telemetry)
        except BaseException:
            self.counted_until = 0.0
            raise
        if not content:
            return fleet_pb2.PullMessagesResponse(), {}
        try:
            (_, head), *objects = compact_bundle.parts_of(content, LARGEST)
        except ValueError as error:
            raise httpx.RemoteProtocolError(f"no bundle: {error}") from error
        return self._parsed(head, fleet_pb2.PullMessagesResponse), dict(objects)

    def push(self, bundle: bytes) -> fleet_pb2.PushMessagesResponse:
        """Send a reply as one bundle of named parts (`protocol.bundle`); return the response.

        The first part, "request", is Flower's request to push the reply. Then follow the reply's
        objects, each under its id. An optional last part, "confirm", is Flower's request that
        confirms the message to which the node replies.
        """
        parts = parts_of(bundle, LARGEST)
        node = fleet_pb2.PushMessagesRequest.FromString(parts[0][1]).node.node_id
        answer = self._bundled("push", node, 0, compact_bundle.compact(parts))
        return self._parsed(answer, fleet_pb2.PushMessagesResponse)

    def enrol(self, token: str) -> str:
        """Register this node's key by a token of `edgewire.deploy.enrolment`; return its name."""
        content = token.encode() + b"\n" + self.public_key
        return self._post(f"{BUNDLED}/enrol", content, {}, _ANSWER).decode()

    def reload_root(self) -> None:
        """Trust the CAs that have been added to the file `root_certificates`.

        A CA that is no longer in the file is trusted until the process ends.
        """
        if isinstance(self._tls, ssl.SSLContext) and self._root is not None:
            with suppress(OSError):  # the file is being replaced; `ssl.SSLError` is one, too
                self._tls.load_verify_locations(self._root)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _bundled(self, what: str, node: int, wait: int, content: bytes) -> bytes:
        sign = partial(sign_message, self._key)
        signed = sign_header(node, wait, sign, self.ahead)
        return self._post(f"{BUNDLED}/compact/{what}", signed + content, {}, _ANSWER + wait)

    def _post(self, path: str, content: bytes, headers: dict[str, str], timeout: float) -> bytes:
        response = self._http.post(
            self._base + path,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(_CONNECT, timeout)),
        )
        if not response.is_success:
            refusal = ServerRefusal(response)
            if refusal.status == 401:
                self.ahead = refusal.ahead or 0.0
            raise refusal
        return response.content

    def _signed(self) -> dict[str, str]:
        """Return the headers by which Flower's server authenticates its nodes."""
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=self.ahead)
        stamp = now.isoformat()
        return headers(self.public_key, stamp, sign_message(self._key, stamp.encode()))

    @staticmethod
    def _parsed(content: bytes, kind: type[Reply]) -> Reply:
        try:
            parsed: Reply = kind.FromString(content)
        except DecodeError as error:  # for example an error page of a proxy
            raise httpx.RemoteProtocolError(f"no {kind.DESCRIPTOR.name} came") from error
        return parsed


def says_bundled(response: httpx.Response) -> bool:
    """Return whether a server's response to a GET of `BUNDLED` says that it has bundled calls.

    The calls must use the compact format of this node (`compact_bundle.FORM`).
    """
    return bool(response.headers.get(COMPACT) == str(compact_bundle.FORM))


def _said(response: httpx.Response) -> tuple[int | None, str]:
    """Return the Flower error code of a response (None if it has none) and the error's text."""
    try:
        said = json.loads(response.text)
        code, detail = said.get("code"), str(said.get("detail", ""))
    except (ValueError, AttributeError):
        code, detail = None, response.reason_phrase
    return code if isinstance(code, int) else None, detail or response.reason_phrase


def ahead_of(response: httpx.Response) -> float | None:
    """Return by how many seconds this machine's clock is ahead of the date in a response.

    None: the response has no valid date.
    """
    try:
        theirs = parsedate_to_datetime(response.headers["date"])
        return (datetime.datetime.now(datetime.UTC) - theirs).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
