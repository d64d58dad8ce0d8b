"""Flower apps learn as well with the two lines that add compression as without, in fewer bytes."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from papers.benchmarks.apps.compressed_apps import WAYS, compressed_copy
from tests.simulation.any_app.apps import APPS, simulate_here, summary

NODES = 4
OUTPUTS = {
    "advanced_pytorch": "best.pt",  # in the folder given by the app's config
    "custom_strategy": "model.pt",
    "quickstart_pytorch": "model.pt",
    "sklearn_float64": "model.npz",
}
ROUNDS = {"quickstart_pytorch": 6, "sklearn_float64": 5}  # for apps with few rounds by default
# Nodes have few test samples: even between a run's last rounds accuracies vary by so much.
NOISE = 0.04
# First whole models are sent. Headers matter, because models have only 5 to 80 kB.
FEWER = {"up": {"int8": 3.0, "topk": 6.0}, "down": {"int8": 2.5, "topk": 2.5}}


def run(app, output, monkeypatch, capfd):
    """Run an app in this process; return its output, its models and its log."""
    output.mkdir(exist_ok=True)
    target = output if OUTPUTS[app.name] == "best.pt" else output / OUTPUTS[app.name]
    words = ["--nodes", NODES, "--workers", 1, "-c", f'output="{target}"']
    if app.name in ROUNDS:
        words += ["-c", f"num-server-rounds={ROUNDS[app.name]}"]
    printed = simulate_here(monkeypatch, capfd, app, *words)
    file = output / OUTPUTS[app.name]
    model = dict(np.load(file)) if file.suffix == ".npz" else torch.load(file)
    log = output / "log.json"
    log = json.loads(log.read_text()) if log.exists() else []
    log = [{key: value for key, value in entry.items() if key != "seconds"} for entry in log]
    return printed, {name: np.asarray(value) for name, value in model.items()}, log


def accuracy(printed):
    return float(re.search(r"final accuracy ([\d.]+)", printed)[1])


@pytest.fixture
def plain(monkeypatch, capfd, tmp_path_factory, cache={}):  # noqa: B006
    """Return a function that runs an app without compression, once per app."""

    def get(name):
        if name not in cache:
            folder = tmp_path_factory.mktemp("plain")
            app = shutil.copytree(APPS / name, folder / name)
            cache[name] = run(app, folder / "out", monkeypatch, capfd)
        return cache[name]

    return get


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_two_lines_change_only_the_bytes(name, way, plain, tmp_path, monkeypatch, capfd):
    app = compressed_copy(APPS / name, tmp_path, WAYS[way])
    expected, model, log = plain(name)
    printed, found, found_log = run(app, tmp_path / "out", monkeypatch, capfd)
    before, after = summary(expected), summary(printed)
    assert after["failed"] == 0
    assert after["sent"] == before["sent"]
    assert model.keys() == found.keys()
    assert [(a.dtype, a.shape) for a in model.values()] == [
        (a.dtype, a.shape) for a in found.values()
    ]
    if way == "dense":
        for tensor, value in model.items():
            np.testing.assert_array_equal(value, found[tensor])
        ends = [re.search("final accuracy .*", text)[0] for text in (printed, expected)]
        assert (ends[0], found_log) == (ends[1], log)
    else:
        assert abs(accuracy(printed) - accuracy(expected)) <= NOISE
        assert before["up"] / after["up"] > FEWER["up"][way]
        assert before["down"] / after["down"] > FEWER["down"][way]


@pytest.mark.system
def test_a_run_continues_from_its_saved_model_and_log(tmp_path, monkeypatch, capfd):
    """The strategy restores its own files; nodes start without a state and get the whole model."""
    app = compressed_copy(APPS / "advanced_pytorch", tmp_path, WAYS["topk"])
    _, best, log = run(app, tmp_path / "out", monkeypatch, capfd)
    printed, better, longer = run(app, tmp_path / "out", monkeypatch, capfd)
    assert longer[: len(log)] == log
    assert [entry["round"] for entry in longer] == list(range(1, 2 * len(log) + 1))
    assert longer[len(log)]["loss"] < log[0]["loss"] / 2  # training did not start anew
    assert list(best) == list(better)
    assert summary(printed)["failed"] == 0


def test_all_example_apps_are_tested():
    assert sorted(OUTPUTS) == sorted(path.name for path in Path(APPS).iterdir())
