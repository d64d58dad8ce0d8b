"""Base classes of compression methods: the three stages of ``Codec.encode`` and their types.

A method is a frozen dataclass with the class variables ``name`` and ``id``; its fields are its
options. The decorator ``compression.registry.register`` registers it. Each method has a module of
its own in ``sparsifiers/``, ``quantizers/`` or ``coders/``; the registry imports these modules.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .layout import Layout
from .scatter import Indices as Indices
from .scatter import Vector as Vector
from .scatter import add_at

Segments = NDArray[np.int64]  # (T+1,): tensor t's values are values[segments[t]:segments[t + 1]]
Array = np.ndarray[tuple[int], np.dtype[np.generic]]  # one stream: 1-d, contiguous, little-endian
Buffer = bytes | bytearray | memoryview
Memory = dict[str, NDArray[Any]]  # arrays that methods store on one node between steps, by name


Bounds = NDArray[np.float64]


DIVERGED = "training has diverged"  # part of the message of every error that reports it


class PayloadError(ValueError):
    """A payload that cannot be made (NaN, infinity) or is malformed, foreign or refused."""

    one_line = True  # the message says everything: loggers leave the traceback out


class Kind(Enum):
    """What a stream holds, for coders that treat kinds differently."""

    INDICES = "indices"  # strictly increasing integers below ``bound``
    LEVELS = "levels"  # small integers, the quantized values; below ``bound`` if that is not 0
    FLOATS = "floats"
    BYTES = "bytes"


class Spec(NamedTuple):
    """One stream as the decoder expects it; none of this is read from the stream itself."""

    kind: Kind
    dtype: np.dtype[np.generic]  # little-endian
    size: int  # entries
    bound: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the uncoded stream in bytes."""
        return self.size * self.dtype.itemsize


class Selection(NamedTuple):
    """What a sparsifier sends: ``values`` at ``indices``; the whole vector if they are None."""

    indices: Indices | None  # (k,) uint32, strictly increasing
    values: Vector  # (k,) float32, contiguous
    same: bool = False  # True: the indices equal those of this memory's last step


class TensorSlices(NamedTuple):
    """Which values belong to which tensor: tensor t's are ``values[segments[t]:segments[t + 1]]``.

    ``shapes``: the tensors' shapes if every entry is sent, None if only some entries are.
    """

    segments: Segments
    shapes: tuple[tuple[int, ...], ...] | None = None


class Rng:
    """A numpy Generator, made from a seed on first use because most methods draw nothing."""

    def __init__(self, seed: int, stage: int) -> None:
        self._seed = (seed, stage)

    @cached_property
    def generator(self) -> np.random.Generator:
        """The generator; each stage draws from a stream of its own."""
        return np.random.default_rng(self._seed)


class SparsifyContext(NamedTuple):
    """What a sparsifier knows about one step besides the update.

    ``memory``: raw arrays by name, empty at the first step; a method adds its own arrays and
    changes them in place. ``loss``: the loss of the mini-batch or epoch that made the update, None
    if unknown. ``workers``: how many updates the server averages in its next step, including this
    one; 0 if unknown.
    """

    layout: Layout
    memory: Memory
    rng: Rng
    loss: float | None = None
    workers: int = 0


class Method:
    """Base of all methods: a name for people, an id for the payload (0 to 255, never changed)."""

    name: ClassVar[str]
    id: ClassVar[int]

    def memory_bytes(self, layout: Layout) -> int:
        """Bytes that this method stores on a node between steps."""
        return 0


class Sparsifier(Method, ABC):
    """Chooses which coordinates are sent and remembers the others; the receiver stores nothing."""

    repeats: ClassVar[bool] = False  # may send the same indices as in the last step
    selects: ClassVar[bool] = True  # may leave coordinates out

    @property
    def kept(self) -> str | None:
        """Name of the memory array of unsent values, one per coordinate; None if there is none."""
        return None

    @abstractmethod
    def select(self, update: Vector, step: SparsifyContext) -> Selection:
        """Choose what to send of ``update``, (n,) finite float32, which must not be changed.

        ``update`` does not contain BatchNorm's running statistics.
        """

    @property
    def contracts(self) -> bool:
        """Whether |update - sent| < |update|: error feedback needs a contraction."""
        return True

    def restore(self, indices: Indices | None, values: Vector, memory: Memory) -> None:
        """Add (k,) values that were chosen but did not arrive, or not exactly, to the memory.

        Only a method that keeps unsent values (``kept`` is not None) supports this.
        """
        assert self.kept is not None
        add_at(memory[self.kept], indices, values)


