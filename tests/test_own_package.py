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
    "compression.chunk=x": "compression.chunk: Value 'x' of type 'str' could not be converted",
    "compression.chunkk=3": "no key compression.chunkk; did you mean compression.chunk?",
    "compression.density=0.1": "option density does not go with sparsifier blocks",
    "compression.sparsifier=topk": "option chunk does not go with sparsifier topk",
    "downlink.chunk=3": "downlink: option chunk does not go with sparsifier dense",
    "gradients.chunk=3": "gradients: option chunk does not go with sparsifier dense",
    "+gradients.chunk=[3]": "gradients.chunk",
    "model._target_=nett": "it is in none of packages=[mine]; did you mean net?",
    "model._target_=np": "model._target_=mine.np cannot be called",
    "model._target_=dataclass": "model._target_=mine.dataclass is of dataclasses: name it by that",
    "dataset.sampels=3": "sampels is not an option of mine.table; did you mean dataset.samples?",
    "model.hidden=x": "model.hidden must be int, not 'x'",
    "packages=[]": "_target_=Clipped: give PACKAGE.NAME, or packages=[PACKAGE] beside it",
    "packages=[mine@0123456789abcdef]": "another version of mine",
}


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    """Run with 1 and 2 workers and with each wrong word, in one process of another folder.

    Return the exit codes with the errors, and the folders of the two runs.
    """
    top = tmp_path_factory.mktemp("own")
    words, folders = written(top / "own"), [top / "one", top / "two"]
    runs = [f"engine.workers={number}" for number in (1, 2)]
    calls = [[*words, f"hydra.run.dir={f}", w] for f, w in zip(folders, runs, strict=True)]
    calls += [[*words, f"hydra.run.dir={top / 'wrong'}", word] for word in WRONG]
    (top / "calls.py").write_text(CALLS)
    done = fork_server.run(
        [sys.executable, str(top / "calls.py"), json.dumps(calls)],
        cwd=top, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], folders


def test_it_runs_with_any_number_of_workers(called):
    found, (one, two) = called
    assert found[:2] == [[0, ""], [0, ""]]
    assert model_bytes(one) == model_bytes(two)
    result = result_of(one)
    assert (result["dataset"], result["model"], result["failures"]) == ("table", "net", 0)
    assert result["best_absolute"] == result["absolute"] < 3


def test_a_wrong_use_is_one_line(called):
    found, _ = called
    for (code, said), (word, line) in zip(found[2:], WRONG.items(), strict=True):
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
