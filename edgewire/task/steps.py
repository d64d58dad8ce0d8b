"""The steps of training and evaluation: make mini-batches, evaluate a model."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from edgewire.task.datasets import Data, Split
from edgewire.task.errors import TaskError, described, errors_as
from edgewire.task.objectives import Objective
from edgewire.task.objectives.base import KEYS
from edgewire.task.objectives.regression import Regression
from edgewire.task.rng import CPU, IsolatedRng
from edgewire.task.tensors import Tensors, count, leaves, rows, taken

Batch = tuple[Tensors, Tensors]  # inputs, targets
EVALUATED = 100  # samples of an evaluation's batch, see `summed`
ROUNDING = 1e-6  # by which sums of floats may exceed a share
MOST_READ = 1 << 27  # entries of a tensor that is searched for its largest integer


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


def expect_fits(model: nn.Module, objective: Objective, data: Data, mean: bool = False) -> None:
    """Raise `TaskError` in one line if model, objective and data do not fit each other.

    It computes the loss and the metrics of a few samples of both splits: the first two, and those
    with the least and the largest integers, such as classes or tokens. `mean`: compute the metrics
    from the means of the sums, as a server does if nodes evaluate; the sums alone must fit already.
    """
    try:
        for split in (data.train, data.test):
            if len(split):
                _expect_fits(model, objective, data, split.taken(_telling(split)), mean)
    except TaskError:
        raise
    except Exception as error:  # a user's model, transform and objective may raise anything
        if isinstance(data.train.inputs, dict) and "dict" in str(error):
            names = [*data.train.inputs]
            said = f"the samples are arrays by name, {', '.join(names)}, and the model takes one"
            cure = f"give dataset.inputs={names[0]}, or for persons dataset.group={names[-1]}"
            raise TaskError(f"{said}: {cure}") from error
        said = "model=, objective= and dataset= do not fit each other"
        if mean:
            said = "nodes evaluate: measured() must take the sums' means (floats), and samples=1"
        raise TaskError(f"{said} ({described(error)}){_cure(error, data)}") from error


def _cure(error: Exception, data: Data) -> str:
    """Return what to do about an error that torch's words do not explain."""
    ids = [each for each in leaves(data.train.inputs) if counted(each)]
    text, largest = str(error), max((int(each.max()) for each in ids), default=0)
    if "index out of range in self" in text and ids:
        return f": inputs have integers up to {largest}, so a model of tokens needs {largest + 1}"
    if "type" in text and any(each.dtype == torch.float64 for each in leaves(data.train.inputs)):
        return ": the inputs are float64, and a model is float32: give inputs.float()"
    return ""


def expect_trains(model: nn.Module, objective: Objective, data: Data) -> None:
    """Raise `TaskError` in one line if the model cannot train on one sample, as with BatchNorm."""
    x, y = (rows(each, 0, 1) for each in (data.train.inputs, data.train.targets))
    cure = ": give batch_size= of 2 or more, or fewer nodes="
    with errors_as("the model cannot train on mini-batches of one sample", cure):
        trained = copy.deepcopy(model)
        with IsolatedRng(CPU, 0), torch.no_grad():
            objective.loss(trained if trained.training else trained.train(), data.prepared(x), y)


def counted(tensor: Tensor) -> bool:
    """Return whether a tensor holds integers, and few enough to look for the largest one."""
    floats = tensor.is_floating_point() or tensor.is_complex()
    return not floats and 0 < tensor.numel() <= MOST_READ


