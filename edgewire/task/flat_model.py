"""A model as one flat vector: which of its tensors are trained, and which messages hold them."""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from edgewire.task.errors import TaskError
from edgewire.task.tensors import form

STATISTICS = ("running_mean", "running_var")  # names of buffers in torch's BatchNorm layers
COUNTER = "num_batches_tracked"
PERSONAL = "personal."  # of `FlatModel.own`: no tensor's name ends with a dot
EXTRA = "_extra_state"  # the suffix of state-dict keys for `Module.get_extra_state`
Arrays = dict[str, NDArray[Any]]


class Tensors(NamedTuple):
    """A module's tensors by name; a tensor that layers share is listed once.

    Personal tensors come first in `trained` and `statistics`.
    """

    trained: list[tuple[str, nn.Parameter]]
    statistics: list[tuple[str, Tensor]]  # running statistics of BatchNorm in training, float32
    native: list[tuple[str, Tensor]]  # all other tensors of the state dict that are sent
    local: list[tuple[str, Tensor]]  # buffers outside of the state dict, and unused counters
    own: list[tuple[str, Tensor]]  # personal tensors that would be native

    @property
    def beside(self) -> dict[str, Tensor]:
        """All tensors that are not in the flat vector."""
        return dict([*self.native, *self.own, *self.local])


class Trained(NamedTuple):
    """A trained parameter, with its float32 views in a flat model: master and gradient."""

    name: str
    parameter: nn.Parameter
    master: Tensor
    gradient: Tensor


def tensors_of(module: nn.Module, personal: Collection[str] = ()) -> Tensors:
    """Return a module's tensors, sorted into the groups of `Tensors`.

    `personal`: the names of the personal tensors. A frozen one is not: nodes have the same values.
    """
    every = list(module.named_parameters())
    found = Tensors([(n, p) for n, p in every if p.requires_grad], [], [], [], [])
    found.native.extend((n, p) for n, p in every if not p.requires_grad)
    kept = module.state_dict(keep_vars=True).keys()
    held = _held(module)
    norms = [each for each in module.modules() if isinstance(each, _NormBase)]
    idle = {id(each.num_batches_tracked) for each in norms if each.momentum is not None}
    for name, buffer in module.named_buffers():
        if name not in kept or id(buffer) in idle:
            found.local.append((name, buffer))
        elif (
            name.rpartition(".")[2] in STATISTICS
            and buffer.dtype == torch.float32
            and id(buffer) not in held
        ):
            found.statistics.append((name, buffer))
        elif name in personal and id(buffer) not in held:
            found.own.append((name, buffer))
        else:
            found.native.append((name, buffer))
    found.trained.sort(key=lambda each: each[0] not in personal)
    found.statistics.sort(key=lambda each: each[0] not in personal)
    return found


def _held(module: nn.Module) -> set[int]:
    """Return the ids of the buffers of modules that are in eval mode while the model is not."""
    modules = [each for each in module.modules() if module.training and not each.training]
    return {id(buffer) for each in modules for buffer in each._buffers.values()}


def expect_tensors(module: nn.Module) -> None:
    """Raise `TaskError` with a one-line message for a module whose state cannot be sent."""
    name = type(module).__name__
    if lazy := [n for n, t in (*module.named_parameters(), *module.named_buffers()) if is_lazy(t)]:
        raise TaskError(
            f"{name}: {lazy[0]} has no shape yet: pass a batch through the model where it is built"
        )
    for key in module.state_dict(keep_vars=True):
        if key.rpartition(".")[2] == EXTRA:
            raise TaskError(f"{name}: {key} cannot travel: keep it in a buffer (register_buffer)")
    found = tensors_of(module)
    for key, parameter in found.trained:
        if parameter.dtype not in (torch.float32, *HALVES):
            raise TaskError(
                f"{name}: {key} is {form(parameter.data)}, and what is trained must be float32, "
                "float16 or bfloat16: give model.float(), or freeze it by requires_grad_(False)"
            )
        if key.rpartition(".")[2] in (*STATISTICS, COUNTER):
            raise TaskError(f"{name}: {key}, a parameter, has the name of BatchNorm's statistics")
    for key, tensor in found.native:
        try:
            if tensor.is_quantized or tensor.layout != torch.strided:
                raise TypeError
            if not tensor.is_meta:
                to_array(tensor[:0] if tensor.dim() else tensor)
        except (TypeError, RuntimeError):
            raise TaskError(
                f"{name}: {key} is {form(tensor)}, which cannot travel: give a plain tensor of "
                "numbers"
            ) from None
    _expect_apart(name, found)


