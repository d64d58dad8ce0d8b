"""The base class of local algorithms, which takes the optimiser's step with each mini-batch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from edgewire.task.errors import TaskError
from edgewire.task.flat_model import FlatModel
from edgewire.task.local.dp_sgd import DpSgd
from edgewire.task.objectives import Objective
from edgewire.task.steps import Batch

SCALE = "loss_scale"  # in a node's state: the factor of the loss, and the steps since it changed
FIRST_SCALE, GROWS_AFTER = 65536.0, 2000  # as in torch's GradScaler: it doubles after these steps
FLOATS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class LocalRun:
    """A node's training for one message.

    - `flat`: the model. `flat.parameters`, float32 (n,), holds all trained parameters as one
      vector, and `flat.parameters.grad`, float32 (n,), their gradients. It holds the received model
      before the first step. The first `flat.num_personal` parameters are the node's own.
    - `objective`, `optimizer`: the run's; the optimiser steps `flat.parameters`.
    - `lr`: the learning rate. `proximal_mu`: the weight of FedProx's proximal term that the server
      sent; 0: it sent none.
    - `share`: the share of the nodes that train in a round, in (0, 1].
    - `state`: the node's own tensors by name. They are stored until the node's next message.
    - `lost`: True if the node has lost its state, so that `state` is empty.
    - `vectors`: the vectors that travel beside the model (`LocalAlgorithm.vectors`), float32 (n,),
      by name: the server's before training. The algorithm sets those that the node reports.
    - `temporary`: tensors by name, which are deleted after this training.
    - `steps`: the number of the optimiser's steps so far.
    - `private`: makes the gradients of mini-batches private; None: it is a run without that.
    """

    flat: FlatModel
    objective: Objective
    optimizer: Optimizer
    take_step: Callable[[Optimizer], Any]
    lr: float
    proximal_mu: float = 0.0
    share: float = 1.0
    state: dict[str, Tensor] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)
    temporary: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    lost: bool = False
    private: DpSgd | None = None

    @property
    def module(self) -> nn.Module:
        """The model as PyTorch's module; its parameters are views of `flat.parameters`."""
        return self.flat.module

    @property
    def gradient(self) -> Tensor:
        """The gradient of the last mini-batches, float32 (n,); changes in place are used."""
        return self.flat.gradient

    def step(self) -> None:
        """Take the optimiser's step with `gradient`."""
        self.take_step(self.optimizer)
        self.steps += 1


