"""Models that a run has saved, for use: equal to the run's, and of classes that may be named."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from edgewire.conf.build import data_of
from edgewire.conf.saved_model import predictor_of
from edgewire.conf.schema import ConfigError
from edgewire.task.errors import TaskError
from edgewire.task.model_info import read_model
from tests.local_runs import local_run
from tests.runs import configured, result_of, write_photos

SMALL = ("rounds=2", "nodes=2")


def ran(folder, *words):
    """Make a run; return its folder, the model for use, and the run's metrics and data."""
    local_run(folder, *SMALL, *words)
    result = result_of(folder)
    model = predictor_of(str(folder))
    metrics = {name: result[name] for name in model.objective.names}
    return model, metrics, data_of(configured(*SMALL, *words))


def csv(file, seed=0, rows=60):
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, 3)).round(3)
    names = np.where(values.sum(1) > 0, "yes", "no")
    lines = [",".join([*map(str, row), name]) for row, name in zip(values, names, strict=True)]
    file.write_text("\n".join(["a,b,c,target", *lines]) + "\n")
    return file


def folders(folder, kind):
    """Write files to train and to test on; return the folder, and the file or folder to test on."""
    folder.mkdir()
    if kind == "photos":
        for seed, part in enumerate(("train", "test")):
            write_photos(folder / part, seed)
        return folder / "test"
    if kind == "table":
        csv(folder / "train.csv")
        return csv(folder / "test.csv", 1)
    if kind == "text":
        for part in ("train", "test"):
            (folder / f"{part}.txt").write_text("what is said is said again, and again. " * 30)
        return folder / "test.txt"
    random = np.random.default_rng(0)
    for part in ("train", "test"):
        x, y = random.normal(size=(40, 6, 32)).astype("f4"), random.integers(0, 3, 40)
        np.savez(folder / f"{part}.npz", x=x, y=np.array(["sit", "stand", "walk"])[y])
    return folder / "test.npz"


WORDS = {
    "photos": ["dataset=imagefolder", "model=lenet5"],
    "table": ["dataset=csv", "model=table_mlp", "model.columns=3", "model.outputs=2"],
    "windows": ["dataset=npz", "dataset.inputs=[x]", "model=window_cnn", "model.classes=3"],
    "text": ["dataset=text", "dataset.length=16", "model=lstm", "model.tokens=256",
             "objective=next_token"],
}  # fmt: skip


@pytest.mark.parametrize("kind", WORDS)
def test_the_model_gives_the_runs_metrics_for_the_test_file(kind, tmp_path, caplog):
    """To the last digit, from raw samples; and the same answers from tensors as from the file."""
    file = folders(tmp_path / "data", kind)
    words = [*WORDS[kind], f"dataset.root={tmp_path / 'data'}"]
    model, metrics, data = ran(tmp_path / "run", *words)
    table = model.predict(str(file))
    assert table.attrs["metrics"] == metrics
    again = model.predict(data.test.inputs)
    assert (again.to_numpy() == table.to_numpy()).all()
    assert str(tmp_path) not in json.dumps(model.info.metadata())
    assert model.classes == data.class_names
    if kind == "photos":
        assert list(table.index[[0, 19]]) == ["cat/0.png", "dog/9.png"]
        one = model.predict(file / "dog" / "3.png")
        assert one["class"].to_list() == [table["class"]["dog/3.png"]]
        assert len(model.predict(file / "dog")) == 10  # without classes
    if kind == "table":
        frame = pd.read_csv(file)
        found = model.predict(frame.drop(columns="target").set_index(frame.index + 5))
        assert (list(found.index[:2]), found.attrs) == ([5, 6], {})
        assert list(found["p(yes)"]) == list(table["p(yes)"])
        with pytest.raises(TaskError, match="has no column b"):
            model.predict(frame.drop(columns="b"))
        with pytest.raises(TaskError, match=r"unknown class .*maybe.* the classes are no, yes"):
            model.predict(frame.replace({"yes": "maybe"}))
    if kind == "windows":  # also without targets
        with np.load(file) as arrays:
            np.savez(tmp_path / "bare.npz", x=arrays["x"])
            np.save(tmp_path / "bare.npy", arrays["x"])
        for name in ("bare.npz", "bare.npy"):
            found = model.predict(tmp_path / name)
            assert (found.to_numpy() == table.to_numpy()).all()
            assert found.attrs == {}
        windows = data.test.inputs.clone()
        windows[3:5, 0, 0] = torch.nan
        np.savez(tmp_path / "b.npz", windows=windows, person=np.arange(40))
        found = model.predict(tmp_path / "b.npz")
        assert found["class"].isna().to_list() == [k in (3, 4) for k in range(40)]
        assert (found["class"] == table["class"]).sum() == 38
        assert "2 of 40 answers are no numbers, that of id 4 first" in caplog.text
        assert ",,,," in found.to_csv()
        np.savez(tmp_path / "c.npz", first=windows, second=windows)
        with pytest.raises(TaskError, match="holds first, second, and the model takes one array"):
            model.predict(tmp_path / "c.npz")
    if kind == "text":
        assert len(model.predict(b"what is ")) == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        pytest.param(
            ["adapter=lora", "adapter.r=2", "model.dtype=bfloat16", "lr=0.01"],
            marks=pytest.mark.system,
        ),
    ],
)
def test_the_model_is_that_of_the_run(words, tmp_path):
    """With adapters, in half precision, and of any model: the same metrics and tensors."""
    model, _, data = ran(tmp_path / "run", *words)
    kept = load_file(tmp_path / "run" / "model.safetensors")
    held = model.module.model.state_dict()
    assert kept.keys() == held.keys()
    assert all(torch.equal(kept[name], held[name]) for name in kept)
    logits = model.module(data.test.inputs[:4])
    assert logits.shape == (4, 10)
    probabilities = model.outputs(data.test.inputs[:4])
    torch.testing.assert_close(probabilities, logits.softmax(1))
    assert model.predict(data.test.inputs[0])["class"].to_list() == [int(logits[0].argmax())]


