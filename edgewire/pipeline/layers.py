"""Divides a model into layers, and into segments for several nodes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from edgewire.task.errors import TaskError, errors_as
from edgewire.task.flat_model import FlatModel, tensors_of
from edgewire.task.models.small import ChannelsLast, channels_last
from edgewire.task.tensors import Tensors, count, mapped

Draws = Callable[[int], AbstractContextManager[None]]
# Modules that have parameters, but belong to the layer before them.
FOLLOWERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.PReLU)


class Layer(NamedTuple):
    """A layer as in papers: a module with weights, and the modules without weights after it."""

    name: str
    modules: tuple[nn.Module, ...]


def layers_of(model: nn.Module) -> list[Layer]:
    """Return the layers of an `nn.Sequential`, also those inside of nested `nn.Sequential`s.

    Modules without weights before the first layer belong to that layer. Raises `TaskError` for a
    model of another type, and for layers that share parameters.
    """
    if not _is_row(model):
        raise TaskError(
            f"{type(model).__name__} cannot be cut: a model over several nodes must be an "
            "nn.Sequential of its layers, such as model=four_layers"
        )
    rows: list[list[nn.Module]] = [[]]
    heads: list[nn.Module | None] = [None]
    for module in _opened(model):
        if any(True for _ in module.parameters()) and not isinstance(module, FOLLOWERS):
            if heads[-1] is not None:
                rows.append([])
                heads.append(None)
            heads[-1] = module
        rows[-1].append(module)
    _expect_unshared(rows)
    return [Layer(_name(head), tuple(row)) for head, row in zip(heads, rows, strict=True) if row]


def _is_row(module: nn.Module) -> bool:
    """Return whether a module only calls its children one after the other."""
    return type(module).forward in (nn.Sequential.forward, ChannelsLast.forward)


def _opened(row: nn.Module) -> Iterator[nn.Module]:
    for child in cast(nn.Sequential, row):  # `children()` would skip a module's second occurrence
        if _is_row(child):
            yield from _opened(child)
        else:
            yield child


def _expect_unshared(rows: list[list[nn.Module]]) -> None:
    seen: dict[int, int] = {}
    for number, row in enumerate(rows):
        for parameter in nn.ModuleList(row).parameters():
            if (first := seen.setdefault(id(parameter), number)) != number:
                raise TaskError(
                    f"layers {first} and {number} share a parameter: such a model cannot be cut"
                )


def _name(head: nn.Module | None) -> str:
    """Return a readable name of a layer, such as "dense, 256 to 10"."""
    if isinstance(head, nn.Conv2d):
        size = "x".join(map(str, head.kernel_size))
        return f"conv {size}, {head.in_channels} to {head.out_channels}"
    if isinstance(head, nn.Linear):
        return f"dense, {head.in_features} to {head.out_features}"
    return "no weights" if head is None else type(head).__name__


class Segment(nn.Module):
    """Consecutive layers of a model.

    `first`: the number of the segment's first layer in the model. `channels_last`: True if images
    have the memory layout with channels last, as in a `ChannelsLast` model.
    """

    def __init__(self, layers: Sequence[Layer], first: int, channels_last: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(layer.modules) for layer in layers)
        self.first, self.channels_last = first, channels_last

    def forward(self, x: Any, draws: Draws | None = None) -> Any:
        """Return the last layer's output for the first layer's input, both usually (B, ...).

        `draws(number)`: a context for the random draws (dropout) of the layer with this number.
        """
        if self.channels_last and isinstance(x, Tensor):
            x = channels_last(x)
        for number, layer in enumerate(self.layers, self.first):
            with draws(number) if draws else nullcontext():
                for module in layer:  # type: ignore[attr-defined]  # a ModuleList
                    x = module(x)
        return x

    def to_wire(self, output: Tensor) -> Tensor:
        """Return an output, or its gradient, with the axes in which it is sent (wire layout).

        The result is contiguous: (B, ...), or (B, H, W, C) for images with channels last.
        """
        if self.channels_last and output.dim() == 4:
            output = output.permute(0, 2, 3, 1)
        return output.detach().contiguous()

    def from_wire(self, tensor: Tensor) -> Tensor:
        """Return a tensor from a message with the axes that the layers expect, as a view."""
        return tensor.permute(0, 3, 1, 2) if self.channels_last and tensor.dim() == 4 else tensor

    def beside(self) -> dict[str, Tensor]:
        """Return, by name, the tensors that no flat vector holds: counters, constants."""
        return tensors_of(self).beside


def segment_of(model: nn.Module, first: int, last: int) -> Segment:
    """Return the layers `first` to `last` - 1 of a model as a segment with the model's modules."""
    return Segment(layers_of(model)[first:last], first, isinstance(model, ChannelsLast))


