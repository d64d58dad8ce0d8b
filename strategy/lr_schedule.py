"""The learning rate of each round, from torch's own schedulers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from conf import ConfigError
from conf.check import build
from task.process import uncompiled


class _Rate(torch.optim.SGD):
    """An optimiser without steps: a learning rate for a scheduler to change."""

    def __init__(self, lr: float) -> None:
        with uncompiled():
            super().__init__([torch.zeros(1)], lr=lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: torch's own `step` would import its compiler, which takes seconds."""


@dataclass
class ScheduleState:
    """What a schedule has received: the number of steps, and losses if its rates depend on them."""

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
        self._optimizer.step()  # torch warns if a scheduler steps before its optimiser

    def load(self, state: ScheduleState) -> None:
        """Repeat the steps of another schedule with the same options."""
        self.step(None, state.steps)
        for loss in state.losses:
            self.step(loss)

    @property
    def heeds_losses(self) -> bool:
        """Whether rates depend on losses, so that they are unknown in advance."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    @property
    def lr(self) -> float:
        """The learning rate of the coming round."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, loss: float | None, rounds: int = 1) -> None:
        """Go on by `rounds`; `loss`: their mean training loss, None if unknown.

        `ReduceLROnPlateau` counts losses, not rounds: it takes one step with `loss`, whatever
        `rounds` is. Raises `ConfigError` for options with which torch's scheduler cannot compute.
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
    """The rate of every mini-batch: all segments use the same rate, whenever they train on it."""

    def __init__(self, node: Any, lr: float) -> None:
        self._schedule = Schedule(node, lr)
        self._known = [self._schedule.lr]

    def share(self, known: list[float]) -> None:
        """Keep the rates in the list `known` from now on; it may hold those of a resumed run."""
        while len(self._known) < len(known):
            self.of(len(self._known), known[len(self._known)])
        known[:] = self._known
        self._known = known

    def of(self, number: int, newest: float) -> float:
        """Return the rate of mini-batch `number`, from 0.

        `newest`: the rate as of the last record, for schedules that depend on losses. A mini-batch
        keeps the rate that was the newest at the first call for it.
        """
        while len(self._known) <= number:
            if self._schedule.heeds_losses:
                self._known.append(newest)
            else:
                self._schedule.step(None)
                self._known.append(self._schedule.lr)
        return self._known[number]