def expect_numbers(module: nn.Module) -> None:
    """Raise `TaskError` with a one-line message for NaN in a native tensor of a new model."""
    for key, tensor in tensors_of(module).native:
        array = to_array(tensor)
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise TaskError(
                f"{type(module).__name__}: {key} holds NaN: fill it with numbers where it is built"
            )


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.is_floating_point() or tensor.dtype  # floats are converted


def _expect_apart(name: str, found: Tensors) -> None:
    """Raise `TaskError` for two tensors that share memory, if one is in the flat vector."""
    flat = {key for key, _ in (*found.trained, *found.statistics)}
    every = [
        (tensor.data_ptr(), tensor.data_ptr() + _extent(tensor), key)
        for key, tensor in (*found.trained, *found.statistics, *found.native)
        if tensor.numel() and not tensor.is_meta
    ]
    end, last = 0, ""
    for start, stop, key in sorted(every):
        if start < end and (key in flat or last in flat):
            raise TaskError(
                f"{name}: {last} and {key} share memory and are two tensors: make them one, as by "
                "b.weight = a.weight"
            )
        if stop > end:
            end, last = stop, key


def _extent(tensor: Tensor) -> int:
    """Return the bytes from a tensor's first entry in memory to the end of its last one."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()


def to_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's values as a numpy array, which may share its memory.

    Only a parameter's memory is shared: numpy pins memory, and a module may resize its buffers. The
    array has the tensor's shape and type, if numpy has this type. bfloat16 and other floats
    that numpy lacks become float32. A complex64 tensor (...) becomes float32 (..., 2). Raises
    `TypeError` for other types.
    """
    tensor = (tensor if isinstance(tensor, nn.Parameter) else tensor.clone()).detach().cpu()
    if tensor.dtype == torch.complex64:
        tensor = torch.view_as_real(tensor.resolve_conj())
    elif tensor.is_floating_point() and tensor.dtype not in NUMPYS:
        tensor = tensor.float()
    array: NDArray[Any] = tensor.resolve_neg().numpy()
    return array


NUMPYS = (torch.float16, torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)  # types of trained parameters besides float32


def put_array(tensor: Tensor, array: NDArray[Any]) -> None:
    """Copy an array from `to_array` into a tensor, in place."""
    values = torch.from_numpy(np.require(array, requirements=["C", "W"]).reshape(array.shape))
    with torch.no_grad():
        tensor.copy_(torch.view_as_complex(values) if tensor.is_complex() else values)


def _move_grad(total: Tensor, parameter: Tensor) -> None:
    """Add a parameter's new gradient to the float32 gradient `total`, and delete it."""
    if parameter.grad is not None:
        total.add_(parameter.grad)
        parameter.grad = None


NONE: Arrays = {}