class LocalAlgorithm:
    """Takes one step of the run's optimiser with each mini-batch: plain local SGD.

    A subclass overrides `begin`, `correct` and `end`, or the whole loop, `train`. One object serves
    all nodes of a process, so it stores nothing: what differs between nodes is in `LocalRun`.

    `vectors`: names of vectors, float32 (n,) for n trained parameters, that travel beside the model
    in both directions. They are 0 at the start of a run. The server replaces each by the weighted
    mean of the vectors that nodes report, or with a robust strategy by their median. An
    asynchronous strategy without a buffer replaces them by each report.
    `over_all_nodes`: True if the server's vector is a mean over all nodes (`NodeMeans`), also over
    those without a used report. Such an algorithm needs a strategy with rounds.
    `pending`: True if a change of `LocalRun.state` is undone when the server has not applied the
    reply, because its update was lost or refused.
    `uses_proximal_mu`: whether the algorithm uses the `proximal_mu` of the server's message.

    Args:
        accumulate: mini-batches whose mean gradient makes one step.
        autocast: "bfloat16" or "float16": the type of torch's automatic mixed precision (on a GPU).
            With float16 the loss is scaled, so that small gradients do not become 0 (Micikevicius
            et al. 2018, section 3.2). null: none.
        quantizer: the quantizer for `vectors` in messages, such as int8; float32: they are sent
            without loss.

    Raises:
        ValueError: another value.
    """

    vectors: ClassVar[tuple[str, ...]] = ()
    over_all_nodes: ClassVar[bool] = False
    pending: ClassVar[bool] = True
    uses_proximal_mu: ClassVar[bool] = False
    accumulate: int = 1  # also for a subclass whose `__init__` does not call this class's
    autocast: str | None = None
    quantizer: str = "float32"

    def __init__(
        self, accumulate: int = 1, autocast: str | None = None, quantizer: str = "float32"
    ) -> None:
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, not {accumulate}")
        if autocast is not None and autocast not in FLOATS:
            raise ValueError(f"autocast must be null, bfloat16 or float16, not {autocast!r}")
        if quantizer != "float32" and not self.vectors:
            raise ValueError("quantizer is for vectors, and this algorithm sends none: drop it")
        self.accumulate, self.autocast = accumulate, autocast
        self.quantizer = quantizer

    def check_strategy(self, options: Mapping[str, Any]) -> None:
        """Raise `ValueError` for a strategy, given by its options, that does not go with this."""
        if options.get("proximal_mu") and not self.uses_proximal_mu:
            raise ValueError("strategy.proximal_mu needs local=fedprox, or drop it")
        steps = type(self) is not LocalAlgorithm or self.accumulate > 1
        if options.get("update") == "gradient" and (steps or self.autocast == "float16"):
            raise ValueError(
                "local= is for steps at the nodes, and with strategy.update=gradient they take "
                "none: drop it, or give strategy.update=delta"
            )
        if self.over_all_nodes and "fraction_train" not in options:
            name = type(self).__name__.lower()
            raise ValueError(f"local={name} goes with strategies that have fraction_train=")

    def begin(self, run: LocalRun) -> None:
        """Prepare the training for one message, before the first step."""

    def correct(self, run: LocalRun) -> None:
        """Change `run.gradient` in place, before a step."""

    def end(self, run: LocalRun) -> None:
        """Finish the training for one message: set `run.state` and `run.vectors`."""

    def loss(self, run: LocalRun, batch: Batch) -> Tensor:
        """Return the loss of a mini-batch, computed in the type of `autocast`."""
        with self.precision(run.flat):
            return run.objective.loss(run.flat.module, *batch)

    def train(self, run: LocalRun, batches: Iterator[Batch]) -> float:
        """Train with all mini-batches; return the mean of their losses."""
        total, count = torch.zeros((), device=run.flat.state.device), 0
        scale: list[float] | None = None
        if self.autocast == "float16":
            scale = run.state.pop(SCALE, torch.tensor([FIRST_SCALE, 0.0])).tolist()
        self.begin(run)
        batches = iter(batches)  # an algorithm may pass a list
        for group in iter(lambda: tuple(islice(batches, self.accumulate)), ()):
            total += self._backward(run, group, scale)
            count += len(group)
            self.correct(run)
            run.step()
        self.end(run)
        if scale is not None:
            run.state[SCALE] = torch.tensor(scale, dtype=torch.float64)
        return total.item() / count

    def _backward(
        self, run: LocalRun, group: tuple[Batch, ...], scale: list[float] | None
    ) -> Tensor:
        """Compute the mean gradient of mini-batches; return the sum of their losses.

        `scale`: the two numbers of `SCALE`. It is halved until the gradient is finite. Torch's
        GradScaler skips such a step, and a node with few mini-batches would then skip all of them.

        With `run.private` the sum is 0: the loss would tell of the samples.
        """
        while True:
            run.flat.zero_grad()
            if run.private is not None:
                for batch in group:
                    noisy = run.private.gradient(batch).to(run.gradient.device)
                    run.gradient.add_(noisy, alpha=1 / len(group))
                return torch.zeros((), device=run.gradient.device)
            total: Tensor | None = None
            for batch in group:
                loss = self.loss(run, batch)
                found = loss.detach()
                total = found if total is None else total + found
                if self.accumulate > 1:
                    loss = loss / len(group)
                if scale is not None:
                    loss = loss * torch.tensor(scale[0])
                loss.backward()  # type: ignore[no-untyped-call]
            assert total is not None
            if scale is None:
                return total
            if run.gradient.mul_(1 / scale[0]).isfinite().all():
                grows = scale[1] + 1 == GROWS_AFTER
                scale[:] = [2 * scale[0], 0] if grows else [scale[0], scale[1] + 1]
                return total
            scale[:] = [scale[0] / 2, 0]
            if scale[0] < 1:
                raise TaskError(
                    "the gradient is infinite in float16: give local.autocast=bfloat16, or a lower "
                    "lr="
                )

    def precision(self, flat: FlatModel) -> AbstractContextManager[Any]:
        """Return a context in which layers compute in the type of `autocast`."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(flat.state.device.type, dtype=FLOATS[self.autocast])
