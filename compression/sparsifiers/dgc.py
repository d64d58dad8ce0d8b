"""Deep gradient compression (Lin et al., ICLR 2018)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..base import Indices, ResidualSparsifier, Selection, StepContext, Vector, get_or_zeros
from ..layout import Layout
from ..per_tensor import counts, largest_of_each
from ..registry import register
from ..scatter import find
from ..validation import bounded

LAYERS = ("all", "conv")
WARMUP = (0.75, 0.9375, 0.984375, 0.996)  # sparsities of the warm-up's four parts


@register("sparsifier")
@dataclass(frozen=True)
class DGC(ResidualSparsifier):
    """Sends the largest entries of each tensor's velocity v; their share is 1 - ``sparsity``.

    Lin, Han, Mao, Wang, Dally 2018, "Deep gradient compression", Algorithm 4: u = momentum u + g,
    v = v + u. The largest entries of v are sent and set to 0 in v. From a sparsity of
    ``masked_from`` on they are also set to 0 in u (momentum factor masking); 1: never. At lower
    sparsities, in the warm-up, masking would remove all momentum.

    ``clip_norm`` (0: off) limits the gradient's L2 norm to clip_norm / sqrt(N) (section 3.2). N is
    ``workers``; if ``workers`` is 0, N is the number of updates that the server averages, as its
    messages say. ``warmup_steps``: over this many steps the sparsity rises from 75 %, in
    four parts (section 3.3). Tensors of at most one dimension (biases, parameters of norm layers)
    are sent whole. With ``layers="conv"`` all tensors except convolutions are sent whole (Edgify).

    The exact share of each tensor is sent, at least 1 entry. As in the paper's hierarchical
    selection, a sample gives a first threshold, and a second selection makes the number exact
    (`edgewire.compression.selection.largest`).
    """

    name: ClassVar[str] = "dgc"
    id: ClassVar[int] = 8
    stores: ClassVar[tuple[int, int]] = (8, 8)  # u and v; the number of steps

    sparsity: float = bounded(0.999, at_least=0, below=1)
    momentum: float = bounded(0.9, at_least=0, at_most=1)
    warmup_steps: int = bounded(0, at_least=0)
    clip_norm: float = bounded(0.0, at_least=0)
    workers: int = bounded(0, at_least=0)
    layers: str = bounded("all", one_of=LAYERS)
    masked_from: float = bounded(0.99, at_least=0, at_most=1)

    @property
    def residual_key(self) -> str | None:
        """Name of the velocity v, float32 (n,)."""
        return "velocity"

    @property
    def gain_of_momentum(self) -> float:
        """How often the values sent contain an update in the end, if no momentum is masked."""
        return 1 / (1 - self.momentum) if self.momentum < 1 else float("inf")

    def accumulate(self, update: Vector, step: StepContext) -> Vector:
        """Clip the gradient g, then compute u = momentum u + g and v = v + u."""
        momentum = get_or_zeros(step.memory, "momentum", len(update), np.float32)
        velocity = get_or_zeros(step.memory, "velocity", len(update), np.float32)
        momentum *= np.float32(self.momentum)
        factor = self._factor(update, self.workers or step.workers or 1)
        momentum += update if factor == 1 else update * factor
        velocity += momentum
        return velocity

    def choose(self, given: Vector, step: StepContext) -> Indices:
        """Return the indices to send: each tensor's largest entries, or all of some tensors."""
        wanted = counts(1 - self.sparsity_at(_steps(step)), step.layout)
        sizes = np.diff(step.layout.offsets)
        wanted = np.where(self._whole(step.layout), sizes, wanted)
        return largest_of_each(given, step.layout.offsets, wanted)

    def select(self, update: Vector, step: StepContext) -> Selection:
        """Select the entries to send, set their momentum to 0, and count the step."""
        indices, values, _ = super().select(update, step)
        assert indices is not None
        if self.sparsity_at(_steps(step)) >= self.masked_from:
            self._mask(indices, step)
        get_or_zeros(step.memory, "steps", 1, np.int64)[0] += 1
        return Selection(indices, values)

    def sparsity_at(self, steps: int) -> float:
        """Return the share of entries that a step (from 0) leaves out; lower in the warm-up."""
        if steps >= self.warmup_steps:
            return self.sparsity
        return min(self.sparsity, WARMUP[steps * len(WARMUP) // self.warmup_steps])

    def _factor(self, update: Vector, workers: int) -> np.float32:
        norm = float(np.linalg.norm(update)) if self.clip_norm else 0.0
        limit = self.clip_norm / workers**0.5
        return np.float32(limit / norm if norm > limit else 1)

    def _mask(self, indices: Indices, step: StepContext) -> None:
        """Set the momentum u of sent entries to 0, except in tensors that are always sent whole."""
        momentum, cuts = step.memory["momentum"], find(indices, step.layout.offsets.tolist())
        for tensor in np.flatnonzero(~self._whole(step.layout)).tolist():
            momentum[indices[cuts[tensor] : cuts[tensor + 1]]] = 0

    def _whole(self, layout: Layout) -> NDArray[np.bool_]:
        """Return (T,) bool: True for tensors that are sent whole."""
        sparse = 3 if self.layers == "conv" else 2  # from this number of dimensions: sparsified
        return np.array([len(shape) < sparse for shape in layout.shapes], dtype=np.bool_)


def _steps(step: StepContext) -> int:
    return int(get_or_zeros(step.memory, "steps", 1, np.int64)[0])
