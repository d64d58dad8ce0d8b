"""Measures the costs of layers, and divides a model into segments that take equally long."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import backward

from edgewire.pipeline.gradient_predictor import (
    GRADIENTS,
    LOSS,
    GradientModule,
    GradientOfLoss,
    ModuleForm,
)
from edgewire.pipeline.layers import Part, expect_sendable, layers_of, meta_model, segment_of
from edgewire.task.errors import TaskError
from edgewire.task.tensors import Tensors, count, leaves, mapped

COPIES = 4  # floats for each parameter: its value, its gradient, two moments of Adam
REPEATS = 3


class Cost(NamedTuple):
    """A segment's arithmetic operations; 1 is a backpropagation step of the whole model."""

    forward: float
    backward: float
    module: float  # one prediction and one training step of the synthetic-gradient module


def costs_of(
    make: Callable[[], nn.Module],
    parts: Sequence[Part],
    example: Tensors,
    modules: ModuleForm | None,
) -> list[Cost]:
    """Return the `Cost` of each segment, counted by torch on the meta device, without memory.

    `example`: as in `parts_of`, with 2 samples. `modules`: the synthetic-gradient modules; None:
    there are none. Unlike seconds, the result is the same on every machine.
    """
    counted = []
    model = meta_model(make)
    for number, part in enumerate(parts):
        segment = segment_of(model, part.first, part.last)
        with torch.device("meta"):
            x: Tensors = mapped(lambda tensor: tensor.to("meta"), example)
            if number:
                x = segment.from_wire(torch.empty(2, *part.input)).detach().requires_grad_()
            ends = number + 1 == len(parts)
            cuts = len(parts) - 1
            module = None if ends or not modules else modules.build(part.output, number, cuts)
            labels = torch.zeros(2, dtype=torch.int64)
        forward, h = _flops(partial(segment, x))
        back, _ = _flops(partial(_back, h))
        learn = 0
        if module is not None:
            wire = segment.to_wire(h)
            predict, _ = _flops(partial(module, wire, labels))
            learn, _ = _flops(partial(_train, module, wire, labels))
            learn += predict
        counted.append((forward, back, learn))
    whole = max(sum(forward + back for forward, back, _ in counted), 1)
    return [Cost(*(each / whole for each in row)) for row in counted]


def _back(h: Any) -> Any:
    trained = [tensor for tensor in _tensors(h) if tensor.requires_grad]
    if trained:
        backward([tensor.sum() for tensor in trained])
    return h


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of a model's output, which may be nested."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | Sequence) and not isinstance(output, str):
        for each in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(each)


def _there_and_back(module: nn.Module, *given: Any) -> Any:
    return _back(module(*given))


def _train(module: GradientModule, h: Tensor, labels: Tensor) -> Any:
    """Do the arithmetic of `GradientModule.learned` and of the step after it."""
    if not isinstance(module, GradientOfLoss) or module.trained_by == GRADIENTS:
        return _there_and_back(module, h, labels)
    with torch.no_grad():
        module(h, labels)  # its error is measured
    return _back(module.local_loss(h, labels)) if module.trained_by == LOSS else None


def _flops(run: Callable[[], Any]) -> tuple[int, Any]:
    from torch.utils.flop_counter import FlopCounterMode  # not at the top: it imports triton

    with FlopCounterMode(display=False) as counter:
        result = run()
    return counter.get_total_flops(), result


class LayerCosts(NamedTuple):
    """Seconds and bytes of one step of a layer, and of a synthetic-gradient module after it."""

    seconds: float
    module_seconds: float
    nbytes: int
    module_nbytes: int


