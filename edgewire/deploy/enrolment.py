"""The server's part of enrolment: a token, used once, lets a device register a key that it made.

    POST /v1/control/edgewire/enrol?name=NAME  make a token for a name; `&renew=1`: it has a node
    GET  /v1/fleet/edgewire/ca                 the CA's certificate, which devices check by its hash
    POST /v1/fleet/edgewire/enrol              register a key: the token, a newline, the key in PEM

A token ends after a day, or when another one is made for its name. The first key that comes with a
token takes it. The same key may come again, because its device may not have got the answer.
A file holds the tokens' hashes, so tokens outlive a restart of the server.

A node that exists gets a second key by `renew`. It keeps its id, its messages and its first key
until it comes online with the second key, which ends the first one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from logging import getLogger
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import HTTPException
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    uses_nist_ec_curve,
)
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.servicer.fleet import fleet_handlers as fleet
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from edgewire.deploy.certificates import NAME
from edgewire.deploy.device.node_database import write_file
from edgewire.deploy.server import steady_clock
from edgewire.deploy.server.node_registry import GONE, save

DAY = 86400.0
WRONG = 1.0  # seconds until a wrong token is answered
AGAIN = "`python -m edgewire.deploy.keys enrol NAME` on the server makes another"
log = getLogger("edgewire")


@dataclass
class Token:
    """A token: the name that it gives, and its end in seconds since 1970.

    `replaces`: the key of the node that gets another one; "": it makes a node. `key`: the key that
    has taken the token. Keys are in PEM.
    """

    name: str
    until: float
    replaces: str
    key: str = ""


class Enrolment:
    """The tokens in a file, and the calls with them. `nodes`: the file of registered nodes."""

    def __init__(self, file: Path, nodes: Path, ca: Path) -> None:
        self.nodes, self._file, self._ca, self._lock = nodes, file, ca, Lock()
        self._tokens = dict[str, Token]()
        try:
            found = json.loads(file.read_bytes()) if file.exists() else {}
            self._tokens = {each: Token(**values) for each, values in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            log.warning("%s is damaged: all tokens have ended", file)

    def routes(self) -> dict[tuple[str, str], Callable[[Request], Awaitable[Response]]]:
        """Return the calls by their methods and paths."""
        return {
            ("POST", "/v1/control/edgewire/enrol"): self._begin,
            ("GET", "/v1/fleet/edgewire/ca"): self._certificate,
            ("POST", "/v1/fleet/edgewire/enrol"): self._enrol,
        }

    def activate(self, request: ActivateNodeRequest, state: Any) -> ActivateNodeResponse:
        """Let a node come online, whose key has been checked; a second key replaces the first."""
        key = request.public_key
        with self._lock:
            unknown = state.get_node_id_by_public_key(key) is None
            for token in self._valid().values() if unknown else ():
                node = _named(token.name, state)
                if node is None or node.public_key.decode() != token.replaces:
                    continue
                if token.key.encode() != key:
                    continue
                with state.lock:
                    del state.node_public_key_to_node_id[node.public_key]
                    node.public_key = key
                    state.node_public_key_to_node_id[key] = node.node_id
                save(state, self.nodes)
                log.info("%s has come with its new key: the old one has ended", token.name)
                break
        return fleet.activate_node(request, state)

    async def _begin(self, request: Request) -> Response:
        name, renew = request.query_params.get("name", ""), "renew" in request.query_params
        text, node = secrets.token_urlsafe(16), _named(name, get_linkstate(request))
        if not NAME.fullmatch(name):
            raise HTTPException(409, f"{name!r} is no name for a node")
        if renew != bool(node):
            why = "is not registered" if renew else "is registered: --renew gives it a new key"
            raise HTTPException(409, f"{name!r} {why}")
        with self._lock:
            kept = {k: each for k, each in self._valid().items() if each.name != name}
            until = steady_clock.now().timestamp() + DAY
            token = Token(name, until, node.public_key.decode() if node else "")
            self._tokens = {**kept, _digest(text.encode()): token}
            self._write()
        return PlainTextResponse(text)

    async def _certificate(self, request: Request) -> Response:
        return PlainTextResponse(self._ca.read_bytes())

    async def _enrol(self, request: Request) -> Response:
        text, _, key = (await request.body()).partition(b"\n")
        try:
            name = await run_in_threadpool(self._take, text, key, get_linkstate(request))
        except HTTPException:
            await asyncio.sleep(WRONG)  # a guess costs a connection for as long
            raise
        return PlainTextResponse(name)

    def _take(self, text: bytes, key: bytes, state: Any) -> str:
        """Register a key by a token; return the node's name. Raises `HTTPException`."""
        with self._lock:
            # The hash of a guess tells nothing about how near it is, however long this takes.
            if (token := self._valid().get(_digest(text))) is None:
                raise HTTPException(410, f"this token is unknown or older than a day: {AGAIN}")
            pem = _checked(key)
            if token.key not in ("", pem.decode()):
                log.warning("a second device has come with the token of %s", token.name)
                used = "a device has used this token already, and is installed if it is this one"
                raise HTTPException(410, f"{used}: {AGAIN}")
            node, owner = _named(token.name, state), state.get_node_id_by_public_key(pem)
            now = node.public_key.decode() if node else ""
            again = node is not None and node.node_id == owner
            first = owner is None and now == token.replaces and (now or not token.key)
            if not (again or first):
                raise HTTPException(410, f"this key or {token.name} is registered or gone: {AGAIN}")
            if node is None:
                state.create_node(
                    NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, pem, HEARTBEAT_DEFAULT_INTERVAL,
                    name=token.name,
                )  # fmt: skip
            token.key = pem.decode()
            self._write()  # after the node, so that a device whose server was killed may come again
        log.info("%s has enrolled", token.name)
        return token.name

    def _valid(self) -> dict[str, Token]:
        """Return the tokens that have not ended, by their hashes."""
        now = steady_clock.now().timestamp()
        self._tokens = {k: each for k, each in self._tokens.items() if each.until > now}
        return self._tokens

    def _write(self) -> None:
        found = {k: asdict(each) for k, each in self._tokens.items()}
        try:
            write_file(self._file, json.dumps(found).encode())
        except OSError as error:
            text = f"{self._file} cannot be written: {error.strerror}"
            raise HTTPException(507, text) from error


def _digest(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()


def _checked(key: bytes) -> bytes:
    """Return a public key as nodes send it. Raises `HTTPException` for any other bytes."""
    try:
        found = bytes_to_public_key(key)
        if not uses_nist_ec_curve(found):
            raise ValueError("an elliptic-curve key of NIST is wanted")
        return public_key_to_bytes(found)
    except Exception as error:  # hostile bytes may raise anything
        raise HTTPException(400, "this is no public key of a node") from error


def _named(name: str, state: Any) -> NodeInfo | None:
    with state.lock:
        found = (each for each in state.nodes.values() if each.status != GONE)
        return next((each for each in found if each.name == name), None)
