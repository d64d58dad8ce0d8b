"""What a file of weights says of its model: JSON in the metadata of `model.safetensors`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgewire.task.errors import TaskError
from edgewire.task.model_file import file_of
from edgewire.task.tensors import Tensors

KEY = "edgewire"  # in the metadata
log = getLogger("edgewire")
LOOKED_AT = 20  # samples of which a description has the least and the largest value


@dataclass(frozen=True)
class ModelInfo:
    """What `load_model` needs to use a model; it holds JSON values alone, and no paths.

    `data`: the name of the data set; `reader`: what reads files of its kind, and its options; None
    if only tensors are taken. `model`, `adapter`, `objective`, `transform`: classes or functions
    (`_target_`) and their arguments; `transform` is None if it cannot be saved. `dtype`: the float
    type in which the model computes. `inputs`: the raw inputs (`described`). `classes`: their
    number; 0 without classes. `class_names`: in the order of the ids; empty if they have none.
    `columns`: those of a table (`Columns.to_json`). `packages`: the users' packages that hold
    classes, as NAME@FINGERPRINT. `seed`: of the model's random constants. `batch`: samples of an
    evaluation's batch.
    """

    data: str
    model: dict[str, Any]
    objective: dict[str, Any]
    inputs: Any
    transform: dict[str, Any] | None
    adapter: dict[str, Any] | None = None
    dtype: str = "float32"
    reader: dict[str, Any] | None = None
    classes: int = 0
    class_names: list[str] = field(default_factory=list)
    columns: str | None = None
    packages: list[str] = field(default_factory=list)
    seed: int = 0
    batch: int = 100
    versions: dict[str, str] = field(default_factory=dict)

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file."""
        return {KEY: json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)}


def read_model(path: Path | str) -> tuple[ModelInfo, dict[str, Tensor]]:
    """Return what a model's file says, and its tensors by name; `path`: the file, or its folder.

    Raises `TaskError` for a file that cannot be read, or that does not say what its model is.
    """
    from safetensors import safe_open

    file = file_of(str(path))
    try:
        with safe_open(file, "pt") as opened:
            said = (opened.metadata() or {}).get(KEY)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors raises errors of several types
        reason = str(error).strip().partition("\n")[0]
        raise TaskError(
            f"{file} is no model's file ({reason}): give the folder of a run"
        ) from error
    if said is None:
        raise TaskError(
            f"{file} does not say what its model is, because an earlier EdgeWire has written it: "
            f"`python run.py start={Path(file).parent} rounds=1` trains it on and writes that"
        )
    try:
        found = json.loads(said)
        known = {each.name for each in fields(ModelInfo)}
        info = ModelInfo(**{key: value for key, value in found.items() if key in known})
    except (ValueError, TypeError, AttributeError) as error:
        raise TaskError(f"{file}: what it says of its model cannot be read: {error}") from error
    return info, tensors


def described(inputs: Tensors, looked_at: int = LOOKED_AT) -> Any:
    """Return the shape of a sample, the dtype and the range of each tensor, in its structure.

    The range is that of the finite values of the first `looked_at` samples; 0 and 1 if there are
    none.
    """
    if isinstance(inputs, dict):
        return {name: described(each, looked_at) for name, each in inputs.items()}
    if isinstance(inputs, tuple):
        return [described(each, looked_at) for each in inputs]
    few = inputs[:looked_at].real if inputs.is_complex() else inputs[:looked_at]
    few = few.double() if few.is_floating_point() else few.long()
    finite = few[few.isfinite()]
    low, high = torch.aminmax(finite) if finite.numel() else (torch.zeros(1), torch.ones(1))
    kind = str(inputs.dtype).removeprefix("torch.")
    return {"shape": [*inputs.shape[1:]], "dtype": kind, "low": low.item(), "high": high.item()}


def fitted(source: Any, description: Any) -> Tensors:
    """Return arrays or tensors of samples in the types and shapes that `described` has returned.

    A sample alone becomes a batch of one. Whole numbers may come in a float type. A lacking or an
    additional dimension of 1 is put right, and so are images (N, H, W, C). Other sizes stay, as a
    model may take them. Raises `TaskError` for another structure, another number of dimensions, and
    broken numbers for integers.
    """
    names = description if isinstance(description, dict) and "dtype" not in description else None
    if names is not None or isinstance(description, list):
        keys: Any = names if names is not None else range(len(description))
        if not isinstance(source, dict if names is not None else list | tuple) or len(
            source
        ) != len(description):
            raise TaskError(f"the model takes several tensors: {description}")
        try:
            found = {key: fitted(source[key], description[key]) for key in keys}
        except KeyError as error:
            raise TaskError(f"the model also takes {error}") from error
        return found if names is not None else tuple(found.values())  # type: ignore[return-value,arg-type]
    try:
        values = source if isinstance(source, Tensor) else torch.from_numpy(np.array(source))
    except (TypeError, ValueError) as error:
        raise TaskError(f"samples are tensors or arrays of numbers, not these: {error}") from error
    return _shaped(_typed(values, description), description["shape"])


def _typed(values: Tensor, description: dict[str, Any]) -> Tensor:
    kind = getattr(torch, description["dtype"])
    whole = values.double().aminmax() if values.numel() else (0, 0)
    low, high = map(float, whole)
    if (
        values.is_floating_point()
        and not kind.is_floating_point
        and (values != values.round()).any()
    ):
        raise TaskError(f"samples are {values.dtype} with fractions, and {kind} is taken")
    if kind == torch.uint8 and not 0 <= low <= high <= 255:
        raise TaskError(f"samples are from {low:g} to {high:g}, and 0 to 255 is taken")
    if kind == torch.uint8 and len(description["shape"]) == 3 and 2 * high < description["high"]:
        log.warning(
            "these images go up to %g, and those of the training up to %g: are they scaled alike?",
            high, description["high"],
        )  # fmt: skip
    return values.to(kind)


def _shaped(values: Tensor, shape: list[int]) -> Tensor:
    """Return a batch of samples of `shape`, or of other sizes in as many dimensions."""
    found, bare = [*values.shape], [size for size in shape if size != 1]
    if len(shape) == 3 and found[-3:] == [*shape[1:], shape[0]] != shape:
        values = values.movedim(-1, -3)
        found = [*values.shape]
    if not shape or len(found) == len(shape) + 1:
        return values
    if found in (shape, bare):  # one sample
        return values.reshape(1, *shape)
    if found[1:] == bare:
        return values.reshape(-1, *shape)
    if len(found) == len(shape):  # one sample of another size
        return values[None]
    raise TaskError(f"samples have the shape {tuple(found[1:])}, and {tuple(shape)} is taken")


def samples_of(description: Any, count: int) -> Tensors:
    """Return random samples that fit what `described` has returned; always the same ones."""
    if isinstance(description, list):
        return tuple(samples_of(each, count) for each in description)  # type: ignore[misc]
    if "dtype" not in description:
        return {name: samples_of(each, count) for name, each in description.items()}  # type: ignore[misc]
    random = torch.Generator().manual_seed(0)
    low, high = float(description["low"]), float(description["high"])
    kind = getattr(torch, description["dtype"])
    share = torch.rand((count, *description["shape"]), generator=random, dtype=torch.float64)
    if kind.is_floating_point:
        return (low + (high - low) * share).to(kind)
    return (low + ((high - low + 1) * share).floor()).to(kind)
