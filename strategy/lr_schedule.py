"""Computes the learning rate of each round with PyTorch's schedulers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from conf import ConfigError
from conf.check import build
from task.process import uncompiled


class _Rate(torch.optim.SGD):
    """An optimiser that takes no steps; a scheduler changes its learning rate."""

    def __init__(self, lr: float) -> None:
        with uncompiled():
            super().__init__([torch.zeros(1)], lr=lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing; PyTorch's `step` would import PyTorch's compiler, which takes seconds."""


@dataclass
class ScheduleState:
    """State of `Schedule`: the number of steps, and the losses if the rates depend on them."""

    steps: int = 0
    losses: list[float] = field(default_factory=list)


class Schedule:
    """The learning rate of all nodes in a round.

    The server computes it, because `ReduceLROnPlateau` needs the nodes' mean loss.
    """

    def __init__(self, node: Any, lr: float) -> None:
        self.state = ScheduleState()
        self._options = node
        self._optimizer = _Rate(lr)
        self._scheduler = build("schedule", node)(self._optimizer)
        self._optimizer.step()  # PyTorch warns if a scheduler steps before its optimiser

    def load(self, state: ScheduleState) -> None:
        """Repeat the steps of another schedule with the same options."""
        self.step(None, state.steps)
        for loss in state.losses:
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

        `loss`: the mean training loss of these rounds; None if unknown. `ReduceLROnPlateau` counts
        losses and not rounds, so it takes one step for any number of rounds. Raises `ConfigError`
        for options with which PyTorch's scheduler fails.
        """
        plateau = self.heeds_losses
        if plateau and loss is None:
            return
        if plateau and loss is not None:
            self.state.losses += [loss] * min(rounds, 1)
        else:
            self.state.steps += rounds
        try:
            for _ in range(min(rounds, 1) if plateau else rounds):
                self._scheduler.step(*([loss] if plateau else []))
        except ArithmeticError as error:
            zero = [key for key, value in self._options.items() if type(value) is int and not value]
            hint = f"; schedule.{zero[0]} must not be 0" if zero else ""
            raise ConfigError(f"schedule: {error}{hint}") from error


class Rates:
    """The learning rate of every mini-batch for a model that is cut into segments on several nodes.

    All segments use the same rate for a mini-batch, although they train on it at different times.
    """

    def __init__(self, node: Any, lr: float) -> None:
        self._schedule = Schedule(node, lr)
        self._known = [self._schedule.lr]

    def share(self, known: list[float]) -> None:
        """From now on store the rates in the list `known`, so that a checkpoint can hold them.

        If `known` has rates of an earlier part of a resumed run, continue after these rates.
        """
        while len(self._known) < len(known):
            self.of(len(self._known), known[len(self._known)])
        known[:] = self._known
        self._known = known

    def of(self, number: int, newest: float) -> float:
        """Return the learning rate of mini-batch `number`, counted from 0.

        `newest`: the rate after the last evaluation, which is used if the schedule depends on
        losses. The first call for a mini-batch determines its rate.
        """
        while len(self._known) <= number:
            if self._schedule.heeds_losses:
                self._known.append(newest)
            else:
                self._schedule.step(None)
                self._known.append(self._schedule.lr)
        return self._known[number]
