"""The data sets of the page `carry_over` are the same on each machine, and tests are held out."""

import numpy as np
import pytest
import torch
from PIL import Image

from edgewire.task.tensors import only
from papers import tasks


@pytest.mark.parametrize("make", [tasks.classes, tasks.hastie], ids=lambda make: make.__name__)
def test_a_generated_table_is_the_same_each_time_and_normal(make):
    data, again = make(rows=400), make(rows=400)
    assert (len(data.train), len(data.test)) == (300, 100)
    assert torch.equal(only(data.train.inputs), only(again.train.inputs))
    every = torch.cat([only(data.train.inputs), only(data.test.inputs)])
    assert torch.allclose(every.mean(0), torch.zeros(every.shape[1]), atol=1e-5)
    assert set(only(data.train.targets).tolist()) == set(only(data.test.targets).tolist())


def test_windows_of_the_manual_predict_the_next_byte():
    data = tasks.manual(length=16)
    inputs, targets = only(data.train.inputs), only(data.train.targets)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert len(data.test) == pytest.approx(len(data.train) / 9, rel=0.01)


@pytest.mark.parametrize(("samples", "taken"), [(6, [0, 2, 4] * 2), (99, list(range(6)) * 2)])
def test_photos_are_taken_at_equal_distances_from_each_class(samples, taken, tmp_path):
    for split in ("train", "test"):
        for label in ("a", "b"):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for number in range(6):
                Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(folder / f"{number}.png")
    data = tasks.photos(str(tmp_path), samples)
    assert only(data.train.inputs)[:, 0, 0, 0].tolist() == taken
    assert len(data.test) == 12


def test_numbers_of_a_generated_table_are_normal():
    data = tasks.friedman(rows=400)
    assert (len(data.train), len(data.test)) == (300, 100)
    every = torch.cat([only(data.train.targets), only(data.test.targets)])
    assert float(every.mean()) == pytest.approx(0, abs=1e-5)
    assert float(every.std()) == pytest.approx(1, abs=0.01)
