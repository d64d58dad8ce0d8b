"""A client of Flower's Fleet API, by its public protobufs and its nodes' signatures.

Where the server says that it has them, two calls of this project's own take the place of many: one
that waits for a message and brings it with its objects, and one that takes a reply with its own.
"""

from __future__ import annotations

import datetime
import json
import ssl
from base64 import b64encode
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from google.protobuf.message import DecodeError, Message

from .bundle import parts_of

LARGEST = 1 << 32  # bytes of a bundle that a server may send
BUNDLED = "edgewire"  # what the path of a bundled call begins with
RUN_IS_OVER, NOT_ACTIVATED, ONLY_REGISTERED = 2007, 2004, 2001  # Flower's codes of errors
_CONNECT, _ANSWER = 10.0, 60.0  # seconds
_BINARY = {"content-type": "application/protobuf", "accept": "application/protobuf"}
Reply = TypeVar("Reply", bound=Message)
_PATHS: dict[type[Message], str] = {
    fleet_pb2.RegisterNodeFleetRequest: "register-node",
    fleet_pb2.ActivateNodeRequest: "activate-node",
    fleet_pb2.DeactivateNodeRequest: "deactivate-node",
    heartbeat_pb2.SendNodeHeartbeatRequest: "send-node-heartbeat",
    fleet_pb2.PullMessagesRequest: "pull-messages",
    fleet_pb2.PushMessagesRequest: "push-messages",
    run_pb2.GetRunRequest: "get-run",
    fab_pb2.GetFabRequest: "get-fab",
    message_pb2.PushObjectRequest: "push-object",
    message_pb2.PullObjectRequest: "pull-object",
    message_pb2.ConfirmMessageReceivedRequest: "confirm-message-received",
}


class Refusal(Exception):
    """The server has answered, and said no.

    `status`: HTTP's; `code`: Flower's, if it gave one; `ahead`: seconds that this machine's clock
    is ahead of the server's, if the reply was dated.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.code, self.detail = _said(response)
        self.ahead = _ahead(response)
        self.path = response.request.url.path
        super().__init__(f"{self.path} was refused: {self.status} {self.detail}")


class FleetClient:
    """Signed calls to one server; may be used from several threads.

    `address`: host:port. `root_certificates`: a PEM file; None: the system's. Every call raises
    `Refusal`, or `httpx.TransportError` where the server is not reached.
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
        if root_certificates is not None and not insecure:
            verify = ssl.create_default_context(cafile=root_certificates)
        self._http = httpx.Client(verify=verify, timeout=httpx.Timeout(_ANSWER, connect=_CONNECT))

    def call(self, request: Message, kind: type[Reply], *, timeout: float = _ANSWER) -> Reply:
        """Return what the server answers to a request of Flower's Fleet API."""
        path = _PATHS[type(request)]
        return self._parsed(self._post(path, request.SerializeToString(), timeout=timeout), kind)

    def bundles(self) -> bool:
        """Ask the server whether it has the bundled calls."""
        response = self._http.get(self._base + BUNDLED, headers=self._signed())
        return response.status_code == 200 and response.content.strip() == b"1"

    def pull(
        self, request: fleet_pb2.PullMessagesRequest, wait: int
    ) -> tuple[fleet_pb2.PullMessagesResponse, dict[str, bytes]]:
        """Return a message, for which the server waits up to `wait` seconds, and its objects."""
        content = self._post(
            f"{BUNDLED}/pull",
            request.SerializeToString(),
            timeout=_ANSWER + wait,
            headers={"edgewire-wait": str(wait)},
        )
        try:
            (_, head), *objects = parts_of(content, LARGEST)
        except ValueError as error:
            raise httpx.RemoteProtocolError(f"no bundle: {error}") from error
        return self._parsed(head, fleet_pb2.PullMessagesResponse), dict(objects)

    def push(self, bundle: bytes) -> fleet_pb2.PushMessagesResponse:
        """Send a reply and its objects: "request", the objects, and last perhaps "confirm"."""
        answer = self._post(f"{BUNDLED}/push", bundle, timeout=_ANSWER)
        return self._parsed(answer, fleet_pb2.PushMessagesResponse)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def _post(
        self, path: str, content: bytes, *, timeout: float, headers: dict[str, str] | None = None
    ) -> bytes:
        response = self._http.post(
            self._base + path,
            content=content,
            headers={**_BINARY, **self._signed(), **(headers or {})},
            timeout=httpx.Timeout(timeout, connect=min(_CONNECT, timeout)),
        )
        if not response.is_success:
            raise Refusal(response)
        return response.content

    def _signed(self) -> dict[str, str]:
        """Return the headers by which a server of Flower's knows its nodes."""
        stamp = datetime.datetime.now(datetime.UTC).isoformat()
        signature = sign_message(self._key, stamp.encode())
        return {
            "flwr-public-key": b64encode(self.public_key).decode(),
            "flwr-timestamp": stamp,
            "flwr-signature": b64encode(signature).decode(),
        }

    @staticmethod
    def _parsed(content: bytes, kind: type[Reply]) -> Reply:
        try:
            parsed: Reply = kind.FromString(content)
        except DecodeError as error:  # a proxy's page, say
            raise httpx.RemoteProtocolError(f"no {kind.DESCRIPTOR.name} came") from error
        return parsed


def _said(response: httpx.Response) -> tuple[int | None, str]:
    """Return Flower's code of an error, if it is one of Flower's, and the error in words."""
    try:
        said = json.loads(response.text)
        code, detail = said.get("code"), str(said.get("detail", ""))
    except (ValueError, AttributeError):
        code, detail = None, response.reason_phrase
    return code if isinstance(code, int) else None, detail or response.reason_phrase


def _ahead(response: httpx.Response) -> float | None:
    try:
        theirs = parsedate_to_datetime(response.headers["date"])
        return (datetime.datetime.now(datetime.UTC) - theirs).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
