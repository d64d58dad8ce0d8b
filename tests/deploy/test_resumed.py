"""The whole server killed, started again, the run resumed: as if nothing had happened."""

import subprocess
import sys

from benchmarks.fault_field import Field, TheRun, eventually
from tests.deploy.servers import ROOT

WORDS = ["algorithm=esgd", "rounds=60", "eval_every=60", "checkpoint_every=5", "batch_size=16"]


def test_a_run_whose_server_was_killed_ends_as_on_the_local_engine(tmp_path):
    local = tmp_path / "local"
    words = [*WORDS, "nodes=2", "engine=local", "engine.workers=1", f"hydra.run.dir={local}"]
    beside = subprocess.Popen(
        [sys.executable, "run.py", *words], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    with Field(tmp_path, 2) as field:
        run = TheRun(field, "run", WORDS)
        eventually(lambda: run.rounds > 20 or run.over)
        field.server.kill()
        field.server.wait()
        eventually(lambda: run.over)
        assert run.process.returncode == 1
        field.begin_server()
        run.resume()
        eventually(lambda: run.over)
        said = field.said(0)
    assert beside.wait() == 0
    assert run.process.returncode == 0, (tmp_path / "run.log").read_text()
    result = run.result()
    assert (result["ended"], result["failures"], result["client_updates"]) == ("finished", 0, 120)
    model = "model.safetensors"
    assert (run.folder / model).read_bytes() == (local / model).read_bytes()
    assert said.count("the state goes back to its checkpoint") <= 1
    assert not (run.folder / "superlink.json").exists()
