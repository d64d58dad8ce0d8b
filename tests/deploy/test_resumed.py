"""A run whose server is killed and restarted is resumed; the result is that of an unbroken run."""

import shutil
import signal
import threading

import pytest

from tests import fork_server
from tests.deploy.processes import eventually
from tests.proxied import EXCEPTIONS, dead_proxies
from tests.system.fault_field import Field, TheRun

WORDS = ["algorithm=esgd", "rounds=30", "eval_every=30", "checkpoint_every=5", "batch_size=16"]


class Proxied(Field):
    """Processes whose environment names proxies, also for connections to loopback."""

    popen = staticmethod(fork_server.Popen)

    def __init__(self, *given):
        super().__init__(*given)
        self.environment |= dict.fromkeys(EXCEPTIONS, "")


class Words(TheRun):
    """A run of the command in this process; `begin` only stores its arguments in `words`."""

    def begin(self, words):
        self.words = words


@pytest.fixture
def ended(cli, monkeypatch):
    """Return a function that runs `run.words` to the end; it returns exit code and output."""

    def call(run):
        for name in EXCEPTIONS:
            monkeypatch.setenv(name, "")
        return cli(*run.words)

    return call


def kill_server(field, run):
    eventually(lambda: run.rounds > 10)
    field.server.kill()
    field.server.wait()


@pytest.mark.system
def test_a_run_whose_server_was_killed_ends_as_on_the_local_engine(
    command, ended, tmp_path, monkeypatch
):
    """The result equals the local engine's, although the server was killed and proxies are dead.

    When asked to end, the server ends although clients wait for an answer.
    """
    dead_proxies(monkeypatch)
    (tmp_path / "field").mkdir()
    with Proxied(tmp_path / "field", 2) as field:
        _, _, local = command(*WORDS, "nodes=2", "engine=local", "engine.workers=1")
        run = Words(field, "run", WORDS)
        killer = threading.Thread(target=kill_server, args=(field, run))
        killer.start()
        code, printed = ended(run)
        killer.join()
        assert code == 1, printed
        field.begin_server()
        brought = run.folder / "checkpoint"
        brought.write_bytes(b"as one is that comes at Ctrl-C")
        run.resume("engine.address=127.0.0.1:1")
        code, printed = ended(run)
        assert code == 1
        assert "no SuperLink answers at 127.0.0.1:1" in printed.err
        shutil.copy(field.keys / "ca.crt", field.folder / "other.crt")
        where = [f"engine.address=localhost:{field.port}", "engine.wait=60"]
        run.resume(*where, f"engine.certificate={field.folder / 'other.crt'}")
        code, printed = ended(run)
        assert code == 0, printed
        said = field.told(0)
        field.server.terminate()
        assert field.server.wait(20) == -signal.SIGTERM
        assert "Traceback" not in (field.folder / "server.log").read_text()
    result = run.result()
    assert (result["ended"], result["failures"], result["client_updates"]) == ("finished", 0, 60)
    model = "model.safetensors"
    assert (run.folder / model).read_bytes() == (local / model).read_bytes()
    assert said.count("the state goes back to its checkpoint") <= 1
    assert not (run.folder / "superlink.json").exists()
    assert not brought.exists()
