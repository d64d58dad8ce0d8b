"""What a file of weights says of its model: JSON in the metadata of `model.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgewire.task.errors import TaskError, errors_as
from edgewire.task.finetuning import tensors_in
from edgewire.task.model_file import KEY, said_in
from edgewire.task.tensors import Tensors, mapped

LOOKED_AT = 20  # samples of which a description has the least and the largest value
log = getLogger("edgewire")


@dataclass(frozen=True)
class ModelInfo:
    """What `load_model` needs to use a model; it holds JSON values alone, and no paths.

    `dataset`, `model`, `adapter`, `objective`, `seed`: of the run's configuration. `inputs`: the
    raw inputs (`kinds_of`). `transform`: as `transforms.saved` returns it; None if it cannot be
    saved. `classes`: their number; 0 without classes. `class_names`: in the order of the ids; empty
    if they have none. `columns`: those of a table (`Columns.to_json`). `packages`: the users'
    packages that hold classes, as NAME@FINGERPRINT. `batch`: samples of an evaluation's batch.
    `personal`: patterns of the tensors that the nodes keep, so that the file has initial values.
    """

    dataset: dict[str, Any]
    model: dict[str, Any]
    adapter: dict[str, Any]
    objective: dict[str, Any]
    inputs: Any
    transform: dict[str, Any] | None
    seed: int = 0
    classes: int = 0
    class_names: list[str] = field(default_factory=list)
    columns: str | None = None
    packages: list[str] = field(default_factory=list)
    batch: int = 100
    personal: list[str] | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file."""
        told = {k: v for k, v in asdict(self).items() if k != "personal" or v}
        return {KEY: json.dumps(told, separators=(",", ":"), allow_nan=False)}


def read_model(path: Path | str) -> tuple[ModelInfo, dict[str, Tensor]]:
    """Return what a model's file says, and its tensors by name; `path`: the file, or its folder.

    Raises `TaskError` for a file that cannot be read, or that does not say what its model is.
    """
    said = said_in(str(path))
    if not said:
        raise TaskError(f"{path} does not say what its model is: give the folder of a run")
    known = {each.name for each in fields(ModelInfo)}
    with errors_as(f"{path}: what it says of its model is no description"):
        info = ModelInfo(**{key: value for key, value in said.items() if key in known})
    return info, tensors_in(str(path))


def kinds_of(inputs: Tensors, looked_at: int = LOOKED_AT) -> Any:
    """Return the shape of a sample, the dtype and the range of each tensor, in their structure.

    The range is that of the finite values of the first `looked_at` samples; 0 and 1 if there are
    none.
    """

    def kind(each: Tensor) -> Any:
        few = each[:looked_at].real.double()
        finite = few[few.isfinite()]
        low, high = torch.aminmax(finite) if len(finite) else torch.tensor([0.0, 1.0])
        dtype = str(each.dtype).removeprefix("torch.")
        return {"shape": [*each.shape[1:]], "dtype": dtype, "low": low.item(), "high": high.item()}

    return mapped(kind, inputs)


def in_words(kinds: Any) -> str:
    """Return what `kinds_of` has returned as words: float32 samples of (6, 128)."""
    if "dtype" in kinds:
        return f"{kinds['dtype']} samples of {(*kinds['shape'],)}"
    named = kinds.items() if isinstance(kinds, dict) else enumerate(kinds, 1)
    return " and ".join(f"{name}: {in_words(each)}" for name, each in named)


def _for_each(function: Callable[..., Tensor], kinds: Any, *sources: Any) -> Tensors:
    """Return what a function makes of each kind in `kinds_of`, and of the same part of sources."""
    if isinstance(kinds, list | tuple):
        return tuple(function(*each) for each in zip(kinds, *sources, strict=True))
    if "dtype" in kinds:
        return function(kinds, *sources)
    return {name: function(kinds[name], *(each[name] for each in sources)) for name in kinds}


def fitted(source: Any, kinds: Any) -> Tensors:
    """Return arrays or tensors of samples in the types and shapes that `kinds_of` has returned.

    A sample alone becomes a batch of one. Whole numbers may come in a float type. A lacking or an
    additional dimension of 1 is put right, and so are images (N, H, W, C). Other sizes stay, as a
    model may take them. Raises `TaskError` for another structure, another number of dimensions, and
    broken numbers for integers.
    """
    with errors_as(f"the model takes {in_words(kinds)}, and not these"):
        return _for_each(_fitted, kinds, source)


def _fitted(kind: dict[str, Any], source: Any) -> Tensor:
    values = source if isinstance(source, Tensor) else torch.from_numpy(np.array(source))
    dtype, shape = getattr(torch, kind["dtype"]), [*kind["shape"]]
    fits = values.to(dtype)
    if not dtype.is_floating_point and not torch.equal(fits.to(values.dtype), values):
        raise TaskError(f"samples are {values.dtype} with values that {dtype} does not have")
    image = dtype == torch.uint8 and len(shape) == 3
    if image and fits.numel() and 2 * int(fits.max()) < kind["high"]:
        log.warning("these images have smaller values than the training's: are they scaled alike?")
    found, bare = [*fits.shape], [size for size in shape if size != 1]
    if len(shape) == 3 and found[-3:] == [*shape[1:], shape[0]] != shape:
        fits = fits.movedim(-1, -3)
    if found[1:] == bare or found in (shape, bare):  # without a dimension of 1, or one sample
        fits = fits.reshape(-1, *shape)
    elif fits.dim() == len(shape):  # one sample of another size
        fits = fits[None]
    if fits.dim() != len(shape) + 1:
        raise TaskError(f"samples have the shape {tuple(found[1:])}, and {tuple(shape)} is taken")
    return fits


def samples_of(kinds: Any, count: int) -> Tensors:
    """Return random samples that fit what `kinds_of` has returned; always the same ones."""
    random = torch.Generator().manual_seed(0)

    def some(kind: dict[str, Any]) -> Tensor:
        share = torch.rand((count, *kind["shape"]), generator=random, dtype=torch.float64)
        values: Tensor = kind["low"] + (kind["high"] - kind["low"]) * share
        dtype: torch.dtype = getattr(torch, kind["dtype"])
        return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)

    return _for_each(some, kinds)
