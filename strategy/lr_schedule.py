"""Computes the learning rate of each round with PyTorch's schedulers."""

import math
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau

from edgewire.conf.check import build
from edgewire.conf.schema import ConfigError
from edgewire.task.metric import LOSS
from edgewire.task.objectives import Objective
from edgewire.task.process import uncompiled

TRAIN_LOSS = "train_loss"


class _Rate(torch.optim.SGD):
    """An optimiser that takes no steps; a scheduler changes its learning rate."""

    def __init__(self, lr: float) -> None:
        with uncompiled():
            super().__init__([torch.zeros(1)], lr=lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing; PyTorch's `step` would import PyTorch's compiler, which takes seconds."""


class ReduceOnPlateau(ReduceLROnPlateau):
    """Multiplies the learning rate by `factor` when a value has not improved for `patience` steps.

    `metric`: the value's name: `train_loss`, or a value of the evaluation. The objective says
    whether a higher value is better. The other options are torch's.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        metric: str = TRAIN_LOSS,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(
            optimizer, "min", factor, patience, threshold, threshold_mode, cooldown, min_lr, eps
        )
        self.metric = metric

    def use(self, objective: Objective) -> None:
        """Take the metric's direction; raises `ConfigError` for a metric that is not measured."""
        higher = {metric.name: metric.higher for metric in (LOSS, *objective.metrics)}
        higher[TRAIN_LOSS] = False
        if self.metric not in higher:
            raise ConfigError(
                f"schedule.metric={self.metric}: {type(objective).__name__} does not measure it; "
                f"there are: {', '.join(higher)}"
            )
        if higher[self.metric]:
            self.mode, self.best = "max", -math.inf

    def _is_better(self, a: float, best: float) -> bool:
        # torch's relative threshold is a share of `best`, so its sign is wrong for values below 0.
        share = self.threshold if self.threshold_mode == "rel" else 0.0
        step = self.threshold if self.threshold_mode == "abs" else 0.0
        share = -share if best < 0 else share
        if self.mode == "max":
            return a > best * (1.0 + share) + step
        return a < best * (1.0 - share) - step


class Cooldown(LambdaLR):
    """A constant learning rate that falls linearly in the last `share` of all `rounds`.

    Hägele et al. 2024, "Scaling laws and compute-optimal training beyond fixed training durations",
    section 3: a constant rate with a linear cooldown. Of the last D = `share` * `rounds` rounds the
    first still has the whole rate, and the last has 1 / D of it. Raises `ValueError` for a share
    that is not above 0 and up to 1.
    """

    def __init__(self, optimizer: Optimizer, rounds: int, share: float = 0.2) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0 and up to 1, not {share:g}")
        falling = max(share * rounds, 1.0)
        super().__init__(optimizer, lambda done: max(min(1.0, (rounds - done) / falling), 0.0))


class OneCycle(OneCycleLR):
    """torch's `OneCycleLR`, whose rate rises in at least two steps, and falls in at least one.

    torch divides by zero if the rise has one step, such as a tenth of 10 rounds. In fewer than 3
    steps the rate does not rise.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        *,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
    ) -> None:
        least, most = (2 / total_steps, 1 - 1 / total_steps) if total_steps > 2 else (0.0, 0.25)
        super().__init__(
            optimizer,
            max_lr,
            total_steps,
            pct_start=min(max(pct_start, least), most),
            div_factor=div_factor,
            final_div_factor=final_div_factor,
            anneal_strategy=anneal_strategy,
            cycle_momentum=cycle_momentum,
        )


class Schedule:
    """The learning rate of all nodes in a round.

    The server computes it, because `ReduceOnPlateau` needs the nodes' mean loss, or another value.
    `objective`: names the values that a schedule may depend on. Raises `ConfigError` for others.
    `losses`: the values so far, if the rates depend on them.
    """

    def __init__(self, node: Any, lr: float, objective: Objective | None = None) -> None:
        self.losses: list[float] = []
        self._options = node
        self._optimizer = _Rate(lr)
        self._scheduler = build("schedule", node)(self._optimizer)
        self.metric: str = getattr(self._scheduler, "metric", TRAIN_LOSS)
        if objective is not None and isinstance(self._scheduler, ReduceOnPlateau):
            self._scheduler.use(objective)
        self._optimizer.step()  # PyTorch warns if a scheduler steps before its optimiser

    def load(self, rounds: int, losses: list[float]) -> None:
        """Repeat the steps of another schedule with the same options, which had these `losses`."""
        self.step(None, rounds)
        for loss in losses:
            self.step(loss)

    @property
    def heeds_losses(self) -> bool:
        """Whether the rates depend on losses, so that they are unknown in advance."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    @property
    def lr(self) -> float:
        """The learning rate of the next round."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, loss: float | None, rounds: int = 1) -> None:
        """Advance the schedule by `rounds` rounds.

        `loss`: the value of `metric`, such as the mean training loss of these rounds; None if
        unknown. `ReduceOnPlateau` counts values and not rounds, so it takes one step for any number
        of rounds. Raises `ConfigError` for options with which PyTorch's scheduler fails.
        """
        values: list[float] = []
        if self.heeds_losses:
            rounds = 0 if loss is None else min(rounds, 1)
            values = [] if loss is None else [loss]
            self.losses += values * rounds
        try:
            for _ in range(rounds):
                self._scheduler.step(*values)
        except ArithmeticError as error:
            zero = [key for key, value in self._options.items() if type(value) is int and not value]
            hint = f"; schedule.{zero[0]} must not be 0" if zero else ""
            raise ConfigError(f"schedule: {error}{hint}") from error


class Rates:
    """The learning rate of every mini-batch for a model that is cut into segments on several nodes.

    All segments use the same rate for a mini-batch, although they train on it at different times.
    `known`: the rates so far, which this class extends. A resumed run continues after them.
    """

    def __init__(self, node: Any, lr: float, known: list[float]) -> None:
        self._schedule, self._known = Schedule(node, lr), known
        self._schedule.step(None, max(len(known) - 1, 0))

    def of(self, number: int, newest: float) -> float:
        """Return the learning rate of mini-batch `number`, counted from 0.

        `newest`: the rate after the last evaluation, which is used if the schedule depends on
        losses. The first call for a mini-batch determines its rate.
        """
        while len(self._known) <= number:
            if self._known:
                self._schedule.step(None)
            self._known.append(newest if self._schedule.heeds_losses else self._schedule.lr)
        return self._known[number]