def measure(
    make: Callable[[], nn.Module], inputs: Tensors, modules: ModuleForm | None
) -> list[LayerCosts]:
    """Measure each layer's seconds and bytes on this machine, with a mini-batch.

    `inputs`: B samples as the model takes them. Bytes are those of parameters, gradients, an
    optimiser's moments, and the tensors that a forward pass saves for the backward pass. A node
    needs these bytes in addition to Python and its libraries. `modules`: as in `costs_of`. Raises
    `TaskError` if a layer's output cannot be sent to another node.
    """
    model = make()
    layers, samples = layers_of(model), count(inputs)
    given, found = inputs, []
    for number, layer in enumerate(layers):
        segment = segment_of(model, number, number + 1)
        h, saved = _saved(segment, given)
        if number + 1 < len(layers):
            expect_sendable(h, samples, number, layer.name)
        taken = _seconds(partial(_there_and_back, segment, given))
        parameters = sum(p.numel() for p in segment.parameters())
        ends = sum(tensor.numel() for tensor in (*leaves(given), *_tensors(h)))
        nbytes = saved + 4 * (COPIES * parameters + 2 * ends)
        module_taken, module_nbytes = 0.0, 0
        if number + 1 < len(layers):
            given = h.detach().requires_grad_()
        if modules and number + 1 < len(layers):
            wire = segment.to_wire(h)
            module = modules.build(tuple(wire.shape[1:]))
            labels = torch.zeros(samples, dtype=torch.int64)
            module_taken = _seconds(partial(_train, module, wire, labels))
            with torch.no_grad():
                module_taken += _seconds(partial(module, wire, labels))
            parameters = sum(p.numel() for p in module.parameters())
            module_nbytes = 4 * (COPIES * parameters + 3 * wire.numel())
        found.append(LayerCosts(taken, module_taken, nbytes, module_nbytes))
    return found


def _saved(segment: nn.Module, given: Tensors) -> tuple[Any, int]:
    """Return the output, and the bytes that a forward pass saves for the backward pass."""
    own = {tensor.data_ptr() for tensor in (*leaves(given), *segment.parameters())}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            found[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        h = segment(given)
    return h, sum(found.values())


def _seconds(run: Callable[[], object]) -> float:
    """Call `run` once to warm up, then `REPEATS` times; return the seconds of the fastest call."""
    run()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def balanced(
    layers: Sequence[LayerCosts], segments: int, limits: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Return the cuts that minimise the seconds of the slowest of `segments` segments.

    A cut is the number of the layer with which a new segment begins. `limits`: the memory of each
    node in bytes. Of equally good cuts it returns the smallest tuple. Raises `TaskError` if there
    are too few layers, or if no segments fit into the memory.
    """
    count = len(layers)
    if not 1 <= segments <= count:
        raise TaskError(f"{count} layers cannot be cut into {segments} segments")

    def stage(segment: int, first: int, last: int) -> float:
        """Return the seconds of a segment with the layers `first` to `last` - 1.

        Infinity if the segment exceeds its node's memory.
        """
        row, cut = layers[first:last], last < count
        nbytes = sum(each.nbytes for each in row) + (row[-1].module_nbytes if cut else 0)
        if limits is not None and nbytes > limits[segment]:
            return float("inf")
        return sum(each.seconds for each in row) + (row[-1].module_seconds if cut else 0)

    # Dynamic programming over (segment, its first layer): each pair is solved once.
    @cache
    def best(segment: int, first: int) -> tuple[float, tuple[int, ...]]:
        """Return the best cuts after layer `first`, with which `segment` begins.

        The result is (the seconds of the slowest of these segments, the cuts).
        """
        if segment + 1 == segments:
            return stage(segment, first, count), ()
        found = []
        for cut in range(first + 1, count - (segments - segment - 1) + 1):
            rest, cuts = best(segment + 1, cut)
            found.append((max(stage(segment, first, cut), rest), (cut, *cuts)))
        return min(found)

    seconds, cuts = best(0, 0)
    if seconds == float("inf"):
        needed = max(each.nbytes + each.module_nbytes for each in layers) / 1e6
        raise TaskError(
            f"no cut into {segments} segments fits strategy.memory_mb: the largest layer alone "
            f"needs {needed:.0f} MB; give more, more segments or a smaller batch_size"
        )
    return cuts
