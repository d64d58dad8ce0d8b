"""A segment of the model with all that trains it: what one node holds of a cut model."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn.functional import mse_loss

from compression import PayloadError
from compression.base import DIVERGED
from compression.flower.batch_tensors import (
    GRADIENT,
    MODULE,
    SAMPLES,
    STATE,
    SnapshotForm,
    types_of,
)
from conf import Config
from conf.build import model_of, optimizer_of
from task.datasets import Data
from task.flat_model import FlatModel, put_array, to_array
from task.gradient_predictor import GradientModule
from task.layers import Segment, empty_segment, parts_of
from task.rng import IsolatedRng, stream_seed

Vector = NDArray[np.float32]
LARGEST = 1e18  # of a gradient: its square is within float32
_LAYER, _MODULE = 0x1A7E, 0x30D  # keep streams of (seed, layer) and (seed, segment) apart


class Place(NamedTuple):
    """Which segment this is, from 0, of a model cut before the layers `cuts`."""

    segment: int
    cuts: tuple[int, ...]

    @property
    def begins(self) -> bool:
        """Whether its input is the images."""
        return self.segment == 0

    @property
    def ends(self) -> bool:
        """Whether its output goes into the loss."""
        return self.segment == len(self.cuts)


class Passed(NamedTuple):
    """What a mini-batch leaves: each as it travels, float32 (B, ...)."""

    output: Tensor | None  # None at the model's end
    back: Tensor | None  # the gradient of the input; None at its beginning
    loss: float | None  # the mini-batch's mean, at the model's end


class Trained:
    """A flat module and its optimiser, which steps only along gradients that are finite."""

    def __init__(self, module: nn.Module, config: Config) -> None:
        self.flat = FlatModel(module, config.device)
        self.optimizer = optimizer_of(config, [self.flat.parameters])
        self._step = inspect.unwrap(type(self.optimizer).step)

    def step(self, lr: float, samples: int) -> None:
        """Step along the gradient of a sum over so many samples, made a mean.

        Raises `PayloadError` if it is not finite, or its squares, which optimisers keep, are not.
        """
        gradient = self.flat.collect_grad()
        self.flat.parameters.grad = gradient.mul_(1 / samples)
        if gradient.numel() and not gradient.abs().max().item() < LARGEST:  # NaN is not, either
            raise PayloadError(f"gradients are not finite, or nearly: {DIVERGED}; lower lr=")
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self._step(self.optimizer)

    def arrays(self, name: str, whole: bool) -> dict[str, Vector]:
        """Return the state as vectors that share its memory (on a CPU); `whole`: the memory of the
        optimiser, too.
        """
        found = {name: self.flat.state}
        if whole:
            state = self.optimizer.state.get(self.flat.parameters, {})
            found |= {f"{name} {key}": t for key, t in state.items() if isinstance(t, Tensor)}
        return {key: t.detach().cpu().numpy().reshape(-1) for key, t in found.items()}

    def load(self, name: str, arrays: dict[str, Vector]) -> None:
        """Take over what `arrays` gave."""
        self.flat.load(arrays[name])
        self.optimizer.state.clear()
        state = {}
        for key, array in arrays.items():
            if key.startswith(f"{name} "):
                whole = array.size == self.flat.num_parameters
                tensor = torch.from_numpy(array.copy()).to(self.flat.state.device)
                state[key.removeprefix(f"{name} ")] = tensor if whole else tensor.reshape(())
        if state:
            self.optimizer.state[self.flat.parameters] = state


class Stage:
    """Trains a segment by the gradients that its module predicts, or by those it is handed.

    Layers draw from (seed, layer, mini-batch), wherever the model is cut. The loss is summed over a
    mini-batch, so that gradients of activations are of order 1 a sample (Jaderberg et al. 2017);
    parameters step along the mean.
    """

    def __init__(self, config: Config, data: Data, place: Place) -> None:
        make = partial(model_of, config, data)
        self.place, self._seed = place, config.seed
        self._device = torch.device(config.device)
        self.part = parts_of(make, place.cuts, tuple(data.train.images.shape[1:]))[place.segment]
        self.segment: Segment = empty_segment(make, self.part.first, self.part.last)
        self.segment.train()
        self.main = Trained(self.segment, config)
        self._loss = nn.CrossEntropyLoss(reduction="sum")
        self._graphs: dict[str, tuple[Tensor, Tensor]] = {}
        self._samples = 0  # of the micro-batches since the last step
        self._config, self._classes = config, data.classes
        self.module: Trained | None = None
        if config.strategy["synthetic"] and not place.ends:
            self._make_module()

    def _make_module(self) -> None:
        options = self._config.strategy
        classes = self._classes if options["conditioned"] else 0
        with IsolatedRng(torch.device("cpu"), stream_seed(self._seed, _MODULE, self.place.segment)):
            module = GradientModule(self.part.output, classes, int(options["hidden"]))
        self.module = Trained(module, self._config)

    def arrays(self, whole: bool) -> dict[str, Vector]:
        """Return the weights as a vector by name; `whole`: all that training builds on.

        On a CPU they share memory with what they are of.
        """
        found = self.main.arrays(STATE, whole)
        if whole and self.module is not None:
            found |= self.module.arrays(MODULE, whole)
        if whole and self._samples:  # in the midst of a mini-batch
            found[GRADIENT] = self.main.flat.gradient.cpu().numpy()
            found[SAMPLES] = np.array([self._samples], dtype=np.float32)
        return found

    def beside(self) -> dict[str, NDArray[Any]]:
        """Return what is no float32 vector: counters, constants."""
        return {name: to_array(t) for name, t in self.segment.beside().items()}

    @property
    def copy_form(self) -> SnapshotForm:
        """What a copy of this segment may hold."""
        module = 0 if self.module is None else self.module.flat.state.numel()
        size, trained = self.main.flat.state.numel(), self.main.flat.num_parameters
        return SnapshotForm(size, trained, module, types_of(self.beside()), self._config.batch_size)

    def begin(self, arrays: dict[str, Vector], beside: dict[str, NDArray[Any]]) -> None:
        """Begin with a copy that the server has sent: a module that it lacks begins anew."""
        if self.module is not None and MODULE not in arrays:
            self._make_module()
        self._graphs.clear()
        self.load(arrays, beside)

    def load(self, arrays: dict[str, Vector], beside: dict[str, NDArray[Any]]) -> None:
        """Take over what `arrays` and `beside` gave; what is missing begins anew."""
        self.main.load(STATE, arrays)
        if self.module is not None and MODULE in arrays:
            self.module.load(MODULE, arrays)
        self._samples = 0
        if GRADIENT in arrays:
            self.main.flat.zero_grad()
            self.main.flat.gradient.copy_(torch.from_numpy(arrays[GRADIENT]))
            self._samples = int(arrays[SAMPLES][0])
        for name, tensor in self.segment.beside().items():
            put_array(tensor, beside[name])

    def train(self, x: Tensor, labels: Tensor | None, number: int, lr: float) -> Passed:
        """Make one step with a mini-batch: `x` as it travels, `number` its place in the run.

        Raises `PayloadError`, and is left as it was, if anything on the way is not finite.
        """
        with self._statistics_kept():
            self.main.flat.drop_grad()
            x, h = self._forward(x, str(number))
            if self.place.ends:
                loss = self._loss(h, labels)
                _back_from(loss)
                passed = Passed(None, self._back(x), loss.item() / len(h))
                _expect_finite(loss, "the loss")
            else:
                wire = self.segment.to_wire(h)
                _expect_finite(wire, "its output")
                _back_from(h, self.segment.from_wire(self._predicted(wire, labels)))
                passed = Passed(wire, self._back(x), None)
            self.main.step(lr, len(h))
        return passed

    def learn(self, h: Tensor, labels: Tensor | None, target: Tensor, lr: float) -> float | None:
        """Train the module on ||M(h, y) - target||^2; return that by ||target||^2.

        None for targets of zero: a next segment that has just begun knows no better.
        """
        assert self.module is not None
        self.module.flat.drop_grad()
        error = mse_loss(self.module.flat.module(h, labels), target, reduction="sum")
        _expect_finite(error, "the module's error")
        backward(error)
        self.module.step(lr, len(h))
        flat = target.flatten()
        size = torch.dot(flat, flat).item()
        return error.item() / size if size else None

    def forward(self, x: Tensor, key: str) -> Tensor:
        """Pass a (micro-)batch on, and keep it for `backward`; return the output as it travels."""
        with self._statistics_kept():
            x, h = self._forward(x, key)
            wire = self.segment.to_wire(h)
            _expect_finite(wire, "its output")
        self._graphs[key] = x, h
        return wire

    def backward(self, key: str, given: Tensor, again: Callable[[], Tensor], first: bool) -> Tensor:
        """Return the gradient of the input for that of the output, both as they travel.

        `first` of a mini-batch: gradients begin at zero. `again`: the input once more, for a
        process that did not see `forward`; statistics are not counted twice then.
        """
        if key not in self._graphs:
            with self._statistics_kept(failed_only=False):
                self._graphs[key] = self._forward(again(), key)
        x, h = self._graphs.pop(key)
        self._begin(first, len(x))
        _back_from(h, self.segment.from_wire(given))
        return self._back(x)  # type: ignore[return-value]  # the first segment's caller ignores it

    def loss(self, x: Tensor, labels: Tensor, key: str, first: bool) -> Passed:
        """Pass a micro-batch through the loss and back, at the model's end."""
        with self._statistics_kept():
            x, h = self._forward(x, key)
            loss = self._loss(h, labels)
            _expect_finite(loss, "the loss")
            self._begin(first, len(x))
            _back_from(loss)
            return Passed(None, self._back(x), loss.item() / len(h))

    def finish(self, lr: float) -> None:
        """Step along the mean over all micro-batches since the first of them.

        Raises `PayloadError` if the gradient is not finite; nothing is changed then.
        """
        samples, self._samples = self._samples, 0
        self.main.step(lr, samples)

    def _begin(self, first: bool, samples: int) -> None:
        if first or not self._samples:
            self.main.flat.zero_grad()
            self._samples = 0
        self._samples += samples

    def forget(self, before: int) -> None:
        """Drop what was kept of mini-batches before this one: they will not come back."""
        for key in [key for key in self._graphs if int(key.partition(".")[0]) < before]:
            del self._graphs[key]

    def _forward(self, x: Tensor, key: str) -> tuple[Tensor, Tensor]:
        number, _, micro = key.partition(".")
        x = self.segment.from_wire(x.to(self._device))
        if not self.place.begins:
            x = x.detach().requires_grad_()
        stream = (self._seed, _LAYER, int(number), int(micro or 0))
        h = self.segment(x, lambda layer: IsolatedRng(self._device, stream_seed(*stream, layer)))
        flat = self.main.flat
        flat.collect_state()
        # values of 1e30 leave outputs finite, but no variance
        _expect_finite(flat.state[flat.num_parameters :], "a sum of its running statistics")
        return x, h

    def _predicted(self, h: Tensor, labels: Tensor | None) -> Tensor:
        assert self.module is not None
        with torch.no_grad():
            gradient: Tensor = self.module.flat.module(h, labels)
        return gradient

    def _back(self, x: Tensor) -> Tensor | None:
        """Return the gradient of the input, as it travels."""
        if self.place.begins:
            return None
        assert x.grad is not None
        back = self.segment.to_wire(x.grad)
        _expect_finite(back, "the gradient of its input")
        return back

    @contextmanager
    def _statistics_kept(self, failed_only: bool = True) -> Iterator[None]:
        """Put back what a forward pass changes besides gradients, running statistics: where it
        fails, or always.
        """
        flat, segment = self.main.flat, self.segment
        statistics = flat.state[flat.num_parameters :]
        before = statistics.clone(), {n: t.clone() for n, t in segment.beside().items()}
        done = False
        try:
            yield
            done = True
        finally:
            if not (done and failed_only):
                statistics.copy_(before[0])
                with torch.no_grad():
                    for name, tensor in segment.beside().items():
                        if not torch.equal(tensor, before[1][name]):  # a graph may hold it
                            tensor.copy_(before[1][name])


def _back_from(h: Tensor, gradient: Tensor | None = None) -> None:
    if h.requires_grad:  # else all that leads to it is frozen
        backward(h, gradient)


def _expect_finite(tensor: Tensor, what: str) -> None:
    # one pass where isfinite takes three; a sum beyond float32 is refused, too
    if not math.isfinite(tensor.detach().sum().item()):
        raise PayloadError(f"{what} is not finite: {DIVERGED}; lower lr=")
