"""The learning rate from round to round, by torch's own schedulers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from conf import ConfigError
from conf.check import build
from task.process import uncompiled


class _Rate(torch.optim.SGD):
    """A learning rate for a scheduler to change, of steps that others take."""

    def __init__(self, lr: float) -> None:
        with uncompiled():
            super().__init__([torch.zeros(1)], lr=lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing: torch's own would import its compiler."""


@dataclass
class ScheduleState:
    """What a schedule was told: steps, and the losses of one that heeds them."""

    steps: int = 0
    losses: list[float] = field(default_factory=list)


class Schedule:
    """The rate all nodes use in a round; kept at the server, since plateau needs the mean loss."""

    def __init__(self, node: Any, lr: float) -> None:
        self.state = ScheduleState()
        self._options = node
        self._optimizer = _Rate(lr)
        self._scheduler = build("schedule", node)(self._optimizer)
        self._optimizer.step()  # a scheduler wants to come after an optimiser's first step

    def load(self, state: ScheduleState) -> None:
        """Take the steps that another schedule of the same options has taken."""
        self.step(None, state.steps)
        for loss in state.losses:
            self.step(loss)

    @property
    def heeds_losses(self) -> bool:
        """Whether rates depend on losses, and are not known before."""
        return isinstance(self._scheduler, ReduceLROnPlateau)

    @property
    def lr(self) -> float:
        """The learning rate of the coming round."""
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self, loss: float | None, rounds: int = 1) -> None:
        """Go on by `rounds`; `loss`: their mean training loss, None if unknown.

        A plateau is of losses: however many rounds one loss is the mean of, it is looked at once.
        Raises `ConfigError` if the schedule's numbers do not allow it.
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
    """The rate of every mini-batch: all segments train on it at the same, whenever they do."""

    def __init__(self, node: Any, lr: float) -> None:
        self._schedule = Schedule(node, lr)
        self._known = [self._schedule.lr]

    def share(self, known: list[float]) -> None:
        """Keep the rates in a list from here on; those that are in it were given out before."""
        while len(self._known) < len(known):
            self.of(len(self._known), known[len(self._known)])
        known[:] = self._known
        self._known = known

    def of(self, number: int, newest: float) -> float:
        """Return the rate of mini-batch `number`, from 0.

        `newest`: the rate as of the last record, for schedules that heed losses: a mini-batch keeps
        the one that was the newest when it was first asked for.
        """
        while len(self._known) <= number:
            if self._schedule.heeds_losses:
                self._known.append(newest)
            else:
                self._schedule.step(None)
                self._known.append(self._schedule.lr)
        return self._known[number]
