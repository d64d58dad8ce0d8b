"""What a compression method implements: the three stages of ``Codec.encode`` and their types.

A method is a frozen dataclass with the class variables ``name`` and ``id``; its fields are its
options. It is registered with ``compression.registry.register`` and lives in a module of its own
in ``sparsifiers/``, ``quantizers/`` or ``coders/``, found there without being imported anywhere.
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
Memory = dict[str, NDArray[Any]]  # what methods keep on one node, by name


Bounds = NDArray[np.float64]


DIVERGED = "training has diverged"  # in the reason of who finds that it has


class PayloadError(ValueError):
    """A payload that cannot be made (NaN, infinity) or is malformed, foreign or refused."""

    one_line = True  # all that there is to say: who logs it leaves the traceback out


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
        """Size of the stream as it is."""
        return self.size * self.dtype.itemsize


class Selection(NamedTuple):
    """What a sparsifier sends: ``values`` at ``indices``, or a whole vector (None)."""

    indices: Indices | None  # (k,) uint32, strictly increasing
    values: Vector  # (k,) float32, contiguous
    same: bool = False  # the very indices of this memory's last step


class TensorSlices(NamedTuple):
    """How values belong to tensors: ``values[segments[t]:segments[t + 1]]`` are tensor t's.

    ``shapes``: the tensors' own where every entry is there, None where only some are.
    """

    segments: Segments
    shapes: tuple[tuple[int, ...], ...] | None = None


class Rng:
    """A numpy Generator made from a seed on first use: most methods draw nothing."""

    def __init__(self, seed: int, stage: int) -> None:
        self._seed = (seed, stage)

    @cached_property
    def generator(self) -> np.random.Generator:
        """The generator; each stage has a stream of its own."""
        return np.random.default_rng(self._seed)


class SparsifyContext(NamedTuple):
    """What a sparsifier knows of one step besides the update.

    ``memory``: raw arrays by name, empty at the first step; a method adds its own and changes
    them in place. ``loss``: of the mini-batch or epoch that made the update, if anyone said.
    ``workers``: how many updates the server's next step is made of, this one among them; 0 if
    nobody said.
    """

    layout: Layout
    memory: Memory
    rng: Rng
    loss: float | None = None
    workers: int = 0


class Method:
    """What all methods have: a name for people, an id for the payload (0 to 255, for ever)."""

    name: ClassVar[str]
    id: ClassVar[int]

    def memory_bytes(self, layout: Layout) -> int:
        """Bytes that this method keeps on a node between steps."""
        return 0


class Sparsifier(Method, ABC):
    """Which coordinates are sent, and the memory of those that are not. Nothing at the receiver."""

    repeats: ClassVar[bool] = False  # may send the very indices of the last step
    selects: ClassVar[bool] = True  # may leave something out

    @property
    def kept(self) -> str | None:
        """Name of the memory that holds, for each coordinate, what is still to be sent."""
        return None

    @abstractmethod
    def select(self, update: Vector, step: SparsifyContext) -> Selection:
        """Choose what to send of ``update`` (n,) float32, which is finite and must not be changed.

        BatchNorm's running statistics are not among it.
        """

    @property
    def contracts(self) -> bool:
        """Whether what is sent is closer to the update than nothing is: feedback needs that."""
        return True

    def restore(self, indices: Indices | None, values: Vector, memory: Memory) -> None:
        """Take back (k,) values that were chosen but have not arrived, or not exactly.

        Only for a method that keeps what it does not send.
        """
        assert self.kept is not None
        add_at(memory[self.kept], indices, values)


class ResidualSparsifier(Sparsifier):
    """A sparsifier that keeps what it does not send: *sent + kept == given*.

    A step adds to what is kept (``accumulate``), chooses among the sum and takes that out of it.
    """

    @property
    def kept(self) -> str | None:
        """The residual, float32 (n,)."""
        return "residual"

    def memory_bytes(self, layout: Layout) -> int:
        """Four bytes a parameter: the residual."""
        return 4 * layout.size

    def accumulate(self, update: Vector, step: SparsifyContext) -> Vector:
        """Add the update to what is kept; return that memory itself: what there is to send."""
        residual = get_or_zeros(step.memory, "residual", len(update), np.float32)
        residual += update
        return residual

    @abstractmethod
    def choose(self, given: Vector, step: SparsifyContext) -> Indices:
        """Return which of the (n,) accumulated values to send."""

    def take(self, given: Vector, indices: Indices) -> Vector:
        """Return what is sent at ``indices``, and leave in ``given`` what is not."""
        values = given[indices]
        given[indices] = 0
        return values

    def select(self, update: Vector, step: SparsifyContext) -> Selection:
        """Accumulate, choose, take."""
        given = self.accumulate(update, step)
        indices = self.choose(given, step)
        return Selection(indices, self.take(given, indices))


class Quantizer(Method, ABC):
    """How values are written: float32 values to streams of small types and back."""

    exact: ClassVar[bool] = False  # loses nothing
    feedback: ClassVar[bool] = False  # needs error feedback to converge: on unless switched off
    unbiased: ClassVar[bool] = False  # E[decoded] = values
    keeps_norm: ClassVar[bool] = False  # |decoded| <= |values| but for rounding to nearest

    def params(self) -> tuple[int, ...]:
        """Non-negative integers that the decoder needs (levels, bucket size); sent as varints."""
        return ()

    @abstractmethod
    def encode(
        self, values: Vector, parts: TensorSlices, memory: Memory, rng: Rng
    ) -> Sequence[Array]:
        """Turn (k,) finite float32 values into the streams that ``specs`` describes.

        ``memory``: as in `Step`. Streams may be views of ``values``.
        """

    @classmethod
    @abstractmethod
    def specs(cls, params: tuple[int, ...], parts: TensorSlices) -> tuple[Spec, ...]:
        """Describe the streams, floats before levels (alignment).

        Raises PayloadError if ``params`` are not what ``params()`` could have returned.
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
        """Return (k,) float64: the largest |decoded - value| possible for these values."""


class Coder(Method, ABC):
    """Lossless coding of one stream."""

    @abstractmethod
    def encode(self, data: Array, spec: Spec) -> Buffer | None:
        """Code a stream, or return None to leave it as it is."""

    @classmethod
    @abstractmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Return the stream, exactly ``spec.size`` entries of ``spec.dtype``.

        Raises PayloadError for anything else, and never writes more than ``spec.nbytes`` + 1 bytes.
        """


def get_or_zeros(memory: Memory, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return a memory's array, all zero at first.

    Raises ValueError if it is another model's.
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
    """Return whether the loss is below the last step's, and remember it (float64, 1 entry).

    At the first step, and where either is not known, it has not fallen.
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
    """Whether no entry of (k,) float32 is NaN or infinite."""
    # A finite sum of squares proves it, in a third of the time of isfinite().all().
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(values, values)) or np.isfinite(values).all())
