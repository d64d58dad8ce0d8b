"""Transforms of samples into a model's input."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewire.task.errors import TaskError
from edgewire.task.transforms import (
    ImageTransform,
    LogMel,
    Standardize,
    restored,
    saved,
    unchanged,
)


def waves(samples, length, seed=0):
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.integers(-32768, 32768, (samples, length), dtype=np.int16))


def plain(wave, rate, window, hop, mels, mean, std):
    """Return a spectrogram in float64, frame by frame, from the definition of the transform."""
    bins = 1
    while bins < window:
        bins *= 2
    first = (bins - window) // 2
    weights = np.zeros(bins)
    weights[first : first + window] = np.sin(np.pi * np.arange(window) / window) ** 2
    padded = np.concatenate([np.zeros(bins // 2), wave / 32768, np.zeros(bins // 2)])
    turns = np.exp(-2j * np.pi * np.outer(np.arange(bins // 2 + 1), np.arange(bins)) / bins)
    frequencies = np.arange(bins // 2 + 1) * rate / bins
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.arange(mels + 2) * top / (mels + 1) / 2595) - 1)
    frames = []
    for start in range(0, len(wave) + 1, hop):
        power = np.abs(turns @ (weights * padded[start : start + bins])) ** 2
        energies = [
            np.interp(frequencies, corners[i : i + 3], [0, 1, 0], left=0, right=0) @ power
            for i in range(mels)
        ]
        frames.append((np.log(np.array(energies) + 1e-6) - mean) / std)
    return np.stack(frames, 1)


@pytest.mark.parametrize(
    ("rate", "window", "hop", "mels"), [(16000, 400, 160, 40), (8000, 256, 100, 20)]
)
@pytest.mark.parametrize("length", [0, 1, 700, 1600])
def test_log_mel_agrees_with_its_definition(rate, window, hop, mels, length):
    transform, batch = LogMel(rate, window, hop, mels, -3.0, 2.0), waves(3, length)
    expected = np.stack([plain(w, rate, window, hop, mels, -3.0, 2.0) for w in batch.numpy()])
    np.testing.assert_allclose(transform(batch).numpy(), expected, atol=1e-4)
    assert torch.equal(transform(batch / 32768), transform(batch))


@given(samples=st.integers(0, 300), seed=st.integers(0, 9))
def test_log_mel_of_a_waveform_does_not_depend_on_its_batch(samples, seed):
    batch = waves(samples, 900, seed)
    whole = LogMel()(batch)
    assert whole.shape == (samples, 40, 6)
    for place in {0, samples // 2, max(samples - 1, 0)} if samples else ():
        assert torch.equal(whole[place], LogMel()(batch[place : place + 1])[0])


@pytest.mark.parametrize(
    "inputs",
    [torch.zeros(2, 9).double(), torch.zeros(9), (torch.zeros(2, 9),), torch.zeros(2, 9).byte()],
)
def test_what_is_no_waveform_is_refused(inputs):
    with pytest.raises(TaskError, match=r"waveforms are|one tensor of inputs"):
        LogMel()(inputs)


@pytest.mark.parametrize("options", [{"mels": 200}, {"hop": 0}, {"std": float("nan")}, {"rate": 0}])
def test_log_mel_refuses_options_that_give_no_spectrogram(options):
    with pytest.raises(TaskError, match="give"):
        LogMel(**options)


def pixels(samples, channels=3):
    random = np.random.default_rng(1)
    return torch.from_numpy(random.integers(0, 256, (samples, channels, 5, 4), dtype=np.uint8))


EACH = [
    (ImageTransform((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)), pixels),
    (ImageTransform(), pixels),
    (ImageTransform(), lambda samples: torch.full((samples, 1, 2, 2), 7, dtype=torch.uint8)),
    (Standardize((1.0, -2.0, 0.0), (3.0, 4.0, 1e-3)), lambda samples: torch.ones(samples, 3)),
    (Standardize((0.5, 0.5, 0.5), (1.0, 2.0, 3.0)), lambda samples: pixels(samples).double()),
    (Standardize(), pixels),
    (Standardize(), lambda samples: torch.ones(samples, 3).double()),
    (LogMel(), lambda samples: waves(samples, 900)),
    (LogMel(8000, 200, 80, 20, -3.0, 2.0), lambda samples: waves(samples, 801) / 32768),
    (unchanged, lambda samples: torch.ones(samples, 3)),
]


@pytest.mark.parametrize(("transform", "batch"), EACH)
@pytest.mark.parametrize("samples", [0, 1, 300])
def test_a_transform_is_its_saved_values_and_the_same_in_exports(
    transform, batch, samples, monkeypatch
):
    """It computes the same by other operations then."""
    inputs = batch(samples)
    expected = transform(inputs)
    assert restored(saved(transform)) == transform
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    found = transform(inputs)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@dataclass
class Halved:
    by: list[int]

    def __call__(self, inputs):
        return inputs / self.by[0]


class Grown(torch.nn.Module):
    def __init__(self, by=1):
        super().__init__()
        self.by = by

    def arguments(self):
        return {"by": self.by}


def test_own_transforms_are_saved_if_a_name_and_json_tell_all():
    """A lambda, an object with hidden state and values without JSON give None."""
    for name in ("Halved", "Grown"):  # pytest's module has no name that can be imported
        globals()[name].__module__ = "tests.task.test_transforms"
    assert saved(Grown(3)) == {"_target_": "tests.task.test_transforms.Grown", "by": 3}
    assert saved(Halved([2]))["by"] == [2]
    assert restored(saved(Halved([2]))).by == [2]
    hidden = (
        lambda x: x,
        functools.partial(unchanged),
        torch.nn.Linear(1, 1),
        Halved([float("nan")]),
    )
    assert [saved(each) for each in (*hidden, Halved([object()]), pixels(1).sum)] == [None] * 6


@pytest.mark.parametrize("name", ["nowhere.f", "", "edgewire.task.transforms.Nothing", "os"])
def test_a_transform_that_cannot_be_made_is_refused(name):
    with pytest.raises(TaskError, match="cannot be made"):
        restored({"_target_": name})
    with pytest.raises(TaskError, match="cannot be made"):
        restored({"_target_": "edgewire.task.transforms.ImageTransform", "mean": [1.0]})
