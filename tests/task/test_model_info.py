"""What a model's file says of its model, and raw samples of the kinds that it describes."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from edgewire.task.errors import TaskError
from edgewire.task.model_info import ModelInfo, fitted, kinds_of, read_model, samples_of

INFO = ModelInfo({}, {"name": "mlp"}, {}, {"_target_": "x"}, {"shape": [2]}, None)
DTYPES = [torch.uint8, torch.int16, torch.int64, torch.float32, torch.float64, torch.bool]


@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 4), max_size=3),
    count=st.integers(0, 5),
    form=st.sampled_from([lambda x: x, lambda x: (x, x.float()), lambda x: {"a": x, "b": x}]),
)
def test_random_samples_are_of_the_described_kind(dtype, shape, count, form):
    """Their description has the same shapes and dtypes, and values in the described range."""
    given_ = form(torch.randint(0, 2, (count, *shape)).to(dtype))
    said = json.loads(json.dumps(kinds_of(given_)))
    made = samples_of(said, 7)
    assert type(made) is type(given_)

    def check(said, found):
        if isinstance(said, list):
            return [check(*pair) for pair in zip(said, found, strict=True)]
        if "dtype" not in said:
            return [check(said[name], found[name]) for name in said]
        assert (found["shape"], found["dtype"]) == (said["shape"], said["dtype"])
        assert said["low"] <= found["low"] <= found["high"] <= said["high"]
        return None

    check(said, kinds_of(made))
    again = fitted(made, said)
    assert torch.equal(torch.cat([*map(torch.ravel, leaves(again))]).double(),
                       torch.cat([*map(torch.ravel, leaves(made))]).double())  # fmt: skip


def leaves(tensors):
    if isinstance(tensors, torch.Tensor):
        return [tensors.double()]
    return [each.double() for each in (tensors.values() if isinstance(tensors, dict) else tensors)]


def test_a_range_has_finite_values_alone():
    odd = torch.tensor([[torch.nan, -1.0], [torch.inf, 3.0]])
    assert kinds_of(odd) == {"shape": [2], "dtype": "float32", "low": -1.0, "high": 3.0}
    assert kinds_of(odd[:0])["high"] == 1.0


def of(shape, dtype="float32", high=255):
    return {"shape": shape, "dtype": dtype, "low": 0, "high": high}


@pytest.mark.parametrize(
    ("source", "said", "shape"),
    [
        (np.zeros((5, 1, 8, 8)), of([1, 8, 8]), (5, 1, 8, 8)),
        (np.zeros((5, 8, 8)), of([1, 8, 8]), (5, 1, 8, 8)),  # grey images without a channel
        (np.zeros((8, 8)), of([1, 8, 8]), (1, 1, 8, 8)),
        (np.zeros((1, 8, 8)), of([1, 8, 8]), (1, 1, 8, 8)),
        (np.zeros((5, 8, 6, 3)), of([3, 8, 6]), (5, 3, 8, 6)),  # channels last
        (np.zeros((8, 6, 3)), of([3, 8, 6]), (1, 3, 8, 6)),
        (np.zeros((3, 8, 6)), of([3, 8, 6]), (1, 3, 8, 6)),
        ([[1, 2, 3]], of([3]), (1, 3)),
        ([1, 2, 3], of([3]), (1, 3)),
        ([1, 2, 3, 4], of([1]), (4, 1)),
        ([1.0, 2.0], of([9], "int64"), (1, 2)),  # a shorter text
        (np.zeros((2, 6, 50)), of([6, 128]), (2, 6, 50)),
        (torch.zeros(4), of([]), (4,)),
        (np.frombuffer(b"text", np.uint8), of([64], "uint8"), (1, 4)),
    ],
)
def test_samples_get_the_shape_of_the_trainings(source, said, shape):
    found = fitted(source, said)
    assert (tuple(found.shape), str(found.dtype)) == (shape, f"torch.{said['dtype']}")


@pytest.mark.parametrize(
    ("source", "said", "line"),
    [
        (np.full((1, 3), 0.5), of([3], "int64"), "with values that torch.int64 does not have"),
        ([[300.0]], of([1], "uint8"), "with values that torch.uint8"),
        ([[torch.nan]], of([1], "uint8"), "with values that"),
        (np.zeros((2, 2, 2, 8, 8)), of([8, 8]), r"\(2, 2, 8, 8\), and \(8, 8\) is taken"),
        (["a"], of([6, 9]), r"takes float32 samples of \(6, 9\), and not these"),
        (np.array([None]), of([1]), r"takes float32 samples of \(1,\)"),
        ([[1], [2, 3]], of([2]), r"takes float32 samples of \(2,\)"),
        (np.zeros(3), [of([1]), of([1])], r"takes 1: float32 samples of \(1,\) and 2: float32 "),
        ({"a": [1], "c": [1]}, {"a": of([]), "b": of([])}, "KeyError: 'b'"),
    ],
)
def test_samples_of_another_kind_are_refused(source, said, line):
    with pytest.raises(TaskError, match=line):
        fitted(source, said)


def test_images_on_another_scale_give_a_warning(caplog):
    """scikit-learn's digits are from 0 to 16, and EdgeWire's from 0 to 255."""
    fitted(np.full((1, 8, 8), 16.0), of([1, 8, 8], "uint8"))
    fitted(np.full((1, 8, 8), 200), of([1, 8, 8], "uint8"))
    assert [record.getMessage() for record in caplog.records] == [
        "these images have smaller values than the training's: are they scaled alike?"
    ]


def test_a_file_tells_what_was_saved_and_further_keys_do_not_matter(tmp_path):
    tensors = {"w": torch.ones(2)}
    save_file(tensors, tmp_path / "model.safetensors", INFO.metadata())
    info, found = read_model(tmp_path)
    assert info == INFO
    assert torch.equal(found["w"], tensors["w"])
    later = json.loads(INFO.metadata()["edgewire"]) | {"later": 1}
    save_file(tensors, tmp_path / "m", {"edgewire": json.dumps(later)})
    assert read_model(tmp_path / "m")[0] == INFO


@pytest.mark.parametrize(
    ("metadata", "line"),
    [
        (None, "does not say what its model is: give the folder of a run"),
        ({"edgewire": "{}"}, "does not say what its model is"),
        ({"edgewire": "{"}, "is no model's file"),
        ({"edgewire": "[1]"}, "is no model's file"),
        ({"edgewire": '{"model": 1}'}, "is no description"),
    ],
)
def test_a_file_that_says_nothing_is_refused_in_one_line(metadata, line, tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "m", metadata)
    with pytest.raises(TaskError, match=line) as caught:
        read_model(tmp_path / "m")
    assert "\n" not in str(caught.value)
    (tmp_path / "m").write_bytes(b"?")
    for path in (tmp_path / "m", tmp_path, "nowhere"):
        with pytest.raises(TaskError, match="is no model's file"):
            read_model(path)
