"""Secure sums of real nodes: as on the local engine, and no secret is on any disk."""

import os
import signal
import sys
import threading
from itertools import count

import pytest

from edgewire.compression.secure.certificates import OPTIONS
from edgewire.deploy import keys
from edgewire.deploy.certificates import certificate_file, node_files
from tests.deploy.processes import ROOT
from tests.deploy.servers import Field
from tests.runs import history_of, model_bytes, result_of
from tests.strategy.secure.test_rounds import dropping

pytestmark = pytest.mark.system
RUN = ["algorithm=fedavg_secure", "rounds=3", "nodes=4", "local_steps=2", "dataset=digits",
       "secure.least=3"]  # fmt: skip
RUN += ["eval_every=1", "network=ideal"]
RECORDED = str(ROOT / "tests" / "deploy" / "recorded.py")
NAMES = [f"node{number}" for number in range(4)]
SHARED, MASKED, UNMASKED = 2, 3, 4  # the replies of a node in a round of four messages


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    """Yield a server with TLS at which four nodes are registered."""
    folder = tmp_path_factory.mktemp("secure")
    with Field(folder) as made:
        made.local = None
        tool = ["--keys", str(folder / "keys"), "--superlink", f"127.0.0.1:{made.port}"]
        assert keys.main([*tool, "server", "127.0.0.1"]) == 0
        assert keys.main([*tool, "node", *NAMES]) == 0
        made.environment["SSL_CERT_FILE"] = str(folder / "keys" / "ca.crt")
        made.serve(["--keys", str(folder / "keys"), "--state", str(folder / "server")])
        assert keys.main([*tool, "register", *NAMES]) == 0
        yield made


