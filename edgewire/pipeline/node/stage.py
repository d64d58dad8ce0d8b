"""Trains one segment of a cut model, and the module that predicts the gradients of its output."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import backward

from edgewire.compression.base import DIVERGED, PayloadError
from edgewire.conf.build import model_of, objective_of, optimizer_of
from edgewire.conf.schema import Config
from edgewire.pipeline.gradient_predictor import GradientModule, ModuleForm
from edgewire.pipeline.layers import Segment, empty_segment, parts_of
from edgewire.pipeline.messages import GRADIENT, MODULE, SAMPLES, STATE, SnapshotForm, types_of
from edgewire.task.datasets import Data
from edgewire.task.flat_model import FlatModel, put_array, to_array
from edgewire.task.objectives.end_loss import EndLoss
from edgewire.task.rng import IsolatedRng, stream_seed
from edgewire.task.tensors import Tensors, count, mapped

Vector = NDArray[np.float32]
LARGEST = 1e18  # bound of a gradient's entries, so that their squares are finite in float32
_LAYER, _MODULE = 0x1A7E, 0x30D  # keys of the random streams of layers and of modules


class Place(NamedTuple):
    """The place of a segment in a model that is cut into segments.

    `segment`: the number of the segment, from 0. `cuts`: the numbers of the layers with which the
    segments after the first begin.
    """

    segment: int
    cuts: tuple[int, ...]

    @property
    def begins(self) -> bool:
        """Whether the segment's input is the samples."""
        return self.segment == 0

    @property
    def ends(self) -> bool:
        """Whether the segment's output goes into the loss."""
        return self.segment == len(self.cuts)


class StepResult(NamedTuple):
    """The results of a segment's step with a mini-batch; tensors are float32, in wire layout.

    Wire layout is the order of axes in which a tensor is sent: (B, ...), and for images (B, C, H,
    W) or (B, H, W, C).
    """

    output: Tensor | None  # the segment's output; None in the last segment
    back: Tensor | None  # the gradient of the input; None in the first segment
    loss: float | None  # the mini-batch's mean loss; None except in the last segment


def in_host_memory(tensor: Tensor) -> bool:
    """Return whether numpy can use a tensor's memory."""
    return tensor.device.type == "cpu"


class TrainedModule:
    """A module with its optimiser; `flat` holds the module's parameters as one vector."""

    def __init__(self, module: nn.Module, config: Config) -> None:
        self.flat = FlatModel(module, config.device)
        self._copies: dict[str, Tensor] = {}  # in the host's memory, of a GPU's tensors
        self.optimizer = optimizer_of(config, [self.flat.parameters])
        self._step = self.flat.step_of(self.optimizer)

    def vector(self, name: str, tensor: Tensor) -> Vector:
        """Return one of the module's tensors as a numpy vector, in the same memory each time.

        A tensor on the CPU shares its memory with its vector. A vector of another device's tensor
        is a copy, which the next call with this name overwrites.
        """
        flat = tensor.detach().reshape(-1)
        if in_host_memory(flat):
            return flat.numpy()
        if name not in self._copies:
            pinned = flat.device.type == "cuda"  # a copy into pinned memory is several times faster
            self._copies[name] = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=pinned)
        return self._copies[name].copy_(flat).numpy()

    def step(self, lr: float, samples: int) -> None:
        """Take an optimiser's step with the stored gradient, a sum, divided by `samples`.

        Raises `PayloadError` if the gradient or its square is not finite. Adam stores the squares.
        """
        gradient = self.flat.collect_grad()
        self.flat.parameters.grad = gradient.mul_(1 / samples)
        if gradient.numel() and not gradient.abs().max().item() < LARGEST:  # also true for NaN
            raise PayloadError(f"gradients are not finite, or nearly: {DIVERGED}; lower lr=")
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self._step(self.optimizer)

    def arrays(self, name: str, whole: bool) -> dict[str, Vector]:
        """Return the module's state as vectors by name (`vector`).

        `name`: the name of the parameters' vector; `whole`: include the optimiser's state.
        """
        found = {name: self.flat.state}
        if whole:
            state = self.optimizer.state.get(self.flat.parameters, {})
            found |= {f"{name} {key}": t for key, t in state.items() if isinstance(t, Tensor)}
        return {key: self.vector(key, t) for key, t in found.items()}

    def load(self, name: str, arrays: dict[str, Vector]) -> None:
        """Set the module's state to vectors that the method `arrays` returned."""
        self.flat.load(arrays[name])
        self.optimizer.state.clear()
        state = {}
        on_device = any(
            group.get("fused") or group.get("capturable") for group in self.optimizer.param_groups
        )
        for key, array in arrays.items():
            if key.startswith(f"{name} "):
                tensor = torch.from_numpy(array.copy())
                whole = array.size == self.flat.num_parameters
                tensor = tensor if whole else tensor.reshape(())
                # Optimisers count their steps on the CPU, and fused ones on the parameters' device.
                placed = tensor.to(self.flat.state.device) if whole or on_device else tensor
                state[key.removeprefix(f"{name} ")] = placed
        if state:
            self.optimizer.state[self.flat.parameters] = state


