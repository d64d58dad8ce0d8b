"""Invalid data are refused in one line before training."""

from dataclasses import replace

import pytest
import torch

from edgewire.task.datasets import Data, Split
from edgewire.task.datasets.data import usable
from edgewire.task.errors import TaskError
from edgewire.task.transforms import ImageTransform

GOOD = Split(
    torch.arange(6 * 3 * 8 * 8).remainder(256).to(torch.uint8).view(6, 3, 8, 8),
    torch.tensor([0, 1, 2, 0, 1, 2]),
)
DATA = Data(GOOD, GOOD, ImageTransform((0.5,) * 3, (0.25,) * 3), 3)


def images(change):
    return replace(DATA, train=Split(change(GOOD.inputs), GOOD.targets))


def labels(change):
    return replace(DATA, train=Split(GOOD.inputs, change(GOOD.targets)))


BAD = {
    "floats from 0 to 1": (
        images(lambda x: x / 255),
        "float32 (6, 3, 8, 8), and uint8 (N",
    ),
    "no channels": (images(lambda x: x[:, 0]), "(6, 8, 8), and uint8 (N, C, H, W)"),
    "flat": (images(lambda x: x.flatten(1)), "(6, 192), and uint8 (N, C, H, W)"),
    "no image": (replace(DATA, train=Split(GOOD.inputs[:0], GOOD.targets[:0])), "(0, 3, 8, 8)"),
    "an array": (images(torch.Tensor.numpy), "are a ndarray: give a dense tensor"),
    "not square": (
        replace(
            DATA,
            train=Split(GOOD.inputs[:, :, 1:], GOOD.targets),
            test=Split(GOOD.inputs[:, :, 1:], GOOD.targets),
        ),
        "3 x 7 x 8, and models take square ones of one shape: give dataset.size=",
    ),
    "channels last": (images(lambda x: x.permute(0, 2, 3, 1)), "8 x 8 x 3, those to test on 3"),
    "two sizes": (images(lambda x: x[:, :, 1:, 1:]), "3 x 7 x 7, those to test on 3 x 8 x 8"),
    "labels in a column": (labels(lambda y: y[:, None]), "int64 (6, 1), and int64 (6,) is taken"),
    "labels one-hot": (labels(lambda y: torch.eye(3)[y]), "(6, 3), and int64 (6,) is taken"),
    "floats as labels": (labels(torch.Tensor.float), "float32 (6,), and int64"),
    "a label missing": (
        labels(lambda y: y[:5]),
        "a row for each of the 6 samples",
    ),
    "labels from 1": (labels(lambda y: y + 1), "from 1 to 3, and 0 to 2 is taken"),
    "a list of labels": (labels(torch.Tensor.tolist), "are a list: give a dense tensor"),
    "fewer than no classes": (replace(DATA, classes=-1), "classes=-1"),
    "classes without names": (replace(DATA, class_names=("a", "b")), "2 class_names for classes=3"),
    "groups of floats": (
        replace(DATA, train=Split(GOOD.inputs, GOOD.targets, torch.zeros(6))),
        "groups are float32 (6,): give the number of a group",
    ),
    "groups in a column": (
        replace(DATA, train=Split(GOOD.inputs, GOOD.targets, torch.zeros(6, 1).long())),
        "groups are int64 (6, 1): give the number of a group",
    ),
    "a pair": ((GOOD, GOOD), "a tuple, and Data is taken: return Data(Split(x, y), Split(x, y)), "),
}


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("case", BAD)
def test_invalid_data_is_refused_in_one_line(case, size):
    data, part = BAD[case]
    if size and case == "channels last":
        part = "8 x 16 x 16, those to test on 3 x 16 x 16"
    if size and case in ("not square", "two sizes"):
        assert usable("mine", data, size).train.inputs.shape[-2:] == (size, size)
        return
    with pytest.raises(TaskError) as error:
        usable("mine", data, size)
    assert part in str(error.value)
    assert str(error.value).startswith("mine")
    assert "\n" not in str(error.value)


def test_an_invalid_test_set_is_refused_too():
    bad = replace(DATA, test=Split(GOOD.inputs / 255, GOOD.targets))
    with pytest.raises(TaskError, match=r"^mine: test\.inputs are float32"):
        usable("mine", bad)


@pytest.mark.parametrize(
    ("mean", "std"),
    [((0.5,) * 2, (0.2,)), ((0.5,), ()), ((0.5,), (0.0,)), ((float("nan"),), (0.2,))],
)
def test_means_and_deviations_are_finite_pairs(mean, std):
    with pytest.raises(TaskError, match="finite numbers of one length"):
        ImageTransform(mean, std)


@pytest.mark.parametrize(
    ("given", "mean"),
    [(GOOD.inputs.float(), (0.5,) * 3), (GOOD.inputs / 255, ()), (GOOD.inputs, (0.5,))],
)
def test_no_other_data_is_normalised(given, mean):
    with pytest.raises(TaskError):
        ImageTransform(mean, mean)(given)
