"""What a run has saved of its configuration, run again."""

import json

import pytest
import torch
from safetensors.torch import load_file

WORDS = ["algorithm=fedavg_f2i", "strategy=fedadam", "rounds=2", "engine.workers=1", "seed=3"]


@pytest.fixture
def run(cli, tmp_path):
    """Run the command in a folder; return (exit code, stderr, its result, its weights)."""

    def call(name, *words):
        folder = tmp_path / name
        code, printed = cli(*words, f"hydra.run.dir={folder}")
        if code:
            return code, printed.err, None, None
        result = json.loads((folder / "result.json").read_text())
        return code, printed.err, result, load_file(folder / "model.safetensors")

    return call


def test_it_gives_the_same_again_and_again(run, tmp_path, monkeypatch):
    _, _, _, weights = run("first", *WORDS)
    monkeypatch.chdir(tmp_path)
    for name, path in (("second", "first"), ("third", tmp_path / "second")):
        code, _, result, again = run(
            name, "--config-path", f"{path}/.hydra", "--config-name=config"
        )
        assert code == 0
        assert result["seed"] == 3
        assert all(torch.equal(weights[key], again[key]) for key in weights)


def test_with_other_values_and_other_choices_of_groups(run, tmp_path):
    run("first", *WORDS)
    words = ["rounds=1", "network=adsl", "compression=none", "seed=4"]
    code, _, result, _ = run("second", "--config-path", f"{tmp_path}/first/.hydra", *words)
    assert code == 0
    assert (result["rounds"], result["seed"]) == (1, 4)
    assert result["uplink_ratio"] < 1.1
    once = result["virtual_seconds"]
    code, _, result, _ = run("third", "--config-path", f"{tmp_path}/second/.hydra")
    assert result["virtual_seconds"] == once > 0.1


def test_asynchronous(run, tmp_path):
    words = ["algorithm=adacomp", "nodes=3", "strategy.pushes=6", "eval_every=2"]
    _, _, _, weights = run("first", *words)
    _, _, result, again = run("second", "--config-path", f"{tmp_path}/first/.hydra")
    assert result["client_updates"] == 6
    assert all(torch.equal(weights[key], again[key]) for key in weights)


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("algorithm=esgd", "would change all of a saved one"),
        ("foo=1", "no key foo"),
        ("network=isdn", "no network=isdn. there are: adsl"),
        ("nodes=0", "nodes must be a number of at least 1"),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, word, part):
    run("first", *WORDS, "rounds=1")
    code, printed, _, _ = run("second", "--config-path", f"{tmp_path}/first/.hydra", word)
    assert code == 2
    assert part in printed
    assert len(printed.strip().splitlines()) == 1


def test_a_folder_without_one_is_named(run, tmp_path):
    code, printed, _, _ = run("first", "--config-path", str(tmp_path))
    assert code == 2
    assert printed == f"error: there is no {tmp_path / 'config.yaml'}\n"


def test_a_sweep_over_one_lists_what_fails(cli, run, tmp_path):
    run("first", *WORDS)
    words = ["-m", "--config-path", f"{tmp_path}/first/.hydra", "rounds=0,1"]
    code, printed = cli(*words, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert code == 2
    assert "1 of 2 jobs failed" in printed.err
    assert (tmp_path / "sweep" / "1" / "result.json").exists()