def empty_segment(make: Callable[[], nn.Module], first: int, last: int) -> Segment:
    """Return a segment on the CPU with uninitialised memory.

    `make` is called on the meta device, so the model's other layers never get memory.
    """
    segment = segment_of(meta_model(make), first, last)
    holders: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for owner in segment.modules():
        for held in (owner._parameters, owner._buffers):
            for key, tensor in held.items():
                holders.setdefault(id(tensor), []).append((held, key))
    segment.to_empty(device="cpu")
    for (first_held, first_key), *others in holders.values():
        for held, key in others:  # `to_empty` separates shared tensors: share them again
            held[key] = first_held[first_key]
    return segment


def check_cuts(cuts: Sequence[int], layers: int) -> tuple[int, ...]:
    """Check cuts (numbers of the layers with which a new segment begins); return them as a tuple.

    Raises `TaskError` for cuts that do not increase or lie outside of 1 to `layers` - 1.
    """
    bounds = [0, *cuts, layers]
    if any(isinstance(cut, bool) or not isinstance(cut, int) for cut in cuts) or any(
        a >= b for a, b in pairwise(bounds)
    ):
        raise TaskError(
            f"cuts={list(cuts)}: they are numbers of layers from 1 to {layers - 1}, increasing"
        )
    return tuple(cuts)


class Part(NamedTuple):
    """The server's description of a segment: layers `first` to `last` - 1, and their tensors."""

    first: int
    last: int
    names: tuple[str, ...]  # its tensors' names in the whole model, in the order of its flat state
    size: int  # entries of its flat state
    trained: int  # entries of the flat state that are parameters
    natives: dict[str, str]  # native tensors: name in the segment -> name in the whole model
    input: tuple[int, ...]  # shape of one sample, in wire layout; () for several tensors
    output: tuple[int, ...]  # shape of one sample, in wire layout; () for several tensors


def meta_model(make: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that `make` builds, in eval mode, on the meta device, without memory.

    Raises `TaskError` for a tensor that is an attribute of a module and no buffer.
    """
    try:
        with torch.device("meta"):
            model = make()
    except Exception:  # a function of the user's that reads values or loads a file
        model = make().to("meta")
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                where = f"{name}.{key}".lstrip(".")
                raise TaskError(
                    f"{where} is a tensor and no buffer, so a cut model would lose it: use "
                    f"register_buffer"
                )
    return model.eval()  # in training mode some layers read their counters, absent on meta


def parts_of(make: Callable[[], nn.Module], cuts: Sequence[int], example: Tensors) -> list[Part]:
    """Return the parts of the model that `make` builds.

    `example`: a model's input of 2 samples or more, of which only shapes and dtypes are read.
    Raises `TaskError` for a model that cannot be cut, or cannot be cut there.
    """
    model = meta_model(make)
    layers = layers_of(model)
    cuts = check_cuts(cuts, len(layers))
    names = {id(t): n for n, t in (*model.named_parameters(), *model.named_buffers())}
    found = []
    x = mapped(lambda tensor: tensor.to("meta"), example)
    for first, last in zip((0, *cuts), (*cuts, len(layers)), strict=True):
        segment = segment_of(model, first, last)
        own = {n: names[id(t)] for n, t in (*segment.named_parameters(), *segment.named_buffers())}
        layer = f"layers {first} to {last - 1}"
        with errors_as(f"{layer} cannot be computed without values, which cutting needs"):
            h = segment(x)
        if last < len(layers):
            expect_sendable(h, count(x), last - 1, layers[last - 1].name)
        flat = FlatModel(segment.eval(), "meta")  # the nodes train it in training mode
        tensors = tuple(own[name] for name in flat.names)
        natives = {name: own[name] for name, _ in tensors_of(segment).native}
        size, ends = flat.state.numel(), (_wire_shape(segment, x), _wire_shape(segment, h))
        found.append(Part(first, last, tensors, size, flat.num_parameters, natives, *ends))
        x = h.detach() if isinstance(h, Tensor) else h
    return found


def _wire_shape(segment: Segment, ends: Any) -> tuple[int, ...]:
    return tuple(segment.to_wire(ends).shape[1:]) if isinstance(ends, Tensor) else ()


def expect_sendable(output: Any, samples: int, number: int, name: str) -> None:
    """Raise `TaskError` unless a layer's output can be sent to the next segment.

    It must be one float32 tensor with a row for each of the `samples`. `number`, `name`: the
    layer's.
    """
    found = f"a {type(output).__name__}"
    if isinstance(output, Tensor):
        if output.dtype == torch.float32 and output.shape[:1] == (samples,):
            return
        found = f"{output.dtype} of the shape {tuple(output.shape)} for {samples} samples"
    raise TaskError(
        f"layer {number} ({name}) gives {found}, and a cut after it takes one float32 tensor with "
        f"a row for each sample: choose strategy.cuts= without {number + 1}, or put a module "
        f"without weights after the layer that gives such a tensor"
    )