OWN = """
import torch
from torch import nn
from edgewire.task.datasets import Data, Split

def halved(x):
    return x / 2

def table(hidden_transform=False):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    transform = (lambda x: x) if hidden_transform else halved
    return Data(Split(x, x.sum(1)), Split(x[:9], x[:9].sum(1)), transform)

class Net(nn.Sequential):
    def __init__(self, width: int = 3):
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
"""
PLAIN = {"_target_": "edgewire.task.transforms.unchanged"}
TABLE = ("dataset._target_=saved_own.table", "model._target_=saved_own.Net", "objective=regression")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the folder of a run with classes of a user's package, which lies here as a file."""
    (tmp_path / "saved_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    local_run(tmp_path / "run", *SMALL, *TABLE, "model.width=5", "packages=[saved_own]")
    yield tmp_path / "run"
    sys.modules.pop("saved_own")


def test_own_classes_are_found_again_and_their_package_must_be_the_same(own, monkeypatch):
    model = predictor_of(str(own))
    assert model.info.model["own"] == {"_target_": "saved_own.Net", "width": 5}
    assert model.predict(torch.ones(3, 4)).attrs == {}
    assert model.predict(torch.ones(3, 4)).columns.to_list() == ["value"]
    info, tensors = read_model(own)
    assert info.packages[0].startswith("saved_own@")
    changed = replace(info, packages=["saved_own@0123456789abcdef"])
    save_file(tensors, own / "model.safetensors", changed.metadata())
    with pytest.raises(ConfigError, match="saved_own has changed since the run; if you trust it"):
        predictor_of(str(own))
    assert predictor_of(str(own), ["saved_own"]).predict(torch.ones(1, 4)).shape == (1, 1)
    gone = replace(info, model={"own": {"_target_": "saved_gone.Net"}}, transform=PLAIN)
    save_file(tensors, own / "model.safetensors", gone.metadata())
    with pytest.raises(ConfigError, match="there is no saved_gone here"):
        predictor_of(str(own), ["saved_gone"])
    gone = replace(gone, packages=["saved_gone@0123456789abcdef"])
    save_file(tensors, own / "model.safetensors", gone.metadata())
    with pytest.raises(ConfigError, match=r"there is no saved_gone here: .* \(PYTHONPATH=FOLDER\)"):
        predictor_of(str(own))


def test_a_transform_that_is_in_no_file_is_said(own):
    local_run(own, *SMALL, *TABLE, "packages=[saved_own]", "+dataset.hidden_transform=true")
    with pytest.raises(TaskError, match="the transform of its data is in no file"):
        predictor_of(str(own))


HOSTILE = [
    {"model": {"own": {"_target_": "subprocess.Popen", "args": "touch SPY", "shell": True}}},
    {"model": {"own": {"_target_": "os.system", "command": "touch SPY"}}},
    {"model": {"own": {"_target_": "torch.hub.load", "repo_or_dir": "a/b", "model": "c"}}},
    {"model": {"name": "mlp", "channels": {"_target_": "subprocess.Popen"}, "size": 1}},
    {"transform": {"_target_": "subprocess.Popen", "args": "touch SPY"}},
    {"transform": {"_target_": "edgewire.task.transforms.import_module", "name": "this"}},
    {"objective": {"_target_": "builtins.exec"}},
    {"adapter": {"_target_": "subprocess.Popen"}},
    {"dataset": {"own": {"_target_": "shutil.rmtree"}}},
    {"model": {"own": {"_target_": "__main__.main"}}, "packages": ["__main__@0123456789abcdef"]},
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "run"
    local_run(folder, *SMALL)
    return folder


@pytest.mark.parametrize("changes", HOSTILE)
def test_a_file_of_somebody_else_names_no_other_class(changes, plain, tmp_path, monkeypatch):
    """Its classes are refused before an import, in one line that names what is refused."""
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(plain, tmp_path / "run")
    info, tensors = read_model(folder)
    save_file(tensors, folder / "model.safetensors", replace(info, **changes).metadata())
    before = set(sys.modules)
    said_of = r"=[\w.]+: its package is not E|there is no __main__"
    with pytest.raises(ConfigError, match=said_of) as said:
        predictor_of(str(folder))
    assert "\n" not in str(said.value)
    assert not set(sys.modules) - before & {"this"}
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "lenet5"}},
        {"model": {"name": "nothing"}},
        {"model": {"name": "mlp", "width": 3}},
        {"model": {"name": "lenet5", "file": "/etc/passwd"}},
        {"model": []},
        {"model": {"name": "mlp", "dtype": "int3"}},
        {"transform": {"_target_": "edgewire.task.transforms.ImageTransform", "mean": [1]}},
        {"objective": {}},
        {"inputs": 7},
        {"packages": [3]},
        {"seed": "x"},
    ],
)
def test_broken_metadata_are_one_line(changes, plain, tmp_path):
    info, tensors = read_model(plain)
    save_file(tensors, tmp_path / "model.safetensors", replace(info, **changes).metadata())
    with pytest.raises((ConfigError, TaskError)) as said:
        predictor_of(str(tmp_path)).predict(torch.zeros(1, 1, 8, 8))
    assert "\n" not in str(said.value)
