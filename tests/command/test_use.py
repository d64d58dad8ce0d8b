"""`load_model`, `predict`, `export` and `start=`: a run's model in use, and trained on."""

import csv
import re
import shutil
import sys

import pandas as pd
import pytest
from huggingface_hub import ModelCard

import edgewire
from edgewire.conf.schema import ConfigError
from edgewire.report.card import CARD
from edgewire.task.errors import TaskError
from tests.runs import history_of, result_of, write_photos

SMALL = ("rounds=2", "nodes=2", "engine.workers=1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for seed, part in enumerate(("train", "test")):
        write_photos(folder / part, seed)
    shutil.copytree(folder, folder.parent / "renamed")
    for part in ("train", "test"):
        (folder.parent / "renamed" / part / "dog").rename(folder.parent / "renamed" / part / "ape")
    return folder


@pytest.fixture(scope="module")
def run(photos):
    """Return the folder of a run with photos."""
    words = ("dataset=imagefolder", f"dataset.root={photos}", "model=lenet5")
    folder = f"hydra.run.dir={photos.parent / 'a run'}"
    return edgewire.train(*SMALL, *words, folder.replace(" ", "_"), progress=False).folder


def test_a_run_is_used_exported_and_trained_on(cli, run, photos, tmp_path, monkeypatch):
    """The figures are the run's, predictions go to CSV, and a new run begins at the run's value."""
    result = result_of(run)
    out = tmp_path / "p.csv"
    code, printed = cli("predict", str(run), str(photos / "test"), "--out", str(out))
    assert code == 0
    first, metrics, head, *rows, files = printed.out.splitlines()
    assert first.startswith("photos") or "lenet5" in first
    assert f"accuracy {100 * result['accuracy']:.2f} %" in metrics
    assert metrics.endswith(": 20 samples with targets")
    assert head.split() == ["class", "probability", "p(cat)", "p(dog)"]
    assert rows[1].startswith("cat/0.png ")
    assert files.startswith(f"files      {out}: rows: 20, of id, class, probability")
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [rows[0]["id"], rows[19]["id"]] == ["cat/0.png", "dog/9.png"]
    assert all(abs(float(r["p(cat)"]) + float(r["p(dog)"]) - 1) < 1e-5 for r in rows)
    model = edgewire.load_model(run / "model.safetensors")
    table = model.predict(photos / "test")
    assert table.attrs["metrics"]["loss"] == result["loss"]
    assert list(table["class"]) == [row["class"] for row in rows]

    monkeypatch.setattr("edgewire.command.use.SHOWN", 3)  # as with more classes
    printed = cli("predict", str(run), str(photos / "train"), "--out", str(out))[1]
    assert "\n    class  probability\n" in re.sub(r" {4,}", "    ", printed.out)
    assert ": rows: 20, of id, class, probability, p(cat) and 1 more" in printed.out
    assert "with targets (the run's own data, training samples included)" in printed.out

    assert cli("export", str(run), "torch")[0] == 0
    assert (run / "model.pt2").stat().st_size > 1000
    on = tmp_path / "on"
    assert cli(f"start={run}", "rounds=1", f"hydra.run.dir={on}")[0] == 0
    assert history_of(on)[0]["loss"] == result["loss"]
    assert result_of(on)["data"] == result["data"]
    code, printed = cli(f"resume={run}")
    assert (code, "start=" in printed.err) == (2, True)


def test_the_card_is_the_hubs(run):
    """Its head has the metrics, and its text the classes and nodes."""
    result = result_of(run)
    card = ModelCard.load(run / CARD)
    assert (card.data.license, card.data.library_name) == ("other", "edgewire")
    assert card.data.pipeline_tag == "image-classification"
    found = {each.metric_type: each.metric_value for each in card.data.eval_results}
    assert (found["accuracy"], found["loss"]) == (result["accuracy"], result["loss"])
    given = ("dataset=imagefolder", "dataset.root=PATH/")
    for text in ('load_model("RUN")', "| cat |", "| node 2 |", "95 % interval", *given):
        assert text in card.text
    assert str(run.parent) not in card.text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["predict"], "the following arguments are required: run, file; --help lists"),
        (["predict", "RUN", "x", "--nothing"], "unrecognized arguments: --nothing; --help lists"),
        (["predict", "nowhere", "x"], "nowhere is no model's file"),
        (["predict", "RUN", "nowhere.png"], "nowhere.png: there is no such file or folder"),
        (["predict", "RUN", "RUN"], "has no photos: there is nothing to predict"),
        (["predict", "RUN", "RUN/result.json"], "result.json cannot be read as a photo ("),
        (["export", "RUN", "tflite"], "tflite is no format: give one of onnx, pte, torch"),
        (["start=nowhere", "rounds=1"], "nowhere/.hydra/config.yaml"),
        (["start=RUN", "model=mlp"], "takes single keys"),
        (["start='RUN'", "task=table"], "takes single keys, as in lr=0.1, and keeps its choices"),
        (
            ["start=RUN", "privacy=none"],
            "single keys, as in privacy.unit=none, and keeps its choices",
        ),
        (
            ["start=RUN", "secure=none"],
            "single keys, as in secure.mode=none, and keeps its choices",
        ),
        (["start=RUN", "model.width=3"], "there is no key model.width"),
        (["start=RUN", "secure.least=6"], "protects nothing without secure.mode=sum, say: give it"),
        (
            ["start=RUN", "dataset.root=RUN/../renamed"],
            "has the classes cat, dog, and the data ape, cat: name them alike, or leave its last "
            """layer out by 'model.new=["11.*"]'""",
        ),
        (["start=RUN", "start=RUN"], "the folder of one run"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(words, line, cli, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed = cli(*(word.replace("RUN", str(run)) for word in words))
    assert (code, len(printed.err.strip().splitlines())) == (2, 1)
    assert line in printed.err
    assert {each.name for each in tmp_path.iterdir()} <= {"outputs"}
    assert not [*tmp_path.glob("outputs/**/result.json")]


def test_own_code_is_found_where_the_run_found_it(tmp_path, monkeypatch):
    """Without Python's path of the run; never in the run's folder, which may be somebody else's."""
    text = (
        "from torch import nn\ndef net():\n return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "used_net.py").write_text(text)
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "mine")
        edgewire.train(*SMALL, "model._target_=used_net.net", f"hydra.run.dir={folder}")

    def loaded():
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path])
            patch.delenv("EDGEWIRE_PACKAGES", raising=False)
            sys.modules.pop("used_net", None)
            return edgewire.load_model(folder)

    assert len(loaded().classes) == 10
    (tmp_path / "mine").rename(folder / "mine")
    for path in (folder / "mine", "run/mine"):
        (folder / ".hydra" / "python_path.yaml").write_text(f"- {path}\n")
        with pytest.raises(ConfigError, match="there is no used_net here"):
            loaded()


@pytest.mark.parametrize("word", ["predict", "export", "new"])
def test_help_describes_what_a_word_takes(word, cli):
    code, printed = cli(word, "--help")
    assert (code, printed.err) == (0, "")
    assert f"usage: python run.py {word} " in printed.out
    assert word != "export" or "onnx, pte or torch" in printed.out
    assert f" {word} " in cli("--help")[1].out.partition("Groups")[0]


def test_python_gets_an_exception(run):
    with pytest.raises(TaskError, match="takes no rows of a table"):
        edgewire.load_model(run).predict(pd.DataFrame({"a": [1]}))