class FlatModel:
    """A module whose parameters, gradients and BatchNorm statistics are views of flat vectors.

        state       [ parameters, in named_parameters order | BatchNorm's statistics ], float32
        gradient    [ gradients of the parameters ], float32

    Personal tensors are trained and not sent. They lie before `state`, in the same memory:

        [ personal statistics | personal parameters | state ], float32

    So all parameters remain one vector, `parameters`; its first `num_personal` are personal.
    `state`, `names` and `shapes` are what is sent. `own` returns the personal tensors, and `load`
    sets them.

    An update is therefore one subtraction. An optimiser over the single parameter `parameters`
    steps the whole model: `torch.optim.SGD([flat.parameters], lr)` has the same result as
    `torch.optim.SGD(module.parameters(), lr)`. A parameter that layers share occurs once. The other
    tensors of the state dict are native: frozen parameters, statistics of layers that are in eval
    mode while the model is in training mode, counters, masks, each in its own type (`natives`).
    `load` sets the vector and the native tensors. It also resets buffers outside of the state dict
    to their first values, so nothing of an earlier model remains.

    A trained parameter may be float16 or bfloat16. Its entries in `state` are its float32 master
    (Micikevicius et al. 2018, section 3.1): `load` and every forward pass round the master to the
    parameter's type, and backward passes add the parameter's gradient to the float32 gradient.

    Args:
        module: it is moved to `device`. Its tensor objects stay the same and get new memory.
        device: the torch device of module and vectors.
        personal: the names of the personal tensors (`personal_names`).

    Raises:
        TaskError: a module whose state cannot be sent (`expect_tensors`).
    """

    def __init__(
        self, module: nn.Module, device: str = "cpu", personal: Collection[str] = ()
    ) -> None:
        expect_tensors(module)
        self.module = module.to(device)
        found = tensors_of(module, personal)
        kept = [each for each in found.statistics if each[0] in personal]
        named = [*kept, *found.trained, *found.statistics[len(kept) :]]
        own = len(kept) + sum(name in personal for name, _ in found.trained)
        shapes = [tuple(t.shape) for _, t in named]
        self.names: tuple[str, ...] = tuple(name for name, _ in named[own:])
        self.shapes: tuple[tuple[int, ...], ...] = tuple(shapes[own:])
        self.num_parameters: int = sum(p.numel() for _, p in found.trained)
        first, start = (sum(math.prod(s) for s in shapes[:n]) for n in (len(kept), own))
        self.num_personal: int = start - first
        empty = torch.empty(0, device=device)
        whole = torch.cat([empty, *(t.detach().flatten().float() for _, t in named)])
        self.state: Tensor = whole[start:]
        views = self._cut(whole, shapes)
        self._views = views[own:]
        for (_, tensor), view in zip(named, views, strict=True):
            if tensor.dtype == torch.float32:
                tensor.data = view

        # autograd fills the gradients of the module's own parameters; optimisers use this view.
        trained = whole[first : first + self.num_parameters]
        self.parameters = nn.Parameter(trained, requires_grad=False)
        self.parameters.grad = self.gradient = torch.zeros_like(self.parameters)
        gradients = self._cut(self.gradient, (p.shape for _, p in found.trained))
        masters = views[len(kept) :]
        # The trained parameters, in the order of `parameters`.
        self.trained = [
            Trained(*each, master, gradient)
            for each, master, gradient in zip(found.trained, masters, gradients, strict=False)
        ]
        self._plain = [each for each in self.trained if each.parameter.dtype == torch.float32]
        self._halves = [each for each in self.trained if each.parameter.dtype != torch.float32]
        self._rounded = -1  # the version of `state` that the halves have
        self._hook_halves()
        self._native, self._own = found.native, list[tuple[str, Tensor]]()
        if own or found.own:
            self._own = [(PERSONAL, whole[:start]), *found.own]
        self.keeps = bool(self._own)  # whether there are personal tensors
        held = _held(module)
        self.frozen = tuple(
            n for n, each in found.native if isinstance(each, nn.Parameter) or id(each) in held
        )
        self._beside = list(found.beside.values())
        for tensor in self._beside:
            if 0 in tensor.stride():  # its entries share memory
                tensor.data = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._initial = [tensor.detach().clone() for tensor in self._beside]
        self._buffers = [(m, dict(m._buffers)) for m in module.modules() if m._buffers]
        self._owners = [
            (m, {key: p for key, p in m._parameters.items() if p is not None})
            for m in module.modules()
        ]
        known = {id(t): (n, t) for n, t in (*found.statistics, *found.native, *found.own)}
        self._places = [
            (*known[id(buffer)], owner, key)
            for owner in module.modules()
            for key, buffer in owner._buffers.items()
            if id(buffer) in known
        ]
        self._first_own = self.own()
        self.zero_grad()

    def _hook_halves(self) -> None:
        """Let passes forward round the masters, and passes backward add the gradients."""
        halves = {id(each.parameter) for each in self._halves}
        for each in self._halves:
            hook = partial(_move_grad, each.gradient)
            each.parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        # A layer may use the parameters of a layer inside it without calling that layer.
        for module in self.module.modules() if halves else ():
            if any(id(parameter) in halves for parameter in module.parameters()):
                module.register_forward_pre_hook(lambda *_: self.round_halves())

    def step_of(self, optimizer: Optimizer) -> Callable[[Optimizer], Any]:
        """Return the step of an optimiser of `parameters`, a function of the optimiser.

        It is torch's `step` without its wrappers (profiler, hooks), which take 0.4 of the time on a
        small model. If the model has parameters of 16 bits, a hook lets their next use round the
        masters anew, because a fused step does not raise the masters' versions.
        """
        step: Callable[[Optimizer], Any] = type(optimizer).step
        if self._halves:
            optimizer.register_step_post_hook(lambda *_: self._stepped())
        else:
            step = inspect.unwrap(step)
        return step

    def _stepped(self) -> None:
        self._rounded = -1

    def round_halves(self) -> None:
        """Round the masters to their parameters' types if an optimiser has changed the masters."""
        version = self.parameters._version + self.state._version
        if version == self._rounded:
            return
        self._rounded = version
        for each in self._halves:
            # `data`: autograd would refuse a parameter that changes between two of its uses.
            each.parameter.data.copy_(each.master)

    def zero_grad(self) -> None:
        """Fill the flat gradient with zeros; make each parameter's `.grad` a view of it.

        Backward passes add to it then. After `drop_grad`, only `collect_grad` changes it.
        """
        self.gradient.zero_()
        self.parameters.grad = self.gradient
        for _, parameter, _, view in self._plain:
            if parameter.grad is not view:
                parameter.grad = view

    def drop_grad(self) -> None:
        """Delete the parameters' gradients; the next backward pass makes new ones.

        `collect_grad` copies the new gradients into the flat gradient. This is faster than
        `zero_grad`, which needs two more passes over all gradients: to set zeros, and to add.
        """
        for each in self._plain:
            each.parameter.grad = None
        for each in self._halves:
            each.gradient.zero_()

    def collect_grad(self) -> Tensor:
        """Copy the parameters' gradients into the flat gradient (0 for a missing one); return it.

        This frees the parameters' own gradients.
        """
        for _, parameter, _, view in self._plain:
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                grad = parameter.grad  # sparse with nn.Embedding(sparse=True)
                view.copy_(grad.to_dense() if grad.is_sparse else grad)
            parameter.grad = None
        return self.gradient

    def load(
        self,
        state: Tensor | NDArray[np.float32],
        natives: Mapping[str, NDArray[Any]] = NONE,
        own: Mapping[str, NDArray[Any]] = NONE,
    ) -> None:
        """Copy `state`, float32 (n,), into the model in place; `reset` sets all other tensors.

        `own`: the personal tensors, from the method `own`; {}: they get their initial values.
        """
        if tuple(state.shape) != tuple(self.state.shape):
            raise ValueError(
                f"a state of shape {tuple(state.shape)} for {self.state.numel()} values"
            )
        if isinstance(state, np.ndarray) and self.state.device.type == "cpu":
            np.copyto(self.state.numpy(), state)
        else:
            self.state.copy_(torch.as_tensor(state))
        self.reset(natives)
        for name, tensor in self._own:
            put_array(tensor, (own or self._first_own)[name])
        if self._halves:
            self._rounded = -1
            self.round_halves()

    def reset(self, natives: Mapping[str, NDArray[Any]] = NONE) -> None:
        """Set the tensors that are not in the flat vector `state`.

        `natives`: new values of native tensors, by name. All others get their initial values.
        """
        for owner, held in self._buffers:
            owner._buffers.update(held)
        with torch.no_grad():
            if self._beside:
                try:
                    torch._foreach_copy_(self._beside, self._initial)
                except RuntimeError as error:
                    raise TaskError(
                        "the model's first use changes the shape of a buffer, as in per-channel "
                        "quantisation-aware training: call the model once where it is built"
                    ) from error
            for name, tensor in self._native if natives else ():
                if name in natives:
                    put_array(tensor, natives[name])

    @torch.no_grad()
    def collect_state(self) -> None:
        """Take over the buffers that a forward pass has replaced by new tensors.

        Their values are copied into the first tensors, BatchNorm's statistics so into `state`.
        Raises `TaskError` for a new shape or type.
        """
        for name, tensor, owner, key in self._places:
            if (now := owner._buffers[key]) is tensor:
                continue
            if now is None or _kind(now) != _kind(tensor):
                raise TaskError(
                    f"{name} was {form(tensor)}, and after a batch it is {form(now)}: keep shape "
                    "and type, or register it with persistent=False"
                )
            tensor.copy_(now)
            owner._buffers[key] = tensor

    def expect_in_place(self) -> None:
        """Raise `TaskError` if a parameter or its memory has been replaced; undo that first.

        `state` would not have the new values.
        """
        replaced = [n for n, p, view, _ in self._plain if p.data_ptr() != view.data_ptr()]
        for owner, held in self._owners:
            replaced += [key for key, p in held.items() if owner._parameters.get(key) is not p]
        if not replaced:
            return
        for _, parameter, view, _ in self._plain:
            parameter.data = view
        for owner, held in self._owners:
            owner._parameters.update(held)
        raise TaskError(
            f"{replaced[0]} has been replaced: change parameters in place, as by "
            "p.data.copy_(values) in place of p.data = values"
        )

    def natives(self) -> Arrays:
        """Return native tensors by name as numpy arrays (`to_array`), which may share their memory.

        Raises `TaskError` as `collect_state` does.
        """
        self.collect_state()
        return {name: to_array(tensor) for name, tensor in self._native}

    def own(self) -> Arrays:
        """Return copies of the personal tensors: those in float32 as one array, others by name.

        Raises `TaskError` as `collect_state` does.
        """
        self.collect_state()
        return {name: to_array(tensor) for name, tensor in self._own}

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters and statistics by name, float32 views of `state` in their shapes."""
        return dict(zip(self.names, self._views, strict=True))

    @staticmethod
    def _cut(vector: Tensor, shapes: Iterable[tuple[int, ...]]) -> list[Tensor]:
        shapes = list(shapes)
        pieces = torch.split(vector, [math.prod(shape) for shape in shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
