"""Writes a model for other programs: ONNX, ExecuTorch or torch.export, each checked first."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgewire.task.errors import TaskError, described
from edgewire.task.predictor import Predictor
from edgewire.task.tensors import Tensors, count, leaves, mapped, rows

SAMPLES, MOST = 8, 1e-4  # of a check: how many samples, and the largest difference from PyTorch
# format -> packages that it needs; the extras with them have the names of the first ones
NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pte": ("executorch",), "torch": ()}
ENDS = {"onnx": ".onnx", "pte": ".pte", "torch": ".pt2"}
Run = Callable[[Tensors], Sequence[Any]]


def export(predictor: Predictor, kind: str, file: Path, samples: Tensors) -> None:
    """Write a model to a file of a format, and compare its answers with PyTorch's.

    The file holds the transform of raw samples, the model and `Objective.answer`: probabilities for
    classes. `kind`: "onnx" or "torch" (torch.export), for any number of samples at once, or "pte"
    (ExecuTorch), for one. `samples`: raw samples, of which the first `SAMPLES` are tried.

    Raises `TaskError` for a package that is not installed, for a model that the format cannot hold,
    and for a file of which an answer differs by more than `MOST` (of its size, above 1); no file is
    left then.
    """
    if kind not in ENDS:
        raise TaskError(f"{kind} is no format: give one of {', '.join(ENDS)}")
    if lacking := [name for name in NEEDS[kind] if find_spec(name) is None]:
        extra = NEEDS[kind][0]
        raise TaskError(
            f"{kind} needs {', '.join(lacking)}: uv pip install -e '.[{extra}]' in the checkout"
        )
    few = rows(samples, 0, SAMPLES)
    if not count(few):
        raise TaskError("there are no samples to try the file with: give FILE")
    batches = [rows(few, at, at + 1) for at in range(count(few))] + [few] * (kind != "pte")
    expected = [leaves(predictor.outputs(batch)) for batch in batches]
    partial = file.with_name(f"part.{file.name}")
    write = {"onnx": _onnx, "pte": _pte, "torch": _torch}[kind]
    try:
        with quiet(), torch.no_grad():
            run = write(predictor, few, partial)
            alike = all(map(_alike, expected, map(run, batches)))
        if alike:
            partial.replace(file)
    except Exception as error:  # the formats' libraries raise errors of many types
        raise TaskError(f"this model cannot be a .{kind} file ({described(error)})") from error
    finally:
        partial.unlink(missing_ok=True)
    if not alike:
        others = " or ".join(each for each in ENDS if each != kind)
        raise TaskError(
            f"the .{kind} file answers otherwise than PyTorch: it is deleted; try {others}"
        )


def _alike(expected: Sequence[Tensor], found: Sequence[Any]) -> bool:
    """Return whether answers differ by `MOST` at most, of their size above 1; NaN equals NaN."""
    pairs = [(a.double(), torch.as_tensor(b)) for a, b in zip(expected, found, strict=True)]
    return all(
        a.shape == b.shape and torch.allclose(a, b.double(), MOST / 2, MOST / 2, equal_nan=True)
        for a, b in pairs
    )


def _exported(predictor: Predictor, few: Tensors, *, free: bool) -> Any:
    """Return torch's program of a model; `free`: for any number of samples."""
    # torch takes a size of 1 for a constant
    batch = mapped(lambda each: torch.cat([each, each])[:2] if free else each[:1], few)
    sizes = (mapped(lambda _: {0: torch.export.Dim.DYNAMIC}, few),) if free else None  # type: ignore[arg-type,return-value]
    return torch.export.export(predictor.answering, (batch,), dynamic_shapes=sizes)


def _torch(predictor: Predictor, few: Tensors, file: Path) -> Run:
    torch.export.save(_exported(predictor, few, free=True), file)
    run = torch.export.load(file).module()
    return lambda inputs: leaves(run(inputs))


def _onnx(predictor: Predictor, few: Tensors, file: Path) -> Run:
    import onnxruntime

    def names(word: str, found: tuple[Tensor, ...]) -> list[str]:
        return [f"{word}_{at + 1}" for at in range(len(found))] if len(found) > 1 else [word]

    program = torch.onnx.export(
        _exported(predictor, few, free=True),
        dynamo=True,
        input_names=names("input", leaves(few)),
        output_names=names("output", leaves(predictor.outputs(few))),
        dynamic_shapes=(mapped(lambda _: {0: "batch"}, few),),  # type: ignore[arg-type,return-value]
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(predictor.info.metadata())
    program.save(str(file), external_data=False)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    named = [each.name for each in session.get_inputs()]
    return lambda inputs: session.run(
        None, {name: each.numpy() for name, each in zip(named, leaves(inputs), strict=True)}
    )


def _pte(predictor: Predictor, few: Tensors, file: Path) -> Run:
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    program = to_edge_transform_and_lower(_exported(predictor, few, free=False)).to_executorch()
    file.write_bytes(program.buffer)
    loaded = Runtime.get().load_program(file)
    method = loaded.load_method("forward")
    return lambda inputs: method.execute([each.contiguous() for each in leaves(inputs)])


@contextmanager
def quiet() -> Iterator[None]:
    """Print nothing in this context, also not from libraries in C++."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with ExitStack() as stack:
        stack.callback(logging.disable, before)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        nothing = stack.enter_context(open(os.devnull, "w"))
        for number in (1, 2):
            stream = os.dup(number)
            stack.callback(os.close, stream)
            stack.callback(os.dup2, stream, number)
            os.dup2(nothing.fileno(), number)
        yield