class Nodes:
    """Four nodes of a field; `kills`: by node after how many replies it kills itself, once."""

    runs = count()

    def __init__(self, field, kills, config):
        self.field, self.run, self.config = field, next(self.runs), config
        self.secrets = field.folder.parent / f"{field.folder.name}-secrets"
        self.secrets.mkdir(exist_ok=True)
        self.kills = {node: kills.get(node, 0) for node in range(4)}
        self.processes = {node: self._start(node) for node in range(4)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _start(self, node):
        made = self.field.folder / "keys"
        key, _ = node_files(made, NAMES[node])
        recorded = self.secrets / f"{node}-{self.run}"
        return self.field.start(
            [sys.executable, RECORDED, str(recorded), str(self.kills[node]), "--",
             "--superlink", f"127.0.0.1:{self.field.port}",
             "--root-certificates", str(made / "ca.crt"),
             "--auth-supernode-private-key", str(key), "--state",
             str(self.field.folder / f"{NAMES[node]}-{self.run}"),
             "--node-config", f"partition-id={node} num-partitions=4 {self.config}"],
            f"{NAMES[node]}-{self.run}.log",
        )  # fmt: skip

    def _look(self):
        while not self._over.wait(0.05):
            for node, process in self.processes.items():
                if self.kills[node] and process.poll() is not None:
                    assert process.wait() == -signal.SIGKILL
                    self.kills[node] = 0
                    self.processes[node] = self._start(node)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


def expect_hidden(secrets, *folders):
    for file in (each for folder in folders for each in folder.rglob("*") if each.is_file()):
        content = file.read_bytes()
        for secret in secrets:
            assert secret not in content, file
            assert secret.hex().encode() not in content, file


@pytest.fixture
def ran(field, command):
    """Return a function that makes a run on real nodes, some of which kill themselves."""

    def call(kills=None, config="secure=1 secure-least=3", words=()):
        with Nodes(field, kills or {}, config) as nodes:
            address = f"127.0.0.1:{field.port}"
            code, said, folder = command(
                *RUN, *words, "engine=superlink", f"engine.address={address}",
                f"engine.certificate={field.folder / 'keys' / 'ca.crt'}",
            )  # fmt: skip
        assert code == 0, said
        assert not any(nodes.kills.values())
        secrets = {
            bytes.fromhex(line)
            for file in nodes.secrets.glob(f"*-{nodes.run}") for line in file.read_text().split()
        }  # fmt: skip
        assert len(secrets) > 4 * 10 * (1 if words else 3)
        expect_hidden(secrets, field.folder, folder)
        logs = [file.read_text() for file in field.folder.glob(f"node*-{nodes.run}.log")]
        said = (folder / "superlink.log").read_text()
        warned = [each.count("honest-but-curious") for each in (said, *logs)]
        assert warned == [int("secure-ca" in config)] * 5
        return folder, said

    return call


@pytest.fixture
def local(field, command):
    """Return a function that makes the same run on the local engine; once, unless `other`."""

    def call(other=False):
        if field.local is None or other:
            code, said, folder = command(*RUN, "engine=local", "engine.workers=1")
            assert code == 0, said
            if other:
                return folder
            field.local = folder
        return field.local

    return call


def losses(folder):
    return [row["loss"] for row in history_of(folder)]


def test_real_nodes_have_the_model_of_the_local_engine(ran, local):
    (folder, _), simulated = ran(), local()
    assert model_bytes(folder) == model_bytes(simulated)
    here, there = result_of(folder), result_of(simulated)
    assert (here["failures"], here["train_loss"]) == (0, there["train_loss"])


def test_without_certificates_server_and_nodes_warn_once(ran):
    _, said = ran(config='secure-ca=""', words=["rounds=1"])
    assert "4 of 4 nodes have no certificate: the secure sum hides single updates from" in said


def test_nodes_killed_after_their_updates_are_in_the_sum(ran, local):
    """One of two nodes that are killed in the second round lacks a reply."""
    (folder, said), simulated = ran({1: 4 + MASKED, 2: 4 + UNMASKED}), local()
    # A node that starts again has no residual, and of four nodes three are too few to keep theirs:
    # the third round begins without them.
    assert losses(folder)[:3] == losses(simulated)[:3]
    assert "has no sum" not in said
    assert "has the updates of nodes that sent no shares for it" in " ".join(said.split())
    assert result_of(folder)["failures"] == 0


def test_a_node_killed_after_its_shares_is_not(ran, local, monkeypatch):
    folder, said = ran({1: 4 + SHARED})
    dropping(monkeypatch, "train.step", 2, {2})  # the local engine's nodes begin at 1
    simulated = local(other=True)
    assert losses(folder)[:3] == losses(simulated)[:3]
    assert "has no sum" not in said
    assert [result_of(each)["failures"] for each in (folder, simulated)] == [1, 1]
    assert losses(folder)[3] < losses(folder)[2]


def test_flowers_own_server_and_nodes_have_the_same_model(command, monkeypatch, tmp_path_factory):
    """Flower starts a process for each message, so there is one round."""
    folder, made, drawn = (tmp_path_factory.mktemp(name) for name in ("flowers", "keys", "drawn"))
    tool, run = ["--keys", str(made)], [*RUN, "nodes=3", "rounds=1"]
    assert keys.main([*tool, "server", "127.0.0.1"]) == 0
    assert keys.main([*tool, "node", *NAMES[:3]]) == 0
    monkeypatch.setenv("EDGEWIRE_OUTPUT", str(folder / "output"))  # of the server, too
    with Field(folder) as field:
        field.superlink()
        field.environment["DRAWN"] = str(drawn / "drawn")
        field.environment["PYTHONPATH"] = f"{ROOT / 'tests/deploy/recording'}{os.pathsep}{ROOT}"
        for number, name in enumerate(NAMES[:3]):
            files = made / "ca.crt", certificate_file(made, name), node_files(made, name)[0]
            own = " ".join(f'{key}="{file}"' for key, file in zip(OPTIONS, files, strict=True))
            place = f"partition-id={number} num-partitions=3"
            field.stock_node(name, "--node-config", f"{place} secure=true {own}")
        field.online(3)
        code, said, there = command(
            *run, "engine=superlink", f"engine.address=127.0.0.1:{field.port}"
        )
        assert code == 0, said
    _, _, here = command(*run, "engine=local", "engine.workers=1")
    assert model_bytes(there) == model_bytes(here)
    assert result_of(there)["failures"] == 0
    secrets = [bytes.fromhex(line) for line in (drawn / "drawn").read_text().split()]
    assert len(secrets) > 3 * 2
    expect_hidden(secrets, folder, there)