def _telling(split: Split) -> Tensor:
    """Return the positions of a few samples with which a model or a loss may fail, int64 (k,)."""
    found = [*range(min(2, len(split)))]
    for tensor in (*leaves(split.inputs), *leaves(split.targets)):
        if counted(tensor) and tensor.element_size() > 1:
            size = tensor.numel() // len(tensor)
            flat = tensor.reshape(-1)
            found += [int(flat.argmax()) // size, int(flat.argmin()) // size]
    return torch.tensor(sorted(set(found)), dtype=torch.int64)


def _expect_fits(
    model: nn.Module, objective: Objective, data: Data, few: Split, mean: bool
) -> None:
    inputs, name = data.prepared(few.inputs), type(objective).__name__
    if data.class_names and isinstance(objective, Regression):
        raise TaskError(
            f"the targets are the classes {', '.join(data.class_names[:3])}, ...: give "
            "objective=classification, or a target of numbers"
        )
    with evaluating(model):
        loss = objective.loss(model, inputs, few.targets)
    if not isinstance(loss, Tensor) or loss.shape:
        raise TaskError(f"{name}.loss is no tensor of one number: give its mean")
    if not loss.requires_grad:
        raise TaskError(
            f"{name}.loss has no gradient: it must depend on parameters that are not frozen"
        )
    sums = summed(model, objective, inputs, few.targets)
    if "num-examples" in sums:
        raise TaskError(f"{name}.sums has num-examples, which nodes add: give it another name")
    if mean:
        sums = {
            key: value if key.endswith(KEYS) else (torch.tensor(value) / len(few)).tolist()
            for key, value in sums.items()
        }
    measured = objective.measured(sums, 1 if mean else len(few))
    for each in objective.names:
        if each not in measured:
            raise TaskError(
                f"{name} does not measure {each}: put it into what measured() returns, or into "
                "sums() for the mean over all samples"
            )
        value, (low, high) = measured[each], objective.bounds[each]
        if not isinstance(value, int | float | None) or isinstance(value, bool):
            raise TaskError(f"{name} measures {each} as a {type(value).__name__}")
        if value is not None and (value < low - ROUNDING or value > high + ROUNDING):
            raise TaskError(
                f"{name} measures {each}={value:g}, and says from {low:g} to {high:g} (share=True "
                "is from 0 to 1)"
            )


def evaluation_batch(objective: Objective, batch_size: int) -> int:
    """Return the number of samples in an evaluation's batches; `batch_size`: that of training."""
    return batch_size if objective.batch_loss else EVALUATED


def evaluate(
    model: nn.Module,
    objective: Objective,
    inputs: Tensors,
    targets: Tensors,
    batch_size: int = EVALUATED,
) -> dict[str, float]:
    """Evaluate a model; return the loss and the metrics that are defined (see `summed`)."""
    sums = summed(model, objective, inputs, targets, batch_size)
    return objective.defined(sums, count(inputs))


def summed(
    model: nn.Module,
    objective: Objective,
    inputs: Tensors,
    targets: Tensors,
    batch_size: int = EVALUATED,
    between: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Evaluate a model in eval mode, then restore its mode; return the objective's sums as numbers.

    `inputs`, as the model takes them, and `targets` are on the model's device. Small batches keep
    layers' outputs in the CPU's caches: in batches of 500, AdaComp's CNN takes twice the time.
    `between` is called after each batch. Raises `TaskError` for no samples.
    """
    samples = count(inputs)
    if not samples:
        raise TaskError("there are no samples to evaluate on: give dataset.holdout a larger share")
    sums: dict[str, Tensor] = {}
    keys: dict[str, list[Tensor]] = {}
    with evaluating(model):
        for start in range(0, samples, batch_size):
            x, y = (rows(each, start, start + batch_size) for each in (inputs, targets))
            with torch.no_grad():  # training may use tensors that a model caches here
                for name, value in objective.sums(model, x, y).items():
                    if not isinstance(value, Tensor) or value.dim() > 1:
                        raise TaskError(f"sums() of the objective: {name} is no tensor of numbers")
                    exact = value.double() if value.is_floating_point() else value.long()
                    if name.endswith(KEYS):
                        keys.setdefault(name, []).append(exact)
                    else:
                        sums[name] = sums[name] + exact if name in sums else exact
            if between is not None:  # gradients are on: it may start a training process
                between()
    sums |= {name: torch.cat(parts) for name, parts in keys.items()}
    return {name: total.tolist() for name, total in sums.items()}
