"""The server's optimisers: one step over a flat model, with a gradient that may be sparse.

The server and the nodes take the same steps, each on its own copy of the model. A step uses only
elementwise float32 operations, which every machine rounds in the same way.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgewire.task.errors import TaskError

Vector = NDArray[np.float32]
Indices = NDArray[np.uint32]
State = dict[str, Vector]


class ServerOptimizer(ABC):
    """Base class of the server's optimisers: one step, with a state that the caller stores."""

    names: tuple[str, ...] = ()  # names of the arrays in its state, each float32 (n,)
    incremental = False  # True: the gradients that it gets are changes, which it adds up
    sends_momentum = False  # True: nodes send something else than their gradients (`uplink`)

    def state(self, size: int) -> State:
        """Return the state before the first step: arrays of zeros, float32 (size,)."""
        return {name: np.zeros(size, dtype=np.float32) for name in self.names}

    def uplink(self, gradient: Vector, state: State, number: int) -> Vector:
        """Return what a node sends for its gradient, float32 (n,): here the gradient itself.

        `state`: the node's own copy of the optimiser's state. `number`: the step that the server
        takes next. Do not change `gradient` and `state`.
        """
        return gradient

    @abstractmethod
    def step(
        self, x: Vector, state: State, at: Indices | slice, gradient: Vector, lr: float, number: int
    ) -> None:
        """Change `x`, float32 (n,), and `state` in place.

        `gradient`, float32 (k,), holds the entries at the indices `at`, which are strictly
        increasing. `at` may also be the slice of all entries. Other entries of the gradient are 0.
        `number` counts steps from 1.
        """


@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """x = x - lr g; changes only the k entries of the gradient."""

    def step(
        self, x: Vector, state: State, at: Indices | slice, gradient: Vector, lr: float, number: int
    ) -> None:
        """Take the step at the gradient's entries."""
        x[at] -= np.float32(lr) * gradient


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """v = momentum v + g; x = x - lr v (as `torch.optim.SGD` without dampening).

    `nesterov`: x = x - lr (g + momentum v) instead, as torch's Nesterov momentum.
    `lazy`: change v and x only at the received entries of the gradient. Otherwise an entry that was
    not received counts as 0: its velocity decays and still changes x.
    """

    momentum: float = 0.9
    lazy: bool = False
    nesterov: bool = False
    names = ("velocity",)

    def __post_init__(self) -> None:
        _expect_below_one("momentum", self.momentum)

    def step(
        self, x: Vector, state: State, at: Indices | slice, gradient: Vector, lr: float, number: int
    ) -> None:
        """Take the step."""
        velocity, kept = state["velocity"], np.float32(self.momentum)
        changed = at if self.lazy else slice(None)
        velocity[changed] *= kept
        velocity[at] += gradient
        moved = velocity[changed]
        if self.nesterov:
            moved = kept * moved
            moved[slice(None) if self.lazy else at] += gradient
        x[changed] -= np.float32(lr) * moved


@dataclass(frozen=True)
class EF21Estimate(ServerOptimizer):
    """h = h + g; x = x - lr h, for nodes that send changes of their updates (sparsifier `ef21`).

    Richtarik, Sokolov, Fatkhullin 2021, "EF21", Algorithm 2: h is the server's estimate of the mean
    update. It is the mean of the nodes' sums only if all nodes take part in every round.
    """

    names = ("estimate",)
    incremental = True

    def step(
        self, x: Vector, state: State, at: Indices | slice, gradient: Vector, lr: float, number: int
    ) -> None:
        """Take the step."""
        estimate = state["estimate"]
        estimate[at] += gradient
        x -= np.float32(lr) * estimate


@dataclass(frozen=True)
class Adam(ServerOptimizer):
    """Kingma & Ba 2015, Algorithm 1; `eps` is outside of the root, as in the paper and in torch.

    `lazy`: change moments and x only at the received entries of the gradient (as
    `torch.optim.SparseAdam`, which adds eps at another place). Otherwise an entry that was not
    received counts as 0.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    lazy: bool = False
    names = ("mean", "square")

    def __post_init__(self) -> None:
        _expect_below_one("beta1", self.beta1)
        _expect_below_one("beta2", self.beta2)
        if not 0 < self.eps < np.inf:
            raise TaskError(f"eps must be above 0, not {self.eps:g}")

    def step(
        self, x: Vector, state: State, at: Indices | slice, gradient: Vector, lr: float, number: int
    ) -> None:
        """Take the step."""
        mean, square = state["mean"], state["square"]
        beta1, beta2 = np.float32(self.beta1), np.float32(self.beta2)
        rest1, rest2 = np.float32(1 - self.beta1), np.float32(1 - self.beta2)
        changed = at if self.lazy else slice(None)
        mean[changed] *= beta1
        mean[at] += rest1 * gradient
        square[changed] *= beta2
        square[at] += rest2 * (gradient * gradient)
        first, second = mean[changed], square[changed]
        # Algorithm 1's bias corrections, as scalars: m / (1 - beta1^t), sqrt(v / (1 - beta2^t)).
        rate = np.float32(lr / (1 - self.beta1**number))
        bias = np.float32((1 - self.beta2**number) ** 0.5)
        x[changed] -= rate * first / (np.sqrt(second) / bias + np.float32(self.eps))


@dataclass(frozen=True)
class OneBitAdam(Adam):
    """1-bit Adam: after a warm-up, nodes and server send the momentum, and v stays as it is.

    Tang et al. 2021, "1-bit Adam", Algorithm 1. The first `warmup_steps` steps are those of `Adam`
    (with the bias corrections, which Algorithm 1 leaves out). After them a node sends its momentum
    beta1 m + (1 - beta1) g, where m is the server's last momentum, as the node has received it. The
    server's mean of these is the next m. x = x - lr m / (sqrt(v) + eps), with the v of the warm-up.

    The codecs compress: signs with error feedback in both directions, and `exact_steps` equal to
    `warmup_steps`. Entries of which v is 0 after the warm-up do not change any more, because a sign
    has no value near 0, and its step would be lr / eps times as large.
    """

    lazy: bool = field(default=False, init=False)
    warmup_steps: int = 100
    sends_momentum = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_steps < 1:
            raise TaskError(f"warmup_steps must be at least 1, not {self.warmup_steps}")

    def uplink(self, gradient: Vector, state: State, number: int) -> Vector:
        """Return the gradient in the warm-up, and the node's momentum after it."""
        if number <= self.warmup_steps:
            return gradient
        beta1, rest1 = np.float32(self.beta1), np.float32(1 - self.beta1)
        momentum: Vector = beta1 * state["mean"] + rest1 * gradient
        return momentum

    def step(
        self, x: Vector, state: State, at: Indices | slice, gradient: Vector, lr: float, number: int
    ) -> None:
        """Take Adam's step in the warm-up; after it `gradient` is the momentum."""
        if number <= self.warmup_steps:
            super().step(x, state, at, gradient, lr, number)
            return
        mean, square = state["mean"], state["square"]
        mean[:] = 0
        mean[at] = gradient
        # v / (1 - beta2^T): the bias correction at the end of the warm-up of T steps.
        bias = np.float32((1 - self.beta2**self.warmup_steps) ** 0.5)
        step = np.float32(lr) * mean / (np.sqrt(square) / bias + np.float32(self.eps))
        x -= np.where(square > 0, step, np.float32(0))


def _expect_below_one(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise TaskError(f"{name} must be from 0 to below 1, not {value:g}")
