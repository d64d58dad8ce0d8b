"""A package in a folder of the user's runs on every engine, without a change of the project.

Each run is a process of its own, because a registered method stays registered.
"""

import json
import os
import sys

import pytest

from edgewire.conf.own_packages import fingerprint
from tests import fork_server
from tests.conf.hostile import plain
from tests.deploy.processes import eventually
from tests.deploy.servers import Field
from tests.own_package import written
from tests.runs import ROOT, model_bytes, result_of

# It calls the command for each list of words, and prints exit codes and standard error as JSON.
CALLS = """
import contextlib, io, json, sys
from edgewire.command.main import cli
from tests.quick_hydra import quicken
quicken()
for words in json.loads(sys.argv[1]):
    sys.argv[1:], err, code = words, io.StringIO(), 0
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            cli()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, err.getvalue()]))
"""


@pytest.fixture
def own(tmp_path):
    """Write the package; return a function that runs the command: exit code, error and folder."""
    words = written(tmp_path / "own")

    def call(*more, name="run"):
        folder = tmp_path / name
        done = fork_server.run(
            [sys.executable, str(ROOT / "run.py"), *words, f"hydra.run.dir={folder}", *more],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        )  # fmt: skip
        call.out = " ".join(done.stdout.split())
        return done.returncode, done.stderr, folder

    return call


WRONG = {
    "compression.chunkk=3": "no key compression.chunkk; did you mean compression.chunk?",
    "downlink.chunk=3": "downlink: option chunk does not go with sparsifier dense",
    "model._target_=nett": "it is in none of packages=[mine]; give PACKAGE.NAME",
    "model._target_=np": "model._target_=mine.np cannot be called",
    "packages=[]": "_target_=Clipped: give PACKAGE.NAME, or packages=[PACKAGE] beside it",
    "packages=[mine@0123456789abcdef]": "another version of mine",
}


@pytest.mark.system
def test_it_runs_in_two_workers_and_a_wrong_use_is_one_line(tmp_path):
    """One process of another folder makes a run, and calls the command with each wrong word."""
    words, folder = written(tmp_path / "own"), tmp_path / "two"
    calls = [[*words, f"hydra.run.dir={folder}", "engine.workers=2"]]
    calls += [[*words, f"hydra.run.dir={tmp_path / 'wrong'}", word] for word in WRONG]
    (tmp_path / "calls.py").write_text(CALLS)
    done = fork_server.run(
        [sys.executable, str(tmp_path / "calls.py"), json.dumps(calls)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *found = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == [0, ""]
    result = result_of(folder)
    assert (result["dataset"], result["model"], result["failures"]) == ("table", "net", 0)
    assert result["best_absolute"] == result["absolute"] < 3
    for (code, said), (word, line) in zip(found, WRONG.items(), strict=True):
        assert (code, said.count("\n")) == (2, 1), (word, said)
        assert line in said, word


@pytest.mark.system
def test_it_runs_on_ray(own):
    code, said, ray = own("engine=ray", name="ray")
    assert (code, said) == (0, "")
    _, _, local = own("engine.workers=1")
    assert model_bytes(ray) == model_bytes(local)


@pytest.mark.system
def test_it_runs_on_nodes_that_allow_it(own, tmp_path):
    """Server and nodes get the package with the app, and each has to allow it."""
    with Field(tmp_path) as field:
        at_server = {"EDGEWIRE_ALLOW": "mine"}
        field.environment |= at_server
        field.serve(["--insecure", "--host", "127.0.0.1", "--state", str(tmp_path / "server")])
        for name in at_server:
            del field.environment[name]
        place = "num-partitions=2 partition-id={}"
        words = ["engine=superlink", f"engine.address=127.0.0.1:{field.port}"]
        field.node("first", "--node-config", f'{place.format(0)} allow="mine"')
        refusing = field.node("second", "--node-config", place.format(1))
        code, said, without = own(*words, name="without")
        assert (code, said) == (0, "")
        assert own.out.count("left out: packages=[mine]: a run that is submitted names") == 1
        assert result_of(without)["client_updates"] == result_of(without)["failures"] == 4
        refusing.terminate()
        refusing.wait()
        field.node("third", "--node-config", f'{place.format(1)} allow="mine"')
        code, said, there = own(*words, name="there")
        assert (code, said) == (0, "")
    _, _, local = own("engine.workers=1", name="local")
    assert model_bytes(there) == model_bytes(local)


@pytest.mark.system
def test_nodes_without_the_package_or_with_another_version_say_so(tmp_path, monkeypatch):
    """The app comes without the package, as `flwr run` sends it: each machine has its own copy."""
    monkeypatch.setenv("EDGEWIRE_PACKAGES", str(tmp_path / "own"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    fingerprint.cache_clear()
    written(tmp_path / "own")
    written(tmp_path / "other")
    with (tmp_path / "other" / "mine.py").open("a") as file:
        file.write("# another version\n")
    config = {**plain("nodes=2", "rounds=2"), "packages": [f"mine@{fingerprint('mine')}"]}
    with Field(tmp_path) as field:
        field.environment |= {"EDGEWIRE_ALLOW": "mine", "EDGEWIRE_PACKAGES": ""}
        alone = field.environment["PYTHONPATH"]
        field.environment["PYTHONPATH"] = f"{alone}{os.pathsep}{tmp_path / 'own'}"
        field.serve(["--insecure", "--host", "127.0.0.1", "--state", str(tmp_path / "server")])
        field.connect()
        for number, path in enumerate((alone, f"{alone}{os.pathsep}{tmp_path / 'other'}")):
            field.environment["PYTHONPATH"] = path
            place = f"num-partitions=2 partition-id={number}"
            field.node(f"node{number}", "--node-config", place)
        field.online(2)
        field.submit(ROOT, config=json.dumps(config))
        logs = [f"node{number}.log" for number in (0, 1)]
        eventually(lambda: all("ERROR" in field.said(log) for log in logs))
        said = [field.said(log) for log in logs]
    for text, line in zip(said, ("there is no mine here", "another version of mine"), strict=True):
        told = [each for each in text.splitlines() if "ERROR" in each]
        assert "packages=[mine]: " in told[0]
        assert line in told[0]
        assert "Traceback" not in text
