"""The steps of training and evaluation: make mini-batches, evaluate a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from task.errors import TaskError
from task.objectives import Objective
from task.tensors import Tensors, count, leaves, rows, taken

Batch = tuple[Tensors, Tensors]  # inputs, targets


def batches(
    inputs: Tensors,
    targets: Tensors,
    batch_size: int,
    generator: torch.Generator,
    *,
    single: bool = True,
) -> Iterator[Batch]:
    """Yield one epoch's mini-batches, shuffled by a CPU `generator`; the last may be smaller.

    With `single=False` a last mini-batch of one sample joins the previous one, because BatchNorm
    cannot normalise a single value.
    """
    total = count(inputs)
    order = torch.randperm(total, generator=generator).to(leaves(inputs)[0].device)
    inputs, targets = taken(inputs, order), taken(targets, order)  # one copy for the epoch
    ends = [*range(batch_size, total, batch_size), total]
    if not single and len(ends) > 1 and ends[-1] - ends[-2] == 1:
        del ends[-2]
    for start, end in zip([0, *ends], ends, strict=False):
        yield rows(inputs, start, end), rows(targets, start, end)  # views


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In this context a model and its modules are in eval mode; afterwards each has its own."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def expect_fits(model: nn.Module, objective: Objective, inputs: Tensors, targets: Tensors) -> None:
    """Raise `TaskError` in one line if model, objective and these samples do not fit each other."""
    try:
        with evaluating(model), torch.no_grad():
            shape = tuple(objective.loss(model, inputs, targets).shape)
        measured = evaluate(model, objective, inputs, targets)
        missing = [name for name in objective.names if name not in measured]
    except TaskError:
        raise
    except Exception as error:  # a user's model and objective may raise anything
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise TaskError(
            f"model=, objective= and dataset= do not fit each other ({reason})"
        ) from error
    if shape:
        raise TaskError(f"{type(objective).__name__}.loss has the shape {shape}: give its mean")
    if missing:
        raise TaskError(f"{type(objective).__name__} does not measure {missing[0]}, which it names")


def evaluate(
    model: nn.Module,
    objective: Objective,
    inputs: Tensors,
    targets: Tensors,
    batch_size: int = 100,
    between: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Evaluate a model in eval mode, then restore its mode; return the loss and the metrics.

    `inputs`, as the model takes them, and `targets` are on the model's device. Small batches keep
    layers' outputs in the CPU's caches: in batches of 500, AdaComp's CNN takes twice the time.
    `between` is called after each batch. Raises `TaskError` for no samples.
    """
    samples = count(inputs)
    if not samples:
        raise TaskError("there are no samples to evaluate on: give dataset.holdout a larger share")
    sums: dict[str, Tensor] = {}
    with evaluating(model):
        for start in range(0, samples, batch_size):
            x, y = (rows(each, start, start + batch_size) for each in (inputs, targets))
            with torch.inference_mode():
                for name, value in objective.sums(model, x, y).items():
                    exact = value.double() if value.is_floating_point() else value.long()
                    sums[name] = sums[name] + exact if name in sums else exact
            if between is not None:  # outside of inference mode: it may start a training process
                between()
    return objective.measured({name: total.item() for name, total in sums.items()}, samples)
