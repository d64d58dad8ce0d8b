"""Writes a model for other programs: ONNX, ExecuTorch or torch.export, each checked first."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgewire.task.errors import TaskError, described
from edgewire.task.predictor import Predictor
from edgewire.task.tensors import Tensors, count, leaves, rows

SAMPLES, MOST = 8, 1e-4  # of a check: how many samples, and the largest difference from PyTorch
# format -> packages that it needs, and the extra with them
NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pte": ("executorch",), "torch": ()}
EXTRAS = {"onnx": "onnx", "pte": "executorch"}
ENDS = {"onnx": ".onnx", "pte": ".pte", "torch": ".pt2"}
Run = Callable[[Sequence[Tensor]], Sequence[Any]]


class Answering(nn.Module):
    """Transform, model and the objective's answer as one module, for tensors in their order."""

    def __init__(self, predictor: Predictor, names: Sequence[str] | None, several: bool) -> None:
        super().__init__()
        self.raw = predictor.module
        self.objective, self.names, self.several = predictor.objective, names, several

    def forward(self, *inputs: Tensor) -> Tensors:
        """Return the answer for raw samples, (N, ...) each."""
        given: Any = inputs if self.several else inputs[0]
        if self.names is not None:
            given = dict(zip(self.names, inputs, strict=True))
        return self.objective.answer(self.raw(given))


def export(predictor: Predictor, kind: str, file: Path, samples: Tensors) -> float:
    """Write a model to a file of a format; return its largest difference from PyTorch's answers.

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
        raise TaskError(
            f"{kind} needs {', '.join(lacking)}: pip install 'edgewire[{EXTRAS[kind]}]', or pip "
            f"install {' '.join(NEEDS[kind])}"
        )
    few = rows(samples, 0, SAMPLES)
    names = tuple(few) if isinstance(few, dict) else None
    module = Answering(predictor, names, not isinstance(few, Tensor)).eval()
    if not count(few):
        raise TaskError("there are no samples to try the file with: give FILE")
    partial = file.with_name(f"part.{file.name}")
    try:
        with quiet():
            run = {"onnx": _onnx, "pte": _pte, "torch": _torch}[kind](module, few, partial)
            batches = [rows(few, at, at + 1) for at in range(count(few))]
            batches += [few] if kind != "pte" else []
            worst = max(
                _difference(predictor.outputs(batch), run(leaves(batch))) for batch in batches
            )
    except TaskError:
        raise
    except Exception as error:  # exporters and runtimes raise dozens of types
        raise TaskError(
            f"this model cannot be a .{kind} file ({described(error)[:300]})"
        ) from error
    else:
        if worst <= MOST:
            partial.replace(file)
            return worst
    finally:
        partial.unlink(missing_ok=True)
    raise TaskError(
        f"the .{kind} file answers otherwise than PyTorch, by {worst:.3g}: it is deleted; try "
        f"another format, {' or '.join(each for each in ENDS if each != kind)}"
    )


def _exported(module: nn.Module, few: Tensors, *, free: bool) -> Any:
    """Return torch's program of a module; `free`: for any number of samples."""
    batch = leaves(rows(few, 0, 2 if free else 1))
    if free and len(batch[0]) < 2:  # torch takes a size of 1 for a constant
        batch = tuple(torch.cat([each, each]) for each in batch)
    sizes = {0: torch.export.Dim.DYNAMIC}
    shapes = {"inputs": tuple(sizes for _ in batch)} if free else None
    with torch.no_grad():
        return torch.export.export(module, batch, dynamic_shapes=shapes)


def _torch(module: nn.Module, few: Tensors, file: Path) -> Run:
    torch.export.save(_exported(module, few, free=True), file)
    run = torch.export.load(file).module()
    return lambda inputs: leaves(run(*inputs))


def _onnx(module: nn.Module, few: Tensors, file: Path) -> Run:
    import onnxruntime

    names = (
        [f"input_{at + 1}" for at in range(len(leaves(few)))] if len(leaves(few)) > 1 else ["input"]
    )
    program = torch.onnx.export(
        _exported(module, few, free=True), dynamo=True, input_names=names, verbose=False
    )
    assert program is not None
    program.save(str(file), external_data=False)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    named = [each.name for each in session.get_inputs()]
    return lambda inputs: session.run(
        None, {name: each.numpy() for name, each in zip(named, inputs, strict=True)}
    )


def _pte(module: nn.Module, few: Tensors, file: Path) -> Run:
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    program = to_edge_transform_and_lower(_exported(module, few, free=False)).to_executorch()
    file.write_bytes(program.buffer)
    loaded = Runtime.get().load_program(file)
    method = loaded.load_method("forward")
    return lambda inputs: method.execute([each.contiguous() for each in inputs])


def _difference(expected: Tensors, found: Sequence[Any]) -> float:
    """Return the largest difference of an entry, relative for entries above 1; NaN equals NaN."""
    worst = 0.0
    for a, b in zip(leaves(expected), map(torch.as_tensor, found), strict=True):
        if a.shape != b.shape:
            return float("inf")
        a, b = a.double(), b.double()
        same = (a == b) | (a.isnan() & b.isnan())
        apart = (a - b).abs() / a.abs().clamp_min(1)
        worst = max([worst, *apart[~same].nan_to_num(float("inf")).flatten().tolist()])
    return worst


@contextmanager
def quiet() -> Iterator[None]:
    """Print nothing in this context, also not from libraries in C++."""
    streams = [os.dup(number) for number in (1, 2)]
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with open(os.devnull, "w") as nothing, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in (1, 2):
                os.dup2(nothing.fileno(), number)
            yield
    finally:
        logging.disable(before)
        for number, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, number)
            os.close(stream)
