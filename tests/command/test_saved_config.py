"""Hydra's command line: options anywhere, saved configurations of runs, words of a sweep."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from edgewire.command import main
from edgewire.command.saved_config import (
    command_line,
    continuing,
    options_first,
    quoted,
    started_in,
)
from edgewire.conf.schema import ConfigError

WORDS = ["algorithm=fedavg_f2i", "strategy=fedadam", "rounds=1", "engine.workers=1", "seed=3"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Make a run, and return its folder."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["run.py", *WORDS, f"hydra.run.dir={folder}"])
        main.cli()
    return folder


@pytest.fixture
def again(cli, tmp_path):
    """Return a function that runs a saved configuration.

    It returns the exit code, stderr, the result, the weights and the folder.
    """
    count = 0

    def call(saved, *words):
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        code, printed = cli("--config-path", f"{saved}/.hydra", *words, f"hydra.run.dir={folder}")
        if code:
            return code, printed.err, None, None, folder
        result = json.loads((folder / "result.json").read_text())
        return code, printed.err, result, load_file(folder / "model.safetensors"), folder

    return call


def test_a_saved_configuration_gives_the_same_result(first, again, monkeypatch):
    weights = load_file(first / "model.safetensors")
    monkeypatch.chdir(first.parent)
    saved = first.name  # relative to the user's working folder
    for _ in range(2):
        code, error, result, same, saved = again(saved, "--config-name=config")
        assert (code, error, result["seed"]) == (0, "", 3)
        assert all(torch.equal(weights[key], same[key]) for key in weights)


def test_with_other_values(first, again):
    _, _, result, _, folder = again(first, "rounds=2", "network.latency_ms=9", "seed=4")
    assert (result["rounds"], result["seed"]) == (2, 4)
    assert result["virtual_seconds"] > 0.03
    assert again(folder)[2]["virtual_seconds"] == result["virtual_seconds"]


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("algorithm=esgd", "algorithm=esgd: a saved configuration takes single keys"),
        ("foo=1", "no key foo"),
        ("nodes=0", "nodes must be a number of at least 1"),
    ],
)
def test_a_mistake_gives_one_line(first, again, word, part):
    code, printed, *_ = again(first, word)
    assert code == 2
    assert part in printed
    assert len(printed.strip().splitlines()) == 1


def test_a_folder_without_a_configuration_is_named(again, tmp_path):
    code, printed, *_ = again(tmp_path)
    assert code == 2
    assert printed == f"error: there is no {tmp_path / '.hydra' / 'config.yaml'}\n"


@given(st.text() | st.text(alphabet="\\'\n${}x"))
def test_hydra_reads_a_quoted_text_as_it_was(text):
    assert OverridesParser.create().parse_override(f"key={quoted(text)}").value() == text


@given(st.sampled_from(["${lr}", "${oc.env:HOME}", "$x", "'\\${x}'", "a b"]))
def test_a_continued_sweep_has_the_words_of_the_sweep(word):
    with TemporaryDirectory() as folder:
        hydra = {"overrides": {"hydra": [], "task": [f"device={word}", "seed=0,1"]}}
        hydra |= {"runtime": {"config_sources": [], "cwd": "/"}, "job": {"config_name": "config"}}
        Path(folder, "multirun.yaml").write_text(json.dumps({"hydra": hydra}))
        assert f"device={word}" in continuing([f"continue={folder}"])
        assert started_in([f"continue={folder}"]) == Path("/")
        assert started_in(["continue=/nowhere"]) == started_in(["seed=1"]) == Path.cwd()


def test_a_sweep_over_a_saved_configuration_lists_failed_jobs(first, cli, tmp_path):
    words = ["-m", "--config-path", f"{first}/.hydra", "rounds=0,1"]
    code, printed = cli(*words, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert code == 2
    assert "1 of 2 jobs failed" in printed.err
    assert (tmp_path / "sweep" / "1" / "result.json").exists()


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
