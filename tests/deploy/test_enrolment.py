"""Tokens of enrolment: any order of calls, kills and days gives a name to one key at most."""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from fastapi import HTTPException
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.main import create_app
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from starlette.requests import Request

from edgewire.deploy import enrolment
from edgewire.deploy.enrolment import DAY, Enrolment
from edgewire.deploy.server import node_registry

BEGIN, TAKE = "/v1/control/edgewire/enrol", "/v1/fleet/edgewire/enrol"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # each call waits for the disk
FIRST = create_app().state.linkstate_factory.state()
NAMES = ["kitchen", "garden"]
KEYS = [public_key_to_bytes(generate_key_pairs()[1]) for _ in range(3)]
HOSTILE = [
    b"",
    b"\n",
    b"x",
    b"\xff" * 60_000,
    b"-----BEGIN PUBLIC KEY-----\n" * 100,
    b"\0" * 22 + b"\n",
]
WRONG_NAMES = ["", "../x", "a b", "\x1b[2J", "a" * 65, "é"]


class Enrolled(RuleBasedStateMachine):
    """`tokens`: each token's text with its name, end, renewal, and the key that has taken it."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.patch = pytest.MonkeyPatch()
        self.now, self.tokens = 0.0, {}
        clock = lambda: SimpleNamespace(timestamp=lambda: self.now)  # noqa: E731
        self.patch.setattr(enrolment.steady_clock, "now", clock)
        self.patch.setattr(enrolment, "WRONG", 0.0)
        (Path(self.folder.name) / "ca.crt").write_bytes(b"ca")
        self.restart()

    def teardown(self):
        self.patch.undo()
        self.folder.cleanup()

    def restart(self):
        """The server starts again: what is not in its files is gone."""
        folder = Path(self.folder.name)
        self.nodes = folder / "nodes.json"
        self.state = type(FIRST)(FIRST.federation_manager, FIRST.object_store)
        node_registry.keep_nodes(self.state, self.nodes)
        self.tool = Enrolment(folder / "tokens.json", self.nodes, folder / "ca.crt")

    def post(self, path, query="", content=b""):
        """Return the status and the text of the answer to a call."""

        async def receive():
            return {"type": "http.request", "body": content}

        factory = SimpleNamespace(state=lambda: self.state)
        app = SimpleNamespace(state=SimpleNamespace(linkstate_factory=factory))
        scope = {"type": "http", "method": "POST", "headers": [], "query_string": query.encode()}
        call = self.tool.routes()["POST", path]
        try:
            response = asyncio.run(call(Request(scope | {"app": app}, receive)))
        except HTTPException as error:
            return error.status_code, error.detail
        return response.status_code, response.body.decode()

    def node(self, name):
        """Return the registered node of a name, or None."""
        found = [each for each in self.state.nodes.values() if each.status != node_registry.GONE]
        return next((each for each in found if each.name == name), None)

    @rule(name=st.sampled_from(NAMES), usual=st.sampled_from([True, True, True, False]))
    def begin(self, name, usual):
        node = self.node(name)
        status, text = self.post(BEGIN, f"name={name}" + "&renew=1" * (usual == bool(node)))
        assert status == (200 if usual else 409)
        if usual:
            self.tokens = {k: v for k, v in self.tokens.items() if v.name != name}
            old = node and node.public_key
            token = SimpleNamespace(name=name, until=self.now + DAY, old=old, key=None)
            self.tokens[text] = token

    @precondition(lambda self: self.tokens)
    @rule(place=st.integers(0, 1), key=st.sampled_from(KEYS), killed=st.sampled_from([0, 0, 0, 1]))
    def take(self, place, key, killed):
        """A device enrols. If the server is killed meanwhile, the same device may come again."""
        text = list(self.tokens)[place % len(self.tokens)]
        token, owner = self.tokens[text], self.state.get_node_id_by_public_key(key)
        node, content = self.node(token.name), text.encode() + b"\n" + key
        if killed:
            with pytest.MonkeyPatch.context() as patch, suppress(ZeroDivisionError):
                patch.setattr(enrolment, "write_file", lambda *_: 1 / 0)
                self.post(TAKE, content=content)
            self.restart()
            return
        status, said = self.post(TAKE, content=content)
        other = token.key not in (None, key) or (owner is not None and node != self.of(owner))
        if token.old:
            fits = node is not None and node.public_key == token.old
        else:
            fits = node is None and token.key is None
        wanted = self.now < token.until and not other and (fits or owner is not None)
        assert (status, said == token.name) == ((200, True) if wanted else (410, False))
        if wanted:
            token.key = key
            assert token.old or self.node(token.name).public_key == key

    @rule(place=st.integers(0, 1), key=st.sampled_from(KEYS))
    def activate(self, place, key):
        """A node comes online with a key, whose signature Flower has checked."""
        taken = [each.key for each in self.tokens.values() if each.key]
        key = [*taken, key][min(place, len(taken))]
        owner = self.state.get_node_id_by_public_key(key)
        waits = [
            (token, node) for token in self.tokens.values()
            if token.key == key and self.now < token.until
            and (node := self.node(token.name)) and node.public_key == token.old
        ]  # fmt: skip
        ids = {token.name: node.node_id for token, node in waits}
        with suppress(FlowerError):  # it is unknown, or online already
            self.tool.activate(
                ActivateNodeRequest(public_key=key, heartbeat_interval=30), self.state
            )
        now = self.state.get_node_id_by_public_key(key)
        if owner is not None or not waits:
            assert now == owner
        else:
            assert now in ids.values()  # the node keeps its id

    @rule(name=st.sampled_from(NAMES), key=st.sampled_from(KEYS))
    def revoke_or_register(self, name, key):
        """The operator does so, without a token."""
        if (node := self.node(name)) is not None:
            self.state.delete_node(node.owner_aid, node.node_id)
        elif self.state.get_node_id_by_public_key(key) is None:
            self.state.create_node("<id:none>", "none", key, 30, name=name)
        node_registry.save(self.state, self.nodes)

    @rule(hours=st.sampled_from([1, 1, 12, 24]))
    def wait(self, hours):
        self.now += hours * 3600

    def of(self, number):
        return self.state.nodes[number]

    @invariant()
    def a_name_has_one_key(self):
        nodes = [each for each in self.state.nodes.values() if each.status != node_registry.GONE]
        assert len({each.name for each in nodes}) == len(nodes)
        assert len({each.public_key for each in nodes}) == len(nodes)
        there = {each.public_key: each.node_id for each in nodes}
        assert dict(self.state.node_public_key_to_node_id) == there
        kept = [e for e in node_registry.load(self.nodes) if e.status != node_registry.GONE]
        assert {each.node_id for each in kept} == set(there.values())


Enrolled.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestEnrolled = Enrolled.TestCase


def test_a_key_that_waits_for_one_name_and_gets_another_keeps_that():
    server = Enrolled()
    server.revoke_or_register("kitchen", KEYS[0])
    for place, name in enumerate(("kitchen", "garden")):
        server.begin(name, True)
        server.take(place, KEYS[1], 0)
    server.activate(0, KEYS[1])
    server.a_name_has_one_key()
    assert server.node("garden").public_key == KEYS[1]
    server.teardown()


@pytest.mark.parametrize("content", HOSTILE)
def test_hostile_bytes_give_one_line(content, monkeypatch):
    monkeypatch.setattr(enrolment, "WRONG", 0.0)
    server = Enrolled()
    status, token = server.post(BEGIN, "name=kitchen")
    assert status == 200
    for body, wanted in ((content, 410), (token.encode() + b"\n" + content, 400)):
        status, said = server.post(TAKE, content=body)
        assert (status, "\n" in said) == (wanted, False)
    for name in WRONG_NAMES:
        assert server.post(BEGIN, f"name={quote(name)}")[0] == 409
    server.teardown()


@pytest.mark.parametrize("text", [b"[1]", b"{", b'{"a": 1}', b'{"a": {"name": 1}}', b""])
def test_a_damaged_file_ends_all_tokens(tmp_path, text, caplog):
    (tmp_path / "tokens.json").write_bytes(text)
    Enrolment(tmp_path / "tokens.json", tmp_path / "nodes.json", tmp_path / "ca.crt")
    assert "all tokens have ended" in caplog.text