class ResidualSparsifier(Sparsifier):
    """A sparsifier that keeps what it does not send in a residual: *sent + kept == given*.

    A step adds the update to the residual (``accumulate``), chooses coordinates of the sum
    (``choose``) and removes their values from the residual (``take``).
    """

    @property
    def kept(self) -> str | None:
        """The residual, float32 (n,)."""
        return "residual"

    def memory_bytes(self, layout: Layout) -> int:
        """Four bytes per parameter: the residual."""
        return 4 * layout.size

    def accumulate(self, update: Vector, step: SparsifyContext) -> Vector:
        """Add the update to the residual; return the residual array itself, (n,) float32."""
        residual = get_or_zeros(step.memory, "residual", len(update), np.float32)
        residual += update
        return residual

    @abstractmethod
    def choose(self, given: Vector, step: SparsifyContext) -> Indices:
        """Return the indices of the (n,) accumulated values to send."""

    def take(self, given: Vector, indices: Indices) -> Vector:
        """Return the values to send at ``indices``; leave the rest in ``given``."""
        values = given[indices]
        given[indices] = 0
        return values

    def select(self, update: Vector, step: SparsifyContext) -> Selection:
        """Accumulate, choose, take."""
        given = self.accumulate(update, step)
        indices = self.choose(given, step)
        return Selection(indices, self.take(given, indices))


class Quantizer(Method, ABC):
    """Converts float32 values to streams of small types and back."""

    exact: ClassVar[bool] = False  # loses nothing
    feedback: ClassVar[bool] = False  # needs error feedback to converge: on by default
    unbiased: ClassVar[bool] = False  # E[decoded] = values
    keeps_norm: ClassVar[bool] = False  # |decoded| <= |values|, except for rounding to nearest

    def params(self) -> tuple[int, ...]:
        """Return the non-negative integers that the decoder needs, such as levels; varints."""
        return ()

    @abstractmethod
    def encode(
        self, values: Vector, parts: TensorSlices, memory: Memory, rng: Rng
    ) -> Sequence[Array]:
        """Turn (k,) finite float32 values into the streams that ``specs`` describes.

        ``memory``: as in `SparsifyContext`. Streams may be views of ``values``.
        """

    @classmethod
    @abstractmethod
    def specs(cls, params: tuple[int, ...], parts: TensorSlices) -> tuple[Spec, ...]:
        """Describe the streams; streams of floats come before levels, so that floats are aligned.

        Raises PayloadError if ``params()`` never returns ``params``.
        """

    @classmethod
    @abstractmethod
    def decode(
        cls, params: tuple[int, ...], streams: Sequence[Array], parts: TensorSlices
    ) -> Vector:
        """Turn streams (of the described dtypes and sizes) back into (k,) finite float32 values.

        Raises PayloadError for streams that no encoder makes. May return a view of a stream.
        """

    @abstractmethod
    def error_bound(self, values: Vector, parts: TensorSlices) -> Bounds:
        """Return (k,) float64: the largest possible |decoded - value| for each of these values."""


class Coder(Method, ABC):
    """Lossless coding of one stream."""

    @abstractmethod
    def encode(self, data: Array, spec: Spec) -> Buffer | None:
        """Return the coded stream, or None to leave the stream uncoded."""

    @classmethod
    @abstractmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Return the stream: exactly ``spec.size`` entries of ``spec.dtype``.

        Raises PayloadError for anything else. Never writes more than ``spec.nbytes`` + 1 bytes.
        """


def get_or_zeros(memory: Memory, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return the array of this name in ``memory``; create it, (size,) zeros, if it is missing.

    Raises ValueError if the array has another shape or dtype: it belongs to another model.
    """
    if name not in memory:
        memory[name] = np.zeros(size, dtype=dtype)
    found = memory[name]
    if found.shape != (size,) or found.dtype != dtype:
        raise ValueError(
            f"the memory {name!r} holds {found.shape} {found.dtype}, not ({size},): "
            "it belongs to another model or method"
        )
    return found


def fallen(step: SparsifyContext) -> bool:
    """Return whether the loss is below the last step's; store the loss (float64, 1 entry).

    Returns False at the first step, and if either loss is unknown.
    """
    first = "loss" not in step.memory
    last = get_or_zeros(step.memory, "loss", 1, np.float64)
    known = step.loss is not None and np.isfinite(step.loss)
    better = bool(known and not first and step.loss < last[0])
    last[0] = step.loss if known else -np.inf
    return better


def expect_params(params: tuple[int, ...], count: int = 0) -> None:
    """Raise PayloadError unless there are ``count`` quantizer parameters."""
    if len(params) != count:
        raise PayloadError(f"payload holds {len(params)} quantizer parameters instead of {count}")


def is_finite(values: Vector) -> bool:
    """Return whether no entry of (k,) float32 is NaN or infinite."""
    # A finite sum of squares proves it, in a third of the time that isfinite().all() takes. The
    # sum of finite values may overflow: then isfinite() decides.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(values, values)) or np.isfinite(values).all())
