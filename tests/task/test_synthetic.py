"""Made data: the same samples for the same seed, sound splits, and one line for wrong options."""

import pytest
import torch

from edgewire.conf.build import data_of
from edgewire.conf.load import HERE
from edgewire.conf.schema import ConfigError
from edgewire.task.errors import TaskError
from edgewire.task.tensors import leaves
from tests.runs import choices, composed, configured

SYNTHETIC = [
    name
    for name in choices("dataset")
    if "edgewire.task.datasets.synthetic." in (HERE / "dataset" / f"{name}.yaml").read_text()
]
BY_GROUP = {"keywords"}  # whose test samples are of users that do not train
assert len(SYNTHETIC) >= 6


def made(name, *more):
    return data_of(configured(f"dataset={name}", "dataset.samples=200", *more))


def tensors_of(data):
    splits = (data.train, data.test)
    return [each for s in splits for part in (s.inputs, s.targets, s.groups) if part is not None
            for each in leaves(part)]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SYNTHETIC)
def test_samples_depend_on_the_datasets_seed_alone(name):
    torch.manual_seed(1)
    first = tensors_of(made(name))
    for size in (8, 16):  # empties the cache
        data_of(configured("dataset=digits", f"dataset.size={size}"))
    torch.manual_seed(2)
    again, other = tensors_of(made(name, "seed=5")), tensors_of(made(name, "dataset.seed=5"))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert all(each.isfinite().all() for each in first)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_splits_have_all_classes_and_share_no_sample(name):
    data = made(name)
    if data.classes and name != "vibration":  # whose faults are in the test split alone
        for split in (data.train, data.test):
            assert set(split.targets.tolist()) == set(range(data.classes))
    if name in BY_GROUP:
        assert not set(data.train.groups.tolist()) & set(data.test.groups.tolist())
    train, test = ({row.numpy().tobytes() for row in s.inputs} for s in (data.train, data.test))
    assert not train & test


@pytest.mark.few(10)
@pytest.mark.parametrize("value", ["0", "-3", "1", "2", "1.5"])
@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_wrong_number_of_anything_is_one_line(name, value):
    """Each option that counts something is made too small, or is no number of that kind."""
    counts = {key for key, each in composed(f"dataset={name}").dataset.items()
              if type(each) is int and key != "seed"}  # fmt: skip
    assert "samples" in counts
    for key in counts:
        words = [f"dataset={name}", "dataset.samples=60", f"dataset.{key}={value}"]
        line = refusal(words)
        assert line is None or (key in line and "\n" not in line), line


def refusal(words):
    """Return the error of making data; None if both splits have samples."""
    try:
        data = data_of(configured(*words))
    except (ConfigError, TaskError) as error:
        return str(error)
    return None if len(data.train) and len(data.test) else "no samples"
