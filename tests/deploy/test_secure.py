"""Secure sums of real nodes: as on the local engine, and no secret is on any disk."""

import signal
import sys
import threading
from itertools import count

import pytest

from edgewire.deploy import keys
from edgewire.deploy.certificates import node_files
from tests.deploy.processes import ROOT
from tests.deploy.servers import Field
from tests.runs import history_of, model_bytes, result_of
from tests.strategy.secure.test_rounds import dropping

pytestmark = pytest.mark.system
RUN = ["algorithm=fedavg_secure", "rounds=3", "nodes=4", "local_steps=2", "dataset=digits"]
RUN += ["eval_every=1", "network=ideal"]
RECORDED = str(ROOT / "tests" / "deploy" / "recorded.py")
NAMES = [f"node{number}" for number in range(4)]
SHARED, MASKED = 2, 3  # the replies of a node in a round of four messages


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    """Yield a server with TLS at which four nodes are registered."""
    folder = tmp_path_factory.mktemp("secure")
    with Field(folder) as made:
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

    def __init__(self, field, kills):
        self.field, self.run = field, next(self.runs)
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
             "--node-config", f"partition-id={node} num-partitions=4 secure=1 secure-least=3"],
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


@pytest.fixture
def ran(field, command):
    """Return a function that makes a run on real nodes, some of which kill themselves."""

    def call(kills=None):
        with Nodes(field, kills or {}) as nodes:
            address = f"127.0.0.1:{field.port}"
            code, said, folder = command(
                *RUN, "engine=superlink", f"engine.address={address}",
                f"engine.certificate={field.folder / 'keys' / 'ca.crt'}",
            )  # fmt: skip
        assert code == 0, said
        assert not any(nodes.kills.values())
        secrets = {
            bytes.fromhex(line)
            for file in nodes.secrets.glob(f"*-{nodes.run}") for line in file.read_text().split()
        }  # fmt: skip
        assert len(secrets) > 4 * 3 * 10
        for place in (field.folder, folder):
            for file in (each for each in place.rglob("*") if each.is_file()):
                content = file.read_bytes()
                for secret in secrets:
                    assert secret not in content, file
                    assert secret.hex().encode() not in content, file
        logs = [file.read_text() for file in field.folder.glob(f"node*-{nodes.run}.log")]
        said = (folder / "superlink.log").read_text()
        assert not any("honest-but-curious" in each for each in [said, *logs])
        return folder, said

    return call


@pytest.fixture
def local(command):
    """Return a function that makes the same run on the local engine."""

    def call():
        code, said, folder = command(*RUN, "engine=local", "engine.workers=1")
        assert code == 0, said
        return folder

    return call


def losses(folder):
    return [row["loss"] for row in history_of(folder)]


def test_real_nodes_have_the_model_of_the_local_engine(ran, local):
    (folder, _), simulated = ran(), local()
    assert model_bytes(folder) == model_bytes(simulated)
    here, there = result_of(folder), result_of(simulated)
    assert (here["failures"], here["train_loss"]) == (0, there["train_loss"])


def test_a_node_killed_after_its_update_is_in_the_sum(ran, local):
    (folder, said), simulated = ran({1: 4 + MASKED}), local()
    assert losses(folder) == losses(simulated)
    assert model_bytes(folder) == model_bytes(simulated)
    assert "has no sum" not in said
    assert result_of(folder)["failures"] == 1


def test_a_node_killed_after_its_shares_is_not(ran, local, monkeypatch):
    folder, said = ran({1: 4 + SHARED})
    dropping(monkeypatch, "train.step", 2, {2})  # the local engine's nodes begin at 1
    simulated = local()
    assert losses(folder)[:3] == losses(simulated)[:3]
    assert "has no sum" not in said
    assert [result_of(each)["failures"] for each in (folder, simulated)] == [1, 1]
    assert losses(folder)[3] < losses(folder)[2]
