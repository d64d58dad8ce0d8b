"""Models in other formats: they answer as PyTorch does, or no file is left."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from edgewire.conf.saved_model import predictor_of
from edgewire.task.errors import TaskError
from edgewire.task.export import ENDS, NEEDS, export
from edgewire.task.model_file import KEY
from edgewire.task.model_info import ModelInfo, kinds_of
from edgewire.task.objectives.classification import Classification
from edgewire.task.predictor import Predictor
from edgewire.task.transforms import ImageTransform
from tests.local_runs import local_run
from tests.runs import choices, write_photos

IMAGES = torch.randint(0, 256, (9, 1, 4, 4), dtype=torch.uint8)
TASKS = sorted({*choices("task"), "digits", "csv", "photos"} - {"table"})


def predictor(model=None, transform=None):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    transform = transform or ImageTransform((0.5,), (0.25,))
    info = ModelInfo({}, {}, {}, {}, kinds_of(IMAGES), {}, 0, 3, ["a", "b", "c"])
    return Predictor(info, model, transform, Classification(), str)


@pytest.mark.parametrize("kind", ["torch", pytest.param("onnx", marks=pytest.mark.system)])
def test_a_file_holds_transform_model_and_answer(kind, tmp_path):
    """For any number of raw samples at once, and the file alone is left."""
    if not all(map(find_spec, NEEDS[kind])):
        pytest.skip(f"{kind} is not installed")
    file = tmp_path / f"model{ENDS[kind]}"
    made = predictor()
    export(made, kind, file, IMAGES)
    assert [*tmp_path.iterdir()] == [file]
    expected = made.outputs(IMAGES)
    torch.testing.assert_close(expected.sum(1), torch.ones(9))
    for inputs, answers in ((IMAGES, expected), (IMAGES[:1], expected[:1])):
        torch.testing.assert_close(answered(kind, file, inputs), answers)


def answered(kind, file, inputs):
    if kind == "torch":
        return torch.export.load(file).module()(inputs)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file))
    (named,) = session.get_inputs()
    assert (named.name, named.shape[0]) == ("input", "batch")
    said = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
    assert said["class_names"] == ["a", "b", "c"]
    (answers,) = session.run(["output"], {"input": inputs.numpy()})
    return torch.from_numpy(answers)


class Drifting(nn.Module):
    """Computes otherwise where it is traced: an exporter's fault, as ExecuTorch has made."""

    def forward(self, images):
        return images.float() / (255 if torch.compiler.is_exporting() else 200)


class Reading(nn.Linear):
    """Asks for a value, which no exported program has."""

    def forward(self, inputs):
        return super().forward(inputs.flatten(1)) * (2 if inputs.sum().item() > 5 else 1)


@pytest.mark.parametrize(
    ("made", "samples", "line"),
    [
        (
            predictor(transform=Drifting()),
            IMAGES,
            "answers otherwise than PyTorch: it is deleted; try onnx or pte",
        ),
        (predictor(Reading(16, 3)), IMAGES, r"this model cannot be a \.torch file"),
        (predictor(), IMAGES[:0], "there are no samples to try"),
        (predictor(), IMAGES.double(), r"does not take float64 samples of \(1, 4, 4\)"),
    ],
)
def test_a_file_that_is_wrong_or_impossible_is_not_left(made, samples, line, tmp_path):
    before = tmp_path / "model.pt2"
    before.write_text("an earlier file")
    with pytest.raises(TaskError, match=line) as said:
        export(made, "torch", before, samples)
    assert "\n" not in str(said.value)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["an earlier file"]


def test_an_unknown_format_and_a_missing_package_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(TaskError, match="tflite is no format: give one of onnx, pte, torch"):
        export(predictor(), "tflite", tmp_path / "m", IMAGES)
    monkeypatch.setitem(NEEDS, "onnx", ("onnx", "onnx_that_is_not_there"))
    with pytest.raises(TaskError, match=r"uv pip install -e '\.\[onnx\]'"):
        export(predictor(), "onnx", tmp_path / "m", IMAGES)


@pytest.mark.system
@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_right_in_every_format(task, tmp_path):
    """To 1e-4; nothing is refused. With both extras all tasks take about 65 s of CPU time."""
    words = [f"task={task}"]
    if task == "photos":
        write_photos(tmp_path / "photos")
        words = ["dataset=imagefolder", f"dataset.root={tmp_path / 'photos'}", "model=lenet5"]
    if task == "csv":
        (tmp_path / "t.csv").write_text("a,b,target\n" + "1,2,x\n3,4,y\n" * 20)
        words = ["dataset=csv", f"dataset.root={tmp_path / 't.csv'}", "model=table_mlp"]
        words += ["model.columns=2", "model.outputs=2"]
    words = words if task != "digits" else []
    local_run(tmp_path / "run", *words, "nodes=2", "rounds=1", "local_steps=1")
    made = predictor_of(str(tmp_path / "run"))
    samples = made.samples(8)
    assert len(made.predict(samples)) == 8
    for kind in ENDS:
        if all(map(find_spec, NEEDS[kind])):
            export(made, kind, Path(tmp_path / f"m{ENDS[kind]}"), samples)
