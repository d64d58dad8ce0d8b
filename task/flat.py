"""A model in one vector: what an optimiser steps over, and what travels."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class FlatModel:
    """A module whose parameters, gradients and float buffers are views of flat float32 vectors.

        state   [ parameters, in named_parameters order | float buffers: BatchNorm's statistics ]
        grad    [ gradients of the parameters ]

    So an update is one subtraction, and one optimiser over `parameters` steps the whole model:
    `torch.optim.SGD([flat.parameters], lr)` does what it does over `module.parameters()`.
    A parameter shared by layers is there once. Parameters that need no gradient stand with the
    buffers. Integer buffers (BatchNorm's counters) and non-persistent ones stay local.

    Args:
        module: moved to `device`; its tensors keep their identity and get their new memory.
        device: where everything lies.

    Raises:
        TypeError: a parameter or buffer is of another float type than float32.
    """

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self.module = module.to(device)
        trained = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        frozen = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
        kept = module.state_dict().keys()
        buffers = [(n, b) for n, b in module.named_buffers() if n in kept and b.is_floating_point()]
        named: list[tuple[str, Tensor]] = [*trained, *frozen, *buffers]
        for name, tensor in named:
            if tensor.dtype != torch.float32:
                raise TypeError(f"FlatModel holds float32, but {name} is {tensor.dtype}")

        self.names: tuple[str, ...] = tuple(name for name, _ in named)
        self.shapes: tuple[tuple[int, ...], ...] = tuple(tuple(t.shape) for _, t in named)
        self.num_parameters: int = sum(p.numel() for _, p in trained)
        self.state: Tensor = torch.cat([t.detach().flatten() for _, t in named])
        self._views = self._cut(self.state, self.shapes)
        for (_, tensor), view in zip(named, self._views, strict=True):
            tensor.data = view

        # The module's own parameters ask autograd for gradients; this view is for optimisers.
        self.parameters = nn.Parameter(self.state[: self.num_parameters], requires_grad=False)
        self.parameters.grad = self._grad = torch.zeros_like(self.parameters)
        self._grads = [
            (parameter, view)
            for (_, parameter), view in zip(
                trained, self._cut(self._grad, (p.shape for _, p in trained)), strict=True
            )
        ]
        self.zero_grad()

    def zero_grad(self) -> None:
        """Fill the gradient with zeros; the parameters' `.grad` are its views, again if need be."""
        self._grad.zero_()
        self.parameters.grad = self._grad
        for parameter, view in self._grads:
            if parameter.grad is not view:
                parameter.grad = view

    def drop_grad(self) -> None:
        """Let the next backward make the parameters' gradients anew, to be collected after it.

        Adding them to zeros, as after `zero_grad`, would go through all of them twice more.
        """
        for parameter, _ in self._grads:
            parameter.grad = None

    def collect_grad(self) -> Tensor:
        """Copy the parameters' gradients into the flat one, and return it; 0 where there is none.

        The parameters have none then: memory for one is enough until `zero_grad`.
        """
        for parameter, view in self._grads:
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                view.copy_(parameter.grad)
            parameter.grad = None
        return self._grad

    @property
    def gradient(self) -> Tensor:
        """All parameters' gradients, float32 (num_parameters,): what the last backward added, after
        `zero_grad`; after `drop_grad` what `collect_grad` found.
        """
        return self._grad

    def load(self, state: Tensor | NDArray[np.float32]) -> None:
        """Copy `state`, float32 (n,), into the model in place."""
        if tuple(state.shape) != tuple(self.state.shape):
            raise ValueError(
                f"a state of shape {tuple(state.shape)} for {self.state.numel()} values"
            )
        if isinstance(state, np.ndarray) and self.state.device.type == "cpu":
            np.copyto(self.state.numpy(), state)
        else:
            self.state.copy_(torch.as_tensor(state))

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and float buffers by name, each a view of `state` in its own shape."""
        return dict(zip(self.names, self._views, strict=True))

    @staticmethod
    def _cut(vector: Tensor, shapes: Iterable[tuple[int, ...]]) -> list[Tensor]:
        shapes = list(shapes)
        pieces = torch.split(vector, [math.prod(shape) for shape in shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
