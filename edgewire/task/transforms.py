"""Transforms of samples into a model's input, on the device that trains.

While a model is exported, they are plain arithmetic for any number of samples.
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pkgutil import resolve_name
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

from edgewire.task.errors import TaskError, described
from edgewire.task.tensors import Tensors, mapped, only


def unchanged(inputs: Tensors) -> Tensors:
    """Return the inputs themselves: the transform of data that are a model's input already."""
    return inputs


@dataclass(frozen=True)
class _Means:
    """Has a mean and a deviation for each channel or feature, or none."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        known = all(map(math.isfinite, self.mean)) and all(0 < s < math.inf for s in self.std)
        if len(self.mean) != len(self.std) or not known:
            raise TaskError(
                "dataset.mean and dataset.std must be lists of finite numbers of one length, with "
                "every std above 0"
            )

    def _expect_fit(self, inputs: Tensor) -> None:
        channels = inputs.shape[1] if inputs.dim() > 1 else 0
        if self.mean and channels != len(self.mean):
            raise TaskError(f"there are {len(self.mean)} means for {channels} channels or features")


@dataclass(frozen=True)
class ImageTransform(_Means):
    """Normalises images: uint8 (N, C, H, W) -> float32 (N, C, H, W), (x / 255 - mean) / std.

    `mean` and `std` have one value per channel, for images scaled to 0..1. If both are empty, each
    image is normalised by the mean and standard deviation of its own n = C H W entries. The
    standard deviation then counts as at least 1 / sqrt(n), so that a uniform image becomes zero
    (tf.image.per_image_standardization, AdaComp's input). One pass converts, scales and shifts a
    channel. A call raises `TaskError` for images that are not uint8, or if there are not as many
    means as channels; the constructor does unless there are as many finite means as deviations.
    """

    def __call__(self, images: Tensors) -> Tensor:
        """Return the normalised images, on the device of `images`."""
        images = only(images)
        if images.dtype != torch.uint8:
            raise TaskError(f"images are {images.dtype}, and uint8 from 0 to 255 is taken")
        self._expect_fit(images)
        if not self.mean:
            flat = images.flatten(1).float() / 255
            flat -= flat.mean(dim=1, keepdim=True)
            deviations = flat.square().mean(dim=1, keepdim=True).sqrt()
            flat /= deviations.clamp_min(1 / math.sqrt(flat.shape[1]))
            return flat.view(images.shape)
        if torch.compiler.is_exporting():  # formats store a write into a part of a tensor wrongly
            means, stds = (torch.tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
            return (images.float() / 255 - means) / stds
        out = torch.empty(images.shape, dtype=torch.float32, device=images.device)
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            shift = torch.full((), -mean / std, device=images.device)
            torch.add(shift, images[:, channel], alpha=1 / (255 * std), out=out[:, channel])
        return out


@dataclass(frozen=True)
class Standardize(_Means):
    """Turns numbers into a model's input: (N, C, ...) -> float32, (x - mean) / std.

    `mean` and `std` have one value for each of the C features or channels. If both are empty,
    floats become float32 and integers int64 (tokens), with the same values. Works on each tensor of
    a tuple or dictionary; with means there must be one tensor. A call raises `TaskError` if there
    are not as many means as channels.
    """

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return the standardised inputs, on their device."""
        if not self.mean:
            return mapped(lambda t: t.float() if t.is_floating_point() else t.long(), inputs)
        values = only(inputs)
        self._expect_fit(values)
        shape = (-1, *[1] * (values.dim() - 2))
        mean, std = (
            torch.tensor(each, device=values.device).view(shape) for each in (self.mean, self.std)
        )
        return values.float().sub(mean).div_(std)


CHUNK = 256  # waveforms that `LogMel` transforms at once: it limits the memory of their spectra


@dataclass(frozen=True)
class LogMel:
    """Log-mel spectrograms of waveforms: (N, T) -> float32 (N, mels, 1 + T // hop).

    Takes int16, which count as -1 to 1, or floats. Frames of `window` samples begin every `hop`
    samples, around whose multiples they are centred; the waveform continues with zeros. Each frame
    is weighted with a Hann window. Its power spectrum goes through `mels` triangular filters, whose
    corners are equally spaced between 0 and `rate` / 2 on the mel scale, m = 2595 log10(1 + f /
    700) (HTK). The result is (log(energy + 1e-6) - mean) / std, with the natural logarithm.
    `rate`: samples per second. The defaults, frames of 25 ms every 10 ms, suit speech; `mean` and
    `std` bring silence to -1, and loud speech to about 1.

    Raises `TaskError` for filters that are too narrow to have a frequency of the spectrum in them;
    a call raises it for inputs that are no waveforms.
    """

    rate: int = 16000
    window: int = 400
    hop: int = 160
    mels: int = 40
    mean: float = -6.9
    std: float = 6.9

    def __post_init__(self) -> None:
        if min(self.rate, self.window, self.hop, self.mels) < 1 or not self.std > 0:
            raise TaskError(f"{self}: give a rate, window, hop, mels and std above 0")
        if not bool(self._filters(torch.device("cpu")).any(1).all()):
            raise TaskError(f"mels={self.mels} are too many for window={self.window}: give fewer")

    def __call__(self, waves: Tensors) -> Tensor:
        """Return the spectrograms, on the device of `waves`."""
        waves = only(waves)
        if waves.dim() != 2 or waves.dtype not in (torch.int16, torch.float32):
            raise TaskError(
                f"waveforms are {waves.dtype} of {tuple(waves.shape)}, and int16 or float32 of "
                f"(N, T) is taken"
            )
        if torch.compiler.is_exporting():
            return self._exported(waves)
        shape = (len(waves), self.mels, 1 + waves.shape[1] // self.hop)
        out = torch.empty(shape, dtype=torch.float32, device=waves.device)
        for start in range(0, len(waves), CHUNK):
            out[start : start + CHUNK] = self._spectrograms(waves[start : start + CHUNK])
        return out

    def _spectrograms(self, waves: Tensor) -> Tensor:
        scaled = waves / 32768 if waves.dtype == torch.int16 else waves
        spectra = torch.stft(
            scaled,
            self._bins,
            self.hop,
            self.window,
            torch.hann_window(self.window, device=waves.device),
            pad_mode="constant",
            return_complex=True,
        )
        # One product for each waveform: a result must not depend on the others of the batch.
        filters = self._filters(waves.device).expand(len(waves), -1, -1)
        energies = torch.bmm(filters, spectra.real.square() + spectra.imag.square())
        return energies.add_(1e-6).log_().sub_(self.mean).div_(self.std)

    def _exported(self, waves: Tensor) -> Tensor:
        """Return spectrograms by a convolution with the cosines and sines of the transform."""
        half, before = self._bins // 2 + 1, (self._bins - self.window) // 2
        hann = torch.hann_window(self.window, dtype=torch.float64)
        hann = pad(hann, (before, self._bins - self.window - before))  # `torch.stft` centres it
        turns = torch.arange(half)[:, None] * torch.arange(self._bins)[None] % self._bins
        angles = turns * (2 * math.pi / self._bins)
        kernel = (torch.cat([angles.cos(), angles.sin()]) * hann).float()[:, None]
        scaled = waves / 32768 if waves.dtype == torch.int16 else waves
        framed = pad(scaled[:, None], (self._bins // 2, self._bins // 2))
        parts = conv1d(framed, kernel, stride=self.hop).square()
        energies = torch.matmul(self._filters(waves.device), parts[:, :half] + parts[:, half:])
        return ((energies + 1e-6).log() - self.mean) / self.std

    @property
    def _bins(self) -> int:
        """The length of the Fourier transform: the next power of 2 from `window` on."""
        return 1 << (self.window - 1).bit_length()

    def _filters(self, device: torch.device) -> Tensor:
        return _mel_filters(self.rate, self._bins, self.mels, device)


@lru_cache(maxsize=16)
def _mel_filters(rate: int, bins: int, mels: int, device: torch.device) -> Tensor:
    """Return the weights of the triangular mel filters, float32 (mels, bins // 2 + 1)."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (torch.linspace(0, top, mels + 2, dtype=torch.float64) / 2595) - 1)
    frequencies = torch.linspace(0, rate / 2, bins // 2 + 1, dtype=torch.float64)
    low, peak, high = (corners[i : i + mels, None] for i in range(3))
    rising, falling = (frequencies - low) / (peak - low), (high - frequencies) / (high - peak)
    return torch.minimum(rising, falling).clamp_min(0).float().to(device)


def saved(transform: Callable[[Tensors], Tensors]) -> dict[str, Any] | None:
    """Return what `restored` makes a transform of: JSON values, with its name as `_target_`.

    The transform is a function of a module, a dataclass, or an object with a method `arguments`,
    which returns the arguments of its class. None for any other transform.
    """
    plain = inspect.isfunction(transform)
    named = transform if plain else type(transform)
    name = f"{named.__module__}.{named.__qualname__}"
    arguments: Any = {}
    try:
        if is_dataclass(transform):
            arguments = {each.name: getattr(transform, each.name) for each in fields(transform)}
        elif not plain:
            arguments = cast(Any, transform).arguments()
        found = json.loads(json.dumps(arguments, allow_nan=False))
    except (AttributeError, TypeError, ValueError):  # no arguments, or values that JSON lacks
        return None
    return {"_target_": name, **found} if "<" not in name else None


def restored(values: Mapping[str, Any]) -> Callable[[Tensors], Tensors]:
    """Return the transform of which `saved` made the values.

    It imports what `_target_` names: the caller must trust that name. Raises `TaskError` if it
    cannot be imported, or refuses its arguments.
    """
    name = str(values.get("_target_"))
    try:
        found: Any = resolve_name(name)
        if inspect.isfunction(found):
            return found
        arguments = {key: each for key, each in values.items() if key != "_target_"}
        if is_dataclass(found):  # JSON has no tuples
            tuples = [each.name for each in fields(found) if str(each.type).startswith("tuple")]
            arguments |= {key: tuple(arguments[key]) for key in tuples if key in arguments}
        return cast(Callable[[Tensors], Tensors], found(**arguments))
    except Exception as error:  # importing and making objects can raise anything
        raise TaskError(f"the transform {name} cannot be made: {described(error)}") from error
