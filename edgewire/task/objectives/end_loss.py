"""The loss of a model whose last layers are on another node than its samples."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgewire.task.datasets import Data, Split
from edgewire.task.errors import TaskError, errors_as
from edgewire.task.objectives import Objective
from edgewire.task.steps import Batch, counted, evaluating
from edgewire.task.tensors import Tensors, leaves, mapped

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class EndLoss:
    """Computes an objective's loss from the model's output and from what is sent to its node.

    `tensors`: for each tensor that is sent: the shape of one sample, the name of its integer dtype,
    and the number of classes (0 if it holds no classes). They are the targets and, with
    `needs_inputs`, the inputs as the data set holds them. Floats are sent as their bits, so NaN is
    allowed. `classes`: the number of classes if each sample has one class, which is all that is
    sent; else 0. Raises `TaskError` for a dtype that cannot be sent.
    """

    def __init__(self, objective: Objective, data: Data) -> None:
        self._objective, self._data = objective, data
        self.needs_inputs = objective.needs_inputs
        train = data.train
        self._parts = (train.targets, train.inputs) if self.needs_inputs else (train.targets,)
        self._leaves = [leaf for part in self._parts for leaf in leaves(part)]
        self.tensors: list[tuple[tuple[int, ...], str, int]] = []
        for number, tensor in enumerate(self._leaves):
            if tensor.element_size() not in INTEGERS:
                raise TaskError(f"a cut model cannot send {tensor.dtype}: give a smaller type")
            kind = str(INTEGERS[tensor.element_size()]).removeprefix("torch.")
            self.tensors.append((tuple(tensor.shape[1:]), kind, 0 if number else data.classes))
        self.classes = data.classes if len(self.tensors) == 1 else 0

    def sent(self, targets: Tensors, inputs: Tensors = ()) -> list[Tensor]:
        """Return the integers to send for samples of the training split.

        `inputs`: those of the data set, not transformed, if `needs_inputs`.
        """
        parts = (targets, inputs)[: len(self._parts)]
        every = (leaf.cpu().contiguous() for part in parts for leaf in leaves(part))
        return [leaf.view(INTEGERS[leaf.element_size()]) for leaf in every]

    def ranges(self) -> list[tuple[int, int] | None]:
        """Return the least and the largest integer of each sent tensor in the training split.

        None for floats, and for a tensor that is too large to be searched (`counted`).
        """
        return [
            (int(integers.min()), int(integers.max())) if counted(leaf) else None
            for leaf, integers in zip(self._leaves, self.sent(*self._parts), strict=True)
        ]

    def received(self, sent: Sequence[Tensor]) -> Batch:
        """Return the inputs and the targets that the loss takes; `sent`: the result of `sent`.

        The inputs are () if the objective does not need them.
        """
        rest = iter(sent)
        targets, *inputs = (
            mapped(lambda like: next(rest).view(like.dtype), part) for part in self._parts
        )
        return (self._data.transform(inputs[0]) if inputs else ()), targets

    def __call__(self, output: Tensors, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean loss of a mini-batch, a scalar, from the model's output.

        `inputs` are used only if `needs_inputs` says so. Raises any error if the loss needs more.
        """
        given: Any = inputs if self.needs_inputs else object()
        model: Any = _Model(output, given)
        return self._objective.loss(model, given, targets)

    def check(self, model: nn.Module, few: Split) -> None:
        """Raise `TaskError` in one line if the loss of these samples needs more than it will get.

        `model`: the whole model.
        """
        with evaluating(model), torch.no_grad():
            output = model(self._data.prepared(few.inputs))
            with errors_as(
                "a cut model's last node has the output and the targets alone, and the loss of "
                f"{type(self._objective).__name__} needs more",
                ": if it reads the inputs, set needs_inputs = True in its class, and they are sent "
                "there",
            ):
                inputs, targets = self.received(self.sent(few.targets, few.inputs))
                self(output, inputs, targets)


class _Model:
    """Stands for the model at the last node: one call with the inputs returns its output."""

    training = True

    def __init__(self, output: Tensors, inputs: Any) -> None:
        self._answers = [(inputs, output)]

    def __call__(self, inputs: Any) -> Tensors:
        if not self._answers or inputs is not self._answers[0][0]:
            raise ValueError("it calls the model more than once, or with other inputs than its own")
        return self._answers.pop()[1]
