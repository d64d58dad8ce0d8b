"""Counts the costs of layers, and divides a model into segments of equal cost."""

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
from edgewire.pipeline.layers import Part, meta_model, segment_of
from edgewire.task.errors import TaskError
from edgewire.task.tensors import Tensors, mapped


class Cost(NamedTuple):
    """A segment's arithmetic operations; 1 is a backpropagation step of the whole model."""

    forward: float
    backward: float
    module: float  # one prediction and one training step of the synthetic-gradient module
    entries: int = 0  # the number of this module's parameters


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
        entries = 0 if module is None else sum(p.numel() for p in module.parameters())
        counted.append(Cost(forward, back, learn, entries))
    whole = max(sum(each.forward + each.backward for each in counted), 1)
    return [
        Cost(each.forward / whole, each.backward / whole, each.module / whole, each.entries)
        for each in counted
    ]


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


def _train(module: GradientModule, h: Tensor, labels: Tensor) -> Any:
    """Do the arithmetic of `GradientModule.learned` and of the step after it."""
    if not isinstance(module, GradientOfLoss) or module.trained_by == GRADIENTS:
        return _back(module(h, labels))
    with torch.no_grad():
        module(h, labels)  # its error is measured
    return _back(module.local_loss(h, labels)) if module.trained_by == LOSS else None


def _flops(run: Callable[[], Any]) -> tuple[int, Any]:
    from torch.utils.flop_counter import FlopCounterMode  # not at the top: it imports triton

    with FlopCounterMode(display=False) as counter:
        result = run()
    return counter.get_total_flops(), result


def balanced(layers: Sequence[Cost], segments: int) -> tuple[int, ...]:
    """Return the cuts that minimise the operations of the largest of `segments` segments.

    A cut is the number of the layer with which a new segment begins. `layers`: the cost of each
    layer as a segment of its own. Of equally good cuts it returns the smallest tuple. Raises
    `TaskError` if there are too few layers.
    """
    count = len(layers)
    if not 1 <= segments <= count:
        raise TaskError(f"{count} layers cannot be cut into {segments} segments")

    def stage(first: int, last: int) -> float:
        """Return the operations of a segment with the layers `first` to `last` - 1."""
        module = layers[last - 1].module if last < count else 0.0
        return sum(each.forward + each.backward for each in layers[first:last]) + module

    # Dynamic programming over (segment, its first layer): each pair is solved once.
    @cache
    def best(segment: int, first: int) -> tuple[float, tuple[int, ...]]:
        """Return the best cuts after layer `first`, with which `segment` begins.

        The result is (the operations of the largest of these segments, the cuts).
        """
        if segment + 1 == segments:
            return stage(first, count), ()
        found = []
        for cut in range(first + 1, count - (segments - segment - 1) + 1):
            rest, cuts = best(segment + 1, cut)
            found.append((max(stage(first, cut), rest), (cut, *cuts)))
        return min(found)

    return best(0, 0)[1]