class Stage:
    """Trains a segment with received gradients, or with the gradients that a module predicts.

    A layer's random numbers depend on (seed, layer, mini-batch). So they do not depend on where the
    model is cut. The loss is a sum over the mini-batch, so gradients of activations are of order 1
    for each sample (Jaderberg et al. 2017). It is the objective's mean loss times the number of
    samples. Parameters take steps along the mean gradient.
    """

    def __init__(self, config: Config, data: Data, place: Place) -> None:
        make = partial(model_of, config, data)
        self.place, self._seed = place, config.seed
        self._device = torch.device(config.device)
        self.part = parts_of(make, place.cuts, data.example)[place.segment]
        self.segment: Segment = empty_segment(make, self.part.first, self.part.last)
        self.segment.train()
        self.main = TrainedModule(self.segment, config)
        self.end_loss = EndLoss(objective_of(config), data)
        self._graphs: dict[str, tuple[Tensors, Tensor]] = {}
        self._samples = 0  # number of samples since the last step
        # The number of classes whose labels the module gets; 0: it gets none.
        self.classes = self.end_loss.classes if config.strategy["conditioned"] else 0
        self._config = config
        self.stored: object = None  # the record in a node's state that has this stage's arrays
        self.module: TrainedModule | None = None
        if config.strategy["synthetic"] and not place.ends:
            self._make_module()

    def _make_module(self) -> None:
        options, place = self._config.strategy, self.place
        form = ModuleForm(
            options["module"], options["hidden"], options["trained_by"], classes=self.classes
        )
        with IsolatedRng(torch.device("cpu"), stream_seed(self._seed, _MODULE, place.segment)):
            module = form.build(self.part.output, place.segment, len(place.cuts))
        self.module = TrainedModule(module, self._config)

    def arrays(self, whole: bool) -> dict[str, Vector]:
        """Return the segment's state as vectors by name (`vector`).

        `whole`: include all that is needed to continue training: optimisers, module, and the
        gradient of an unfinished mini-batch.
        """
        found = self.main.arrays(STATE, whole)
        if whole and self.module is not None:
            found |= self.module.arrays(MODULE, whole)
        if whole and self._samples:  # between the micro-batches of a mini-batch
            found[GRADIENT] = self.main.vector(GRADIENT, self.main.flat.gradient)
            found[SAMPLES] = np.array([self._samples], dtype=np.float32)
        return found

    def beside(self) -> dict[str, NDArray[Any]]:
        """Return the segment's tensors that no vector holds (counters, constants), by name."""
        return {name: to_array(t) for name, t in self.segment.beside().items()}

    @property
    def copy_form(self) -> SnapshotForm:
        """The sizes and types of a snapshot of this segment."""
        module = 0 if self.module is None else self.module.flat.state.numel()
        size, trained = self.main.flat.state.numel(), self.main.flat.num_parameters
        return SnapshotForm(size, trained, module, types_of(self.beside()), self._config.batch_size)

    def load(self, arrays: dict[str, Vector], beside: dict[str, NDArray[Any]]) -> None:
        """Set the segment's state to what the methods `arrays` and `beside` have returned.

        If the synthetic-gradient module is missing, it is initialised.
        """
        self._graphs.clear()
        self.main.load(STATE, arrays)
        if self.module is not None and MODULE in arrays:
            self.module.load(MODULE, arrays)
        elif self.module is not None:
            self._make_module()
        self._samples = 0
        if GRADIENT in arrays:
            self.main.flat.zero_grad()
            self.main.flat.gradient.copy_(torch.from_numpy(arrays[GRADIENT]))
            self._samples = int(arrays[SAMPLES][0])
        for name, tensor in self.segment.beside().items():
            put_array(tensor, beside[name])

    def train(
        self, x: Tensors, targets: Tensors | None, number: int, lr: float, inputs: Tensors = ()
    ) -> StepResult:
        """Take one step with a mini-batch.

        `x`: the segment's input in wire layout, B rows, and float32 after the first segment.
        `targets`: what the last segment's loss takes, or the labels that the module gets. `number`:
        the mini-batch's number in the run. `inputs`: the model's inputs, in the last segment, for a
        loss that needs them. Raises `PayloadError` if any value is not finite; then the segment
        stays unchanged.
        """
        with self._statistics_kept():
            self.main.flat.drop_grad()
            x, h = self._forward(x, str(number))
            samples = count(x)
            if self.place.ends:
                loss = self.end_loss(h, inputs, cast(Tensors, targets))
                _expect_finite(loss, "the loss")
                _back_from(loss, torch.full_like(loss, samples))
                passed = StepResult(None, self._back(x), loss.item())
            else:
                wire = self.segment.to_wire(h)
                _expect_finite(wire, "its output")
                # Jaderberg et al. 2017, section 2.1: the module's prediction M(h, y) takes the
                # place of dL/dh, so the segment steps before the next segment has seen h.
                assert self.module is not None
                with torch.no_grad():
                    predicted = self.module.flat.module(wire, targets)
                _back_from(h, self.segment.from_wire(predicted))
                passed = StepResult(wire, self._back(x), None)
            self.main.step(lr, samples)
        return passed

    def learn(self, h: Tensor, labels: Tensor | None, target: Tensor, lr: float) -> float | None:
        """Train the synthetic-gradient module M by one step; return its relative error.

        `h`: the segment's output; `target`: the gradient of `h`; both float32 (B, ...). The loss
        that the step reduces, and the relative error, are those of `GradientModule.learned`.
        """
        assert self.module is not None
        self.module.flat.drop_grad()
        module = cast(GradientModule, self.module.flat.module)
        learned = module.learned(h, labels, target)
        if learned.loss is not None:
            _expect_finite(learned.loss, "the module's error")
            backward(learned.loss)
            self.module.step(lr, len(h))
        return learned.error

    def forward(self, x: Tensors, key: str) -> Tensor:
        """Do a forward pass; store it as `key` for `backward`; return the output in wire layout."""
        with self._statistics_kept():
            x, h = self._forward(x, key)
            wire = self.segment.to_wire(h)
            _expect_finite(wire, "its output")
        self._graphs[key] = x, h
        return wire

    def backward(
        self, key: str, given: Tensor, again: Callable[[], Tensors], first: bool
    ) -> Tensor:
        """Do a backward pass; return the gradient of the input in wire layout.

        `key`: the name of the forward pass. `given`: the gradient of the output in wire layout.
        `again`: a function that returns the input. If another process has done the forward pass,
        this method calls `again` and repeats the forward pass, without a change of BatchNorm's
        statistics. `first`: True for the first micro-batch of a mini-batch; then the stored
        gradient is set to zero first.
        """
        if key not in self._graphs:
            with self._statistics_kept(failed_only=False):
                self._graphs[key] = self._forward(again(), key)
        x, h = self._graphs.pop(key)
        self._begin(first, count(x))
        _back_from(h, self.segment.from_wire(given))
        return self._back(x)  # type: ignore[return-value]  # the first segment's caller ignores it

    def loss(
        self, x: Tensors, targets: Tensors, key: str, first: bool, inputs: Tensors = ()
    ) -> StepResult:
        """In the last segment, do a micro-batch's forward pass, loss and backward pass.

        The arguments are those of `train` and of `backward`.
        """
        with self._statistics_kept():
            x, h = self._forward(x, key)
            loss = self.end_loss(h, inputs, targets)
            _expect_finite(loss, "the loss")
            self._begin(first, count(x))
            _back_from(loss, torch.full_like(loss, count(x)))
            return StepResult(None, self._back(x), loss.item())

    def finish(self, lr: float) -> None:
        """Take a step with the mean gradient of all micro-batches of the mini-batch.

        Raises `PayloadError` if the gradient is not finite; then the parameters stay unchanged.
        """
        samples, self._samples = self._samples, 0
        self.main.step(lr, samples)

    def _begin(self, first: bool, samples: int) -> None:
        if first or not self._samples:
            self.main.flat.zero_grad()
            self._samples = 0
        self._samples += samples

    def forget(self, before: int) -> None:
        """Remove the stored forward passes of mini-batches with numbers below `before`."""
        for key in [key for key in self._graphs if int(key.partition(".")[0]) < before]:
            del self._graphs[key]

    def _forward(self, x: Tensors, key: str) -> tuple[Tensors, Tensor]:
        number, _, micro = key.partition(".")
        x = mapped(lambda tensor: self.segment.from_wire(tensor.to(self._device)), x)
        if not self.place.begins:
            x = mapped(lambda tensor: tensor.detach().requires_grad_(), x)
        stream = (self._seed, _LAYER, int(number), int(micro or 0))
        h = self.segment(x, lambda layer: IsolatedRng(self._device, stream_seed(*stream, layer)))
        flat = self.main.flat
        flat.collect_state()
        # Inputs around 1e30 have finite outputs, but their variance overflows float32.
        _expect_finite(flat.state[flat.num_parameters :], "a sum of its running statistics")
        return x, h

    def _back(self, x: Tensors) -> Tensor | None:
        """Return the gradient of the input in wire layout; None in the first segment."""
        if self.place.begins:
            return None
        assert isinstance(x, Tensor)
        gradient = torch.zeros_like(x) if x.grad is None else x.grad  # None: a layer detaches it
        back = self.segment.to_wire(gradient)
        _expect_finite(back, "the gradient of its input")
        return back

    @contextmanager
    def _statistics_kept(self, failed_only: bool = True) -> Iterator[None]:
        """Restore the segment's statistics and buffers at the end if the code in the context fails.

        With `failed_only=False`, restore them in any case.
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
                        # Write only on a change: autograd counts writes to a saved tensor.
                        if not torch.equal(tensor, before[1][name]):
                            tensor.copy_(before[1][name])


def _back_from(h: Tensor, gradient: Tensor | None = None) -> None:
    if h.requires_grad:  # False if all layers that lead to `h` are frozen
        backward(h, gradient)


def _expect_finite(tensor: Tensor, what: str) -> None:
    # This takes one pass; `isfinite` takes three. A sum beyond float32 is an error too.
    if not math.isfinite(tensor.detach().sum().item()):
        raise PayloadError(f"{what} is not finite: {DIVERGED}; lower lr=")
