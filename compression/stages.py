"""What a compression method implements: the three stages of ``Codec.encode`` and their types.

A method is a frozen dataclass with the class variables ``name`` and ``id``; its fields are its
options. It is registered with ``compression.registry.register`` and lives in a module of its own
in ``sparsifiers/``, ``quantizers/`` or ``coders/``, found there without being imported anywhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.layout import Layout

Vector = NDArray[np.float32]
Indices = NDArray[np.uint32]
Segments = NDArray[np.int64]  # (T+1,): tensor t's values are values[segments[t]:segments[t + 1]]
Array = np.ndarray[tuple[int], np.dtype[np.generic]]  # one stream: 1-d, contiguous, little-endian
Buffer = bytes | bytearray | memoryview
Memory = dict[str, NDArray[np.generic]]  # a sparsifier's state on one node


Bounds = NDArray[np.float64]


class PayloadError(ValueError):
    """A payload that cannot be made (NaN, infinity) or is malformed, foreign or refused."""


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


class Rng:
    """A numpy Generator made from a seed on first use: most methods draw nothing."""

    def __init__(self, seed: int, stage: int) -> None:
        self._seed = (seed, stage)

    @cached_property
    def generator(self) -> np.random.Generator:
        """The generator; each stage has a stream of its own."""
        return np.random.default_rng(self._seed)


class Method:
    """What all methods have: a name for people, an id for the payload (0 to 255, for ever)."""

    name: ClassVar[str]
    id: ClassVar[int]


class Sparsifier(Method, ABC):
    """Which coordinates are sent, and the memory of those that are not. Nothing at the receiver."""

    @abstractmethod
    def select(self, update: Vector, layout: Layout, memory: Memory | None, rng: Rng) -> Selection:
        """Choose what to send of ``update`` (n,) float32, which is finite and must not be changed.

        ``memory`` holds raw arrays by name, empty at first; a method with a memory adds its own
        and changes them in place. Without one (None) it works as if at its first step.
        """


class Quantizer(Method, ABC):
    """How values are written: float32 values to streams of small types and back."""

    def params(self) -> tuple[int, ...]:
        """Non-negative integers that the decoder needs (levels, bucket size); sent as varints."""
        return ()

    @abstractmethod
    def encode(self, values: Vector, segments: Segments, rng: Rng) -> Sequence[Array]:
        """Turn (k,) finite float32 values into the streams that ``specs`` describes."""

    @classmethod
    @abstractmethod
    def specs(cls, params: tuple[int, ...], segments: Segments) -> tuple[Spec, ...]:
        """Describe the streams, floats before levels (alignment).

        Raises PayloadError if ``params`` are not what ``params()`` could have returned.
        """

    @classmethod
    @abstractmethod
    def decode(
        cls, params: tuple[int, ...], streams: Sequence[Array], segments: Segments
    ) -> Vector:
        """Turn streams (of the described dtypes and sizes) back into (k,) finite float32 values.

        Raises PayloadError for streams that no encoder makes. May return a view of a stream.
        """

    @abstractmethod
    def error_bound(self, values: Vector, segments: Segments) -> Bounds:
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


def expect_params(params: tuple[int, ...], count: int = 0) -> None:
    """Raise PayloadError unless there are ``count`` quantizer parameters."""
    if len(params) != count:
        raise PayloadError(f"payload holds {len(params)} quantizer parameters instead of {count}")


def is_finite(values: Vector) -> bool:
    """Whether no entry of (k,) float32 is NaN or infinite."""
    # A finite sum of squares proves it, in a third of the time of isfinite().all().
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(values, values)) or np.isfinite(values).all())
