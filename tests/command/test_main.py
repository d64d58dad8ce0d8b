"""The command line is parsed, and its mistakes are reported, before torch is loaded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command.saved_config import command_line, options_first
from conf import ConfigError

ROOT = Path(__file__).parents[2]
# One process runs all cases and reports for each: output, exit code, whether torch was loaded.
CALL = """
import contextlib, io, json, sys
from command.main import cli
for words in json.loads(sys.argv[1]):
    sys.argv[1:], out, err, code = words, io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli()
        except SystemExit as end:
            code = end.code
    said = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
    print(json.dumps({**said, "torch": "torch" in sys.modules}))
"""
KEY = "there is no key roundz; did you mean rounds?"
MISTAKES = [
    (["roundz=3"], KEY),
    (["rounds=-1"], "rounds must be a number of at least 1, not -1"),
    (["rounds=many"], "'many' of type 'str' could not be converted to Integer"),
    (["algorithm=nothing"], "there is no algorithm=nothing"),
    (["network.waiting=long"], "network.waiting must be one of none, uniform"),
    (["rounds='"], "cannot read"),
    (["algorithm=sgd", "strategy.pushes=3"], "belongs to strategy=asynchronous"),
    (["compression=topk", "compression.density=7"], "density of topk must be above 0"),
    (["engine.workers=-1"], "engine.workers must be at least 0"),
    (["engine=ray", "engine.actors=-1"], "at least one actor"),
    (["engine=ray", "network=adsl"], "no virtual clock"),
    (["engine=superlink"], "needs engine.address"),
    (["strategy.fraction_train=2"], "strategy.fraction_train must be between 0 and 1"),
    (["strategy=krum", "strategy.num_malicious_nodes=8"], "needs 19 nodes a round"),
    (["--rounds", "3"], "unrecognized arguments: --rounds"),
    (["resume=/nowhere"], "/nowhere"),
    (["experiment=esgd_baselines"], "is a sweep: add -m"),
]


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    sweep = [f"hydra.sweep.dir={folder}/sweep", "-m", "seed=0,1", "rounds=-1"]
    single = f"hydra.run.dir={folder}/run"
    calls = [w if w[0].startswith("resume=") else [single, *w] for w, _ in MISTAKES]
    calls += [sweep, ["--help"], ["nodes=3", "--help"]]
    done = subprocess.run(
        [sys.executable, "-c", CALL, json.dumps(calls)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[" ".join(w) for w, _ in MISTAKES])
def test_a_mistake_is_reported_before_torch_is_loaded(called, number):
    found = called[number]
    assert (found["code"], found["torch"]) == (2, False)
    (line,) = found["err"].splitlines()
    assert line.startswith("error: ")
    assert MISTAKES[number][1] in line
    assert not found["out"]


def test_a_mistake_of_a_sweep_is_reported_before_torch_is_loaded(called):
    found = called[len(MISTAKES)]
    assert (found["code"], found["torch"]) == (2, False)
    assert found["err"].count("error: rounds must be a number of at least 1") == 2
    assert "2 of 2 jobs failed" in found["err"]


def test_help_is_printed_before_torch_is_loaded(called):
    for found, nodes in zip(called[-2:], ("nodes: 10\n", "nodes: 3\n"), strict=True):
        assert (found["code"], found["torch"]) == (0, False)
        assert nodes in found["out"]
        assert "fedavg_f2i_both, " in found["out"]
        assert "conf/network/" not in found["err"]


OPTIONS = [["-m"], ["--multirun"], ["--config-name", "config"], ["--cfg", "job"], ["--resolve"]]
OVERRIDES = st.lists(st.sampled_from(["nodes=2", "seed=0,1", "~model", "+a=1", "nodes=2", "x"]))


@given(options=st.lists(st.sampled_from(OPTIONS), unique_by=tuple), words=OVERRIDES, data=st.data())
def test_options_may_stand_anywhere(options, words, data):
    mixed = data.draw(st.permutations([*options, *([word] for word in words)]))
    given, ordered = options_first([word for part in mixed for word in part])
    said = [word for part in mixed if len(part) == 1 and part not in OPTIONS for word in part]
    assert given.overrides == said
    assert ordered[len(ordered) - len(said) :] == said
    first = [word for part in mixed if part in OPTIONS for word in part]
    assert ordered[: len(first)] == first


@pytest.mark.parametrize("words", [["--wrokers", "2"], ["nodes=2", "--rounds=3"], ["--cfg", "x"]])
def test_an_unknown_option_gives_one_line(words, capsys):
    with pytest.raises(ConfigError, match=r"--(wrokers|rounds|cfg).*--hydra-help the options$"):
        command_line(words)
    assert capsys.readouterr() == ("", "")
