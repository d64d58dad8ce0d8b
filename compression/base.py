"""Base classes of sparsifiers, quantizers and coders, and the types of their parameters.

Together these three are called methods, and each is a stage of ``Codec.encode``. A method is a
frozen dataclass with the class variables ``name`` and ``id``. The dataclass's fields are the
method's options. The decorator ``edgewire.compression.registry.register`` registers a method. Each
method has a separate module in ``sparsifiers/``, ``quantizers/`` or ``coders/``. The registry
imports these modules.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .coders.shared_context import IndexContext
from .layout import Layout
from .scatter import Indices as Indices
from .scatter import Vector as Vector
from .scatter import put_at
from .validation import expect_bounds

Segments = NDArray[np.int64]  # (T+1,): tensor t's values are values[segments[t]:segments[t + 1]]
Array = np.ndarray[tuple[int], np.dtype[np.generic]]  # one stream: 1-d, contiguous, little-endian
Streams = Sequence[NDArray[Any]]  # a payload's streams of values, in the order of their specs
Params = tuple[int, ...]  # the numbers that a quantizer's decoder needs
Buffer = bytes | bytearray | memoryview
Memory = dict[str, NDArray[Any]]  # by name, the arrays that methods store on a node between steps
Bounds = NDArray[np.float64]

DIVERGED = "training has diverged"  # part of the message of every error that reports it
# A decorator of functions whose results are checked for overflow: numpy must not raise or warn.
quiet = np.errstate(all="ignore")
_FEW = 8192  # up to this length, the extremes of a vector take less time than its sum of squares


class PayloadError(ValueError):
    """Raised for values that cannot be encoded, and for malformed or forbidden payloads."""

    one_line = True  # loggers print the message without a traceback


class Kind(Enum):
    """The kind of values in a stream (one array of a payload); a coder may depend on it."""

    INDICES = "indices"  # strictly increasing integers below ``bound``
    LEVELS = "levels"  # small integers, the quantized values; below ``bound`` unless it is 0
    FLOATS = "floats"
    BYTES = "bytes"


class Spec(NamedTuple):
    """The kind, dtype and size that the decoder expects of a stream (one array of a payload).

    A `Spec` is computed, not read from the payload.
    """

    kind: Kind
    dtype: np.dtype[np.generic]  # little-endian
    size: int  # entries
    bound: int = 0
    context: IndexContext | None = None  # what sender and receiver know of an index set's entries

    @property
    def nbytes(self) -> int:
        """The bytes of the stream before a coder compresses it."""
        return self.size * self.dtype.itemsize


PRIVATE = 192  # the first of the ids for methods of other packages


class Selection(NamedTuple):
    """The entries that a sparsifier sends; if ``indices`` is None, it sends the whole vector."""

    indices: Indices | None  # (k,) uint32, strictly increasing
    values: Vector  # (k,) float32, contiguous
    same: bool = False  # True: the indices are the same as in the last step with this memory


class TensorSlices(NamedTuple):
    """Cuts an array of values into tensors; tensor t is ``values[segments[t]:segments[t + 1]]``.

    ``shapes``: the tensors' shapes if every entry is sent, None if only some entries are.
    """

    segments: Segments
    shapes: tuple[tuple[int, ...], ...] | None = None


@dataclass
class StepContext:
    """The input of a sparsifier or a quantizer in one step, in addition to the values.

    ``layout``: the layout of all entries from which the sparsifier selects. ``memory``: arrays by
    name, empty at the first step. A method adds arrays and changes them in place. ``seed``: two
    numbers; the second differs between sparsifier and quantizer. ``loss``: the loss of the
    mini-batch or epoch that made the update; None if unknown. ``workers``: how many updates the
    server averages in its next step, including this update; 0 if unknown. ``number``: the number of
    the update, from 1: that of the round, or the count of a node's messages; 0 if unknown.
    ``density_factor``: multiplies the share of entries that a ``scalable`` sparsifier sends.
    ``common``: what all nodes have in common, for a `SummableQuantizer`; None: nothing.
    """

    layout: Layout
    memory: Memory
    seed: tuple[int, int]
    loss: float | None = None
    workers: int = 0
    number: int = 0
    density_factor: float = 1.0
    common: Sequence[int] | None = None

    @cached_property
    def generator(self) -> np.random.Generator:
        """The generator of random numbers, made on first use, because most methods never use it."""
        return np.random.default_rng(self.seed)


class Method:
    """Base class of sparsifiers, quantizers and coders, which are all called methods.

    ``name``: the method's name in a configuration. ``id``: its number in a payload, which never
    changes: 0 to 191 for a method of this package, 192 to 255 for one of another package.
    """

    name: ClassVar[str]
    id: ClassVar[int]
    # The bytes that it stores on a node between steps: per parameter, and beside these.
    stores: ClassVar[tuple[int, int]] = (0, 0)

    def __post_init__(self) -> None:
        for each in fields(cast(Any, self)):
            name = f"option {each.name} of {self.name}"
            expect_bounds(name, getattr(self, each.name), each.metadata)

    def memory_bytes(self, layout: Layout) -> int:
        """Return the bytes that this method stores on a node between steps."""
        return self.stores[0] * layout.size + self.stores[1]


class Sparsifier(Method, ABC):
    """Chooses which coordinates of an update are sent; may store the other values on the node."""

    repeats: ClassVar[bool] = False  # True: it may send the same indices as in the last step
    selects: ClassVar[bool] = True  # True: it may leave coordinates out
    scalable: ClassVar[bool] = False  # True: it has a density, and uses the step's `density_factor`
    incremental: ClassVar[bool] = False  # True: it sends changes, which the receiver has to add up

    @property
    def residual_key(self) -> str | None:
        """Name of the array in ``memory`` that holds the unsent values; None if there is none."""
        return None

    @abstractmethod
    def select(self, update: Vector, step: StepContext) -> Selection:
        """Choose the coordinates of ``update`` to send.

        ``update``: (n,) finite float32, without BatchNorm's running statistics. The method must not
        change it.
        """

    @property
    def contracts(self) -> bool:
        """Whether |update - sent| < |update| (L2 norms); otherwise error feedback may diverge."""
        return True

    @property
    def gain_of_momentum(self) -> float:
        """How often the values sent contain an update in the end; a decay makes it less than 1."""
        return 1.0

    def expect_increasing(self, indices: Any, size: int) -> None:
        """Raise `ValueError` for indices that a decoder would refuse; `size`: of the vector.

        This is called for methods of other packages.
        """
        found = np.asarray(indices)
        integers = isinstance(indices, np.ndarray) and found.dtype.kind in "iu" and found.ndim == 1
        if not integers or (
            len(found) and (found[0] < 0 or found[-1] >= size or (found[1:] <= found[:-1]).any())
        ):
            raise ValueError(
                f"sparsifier {self.name}: strictly increasing indices from 0 to {size - 1} are "
                f"taken, as an array (k,) of uint32, and it chose {str(indices)[:80]!r}"
            )


class ResidualSparsifier(Sparsifier):
    """A sparsifier that stores unsent values in a residual, and adds the next update to it.

    Each step adds the update to the residual (``accumulate``), chooses coordinates of the sum
    (``choose``) and removes their values from the residual (``take``). So sent values + residual
    after the step = update + residual before the step.
    """

    stores: ClassVar[tuple[int, int]] = (4, 0)  # the residual

    @property
    def residual_key(self) -> str | None:
        """Name of the array with the residual, float32 (n,)."""
        return "residual"

    def accumulate(self, update: Vector, step: StepContext) -> Vector:
        """Add the update to the residual, and return the residual array, (n,) float32."""
        residual = get_or_zeros(step.memory, "residual", len(update), np.float32)
        residual += update
        return residual

    @abstractmethod
    def choose(self, given: Vector, step: StepContext) -> Indices:
        """Return the indices of the values to send; ``given``: residual + update, float32 (n,)."""

    def take(self, given: Vector, indices: Indices) -> Vector:
        """Return the values to send, at ``indices``; set them to 0 in ``given``, the residual."""
        values = given[indices]
        put_at(given, indices, np.zeros_like(values))
        return values

    def select(self, update: Vector, step: StepContext) -> Selection:
        """Choose and return the entries to send: call ``accumulate``, ``choose`` and ``take``."""
        given = self.accumulate(update, step)
        indices = self.choose(given, step)
        if self.id >= PRIVATE:
            self.expect_increasing(indices, len(given))
        return Selection(indices, self.take(given, indices))


class Quantizer(Method, ABC):
    """Converts float32 values to streams (arrays) of smaller types, and converts them back."""

    exact: ClassVar[bool] = False  # True: it is lossless
    feedback: ClassVar[bool] = False  # True: it needs error feedback, which is then on by default
    keeps_norm: ClassVar[bool] = False  # True: |decoded| <= |values|, apart from rounding
    sent_options: ClassVar[int] = 0  # how many options, the first ones, the decoder needs

    def params(self) -> Params:
        """Return the non-negative integers that the decoder needs, such as the number of levels.

        They are the first options; for a text it is the place in the option's ``one_of``.
        """
        values = [(getattr(self, each.name), each.metadata) for each in self._sent()]
        return tuple(x if isinstance(x, int) else m["one_of"].index(x) for x, m in values)

    @classmethod
    def of_params(cls, params: Params) -> Self:
        """Return a quantizer for which ``params()`` returns ``params``.

        May raise TypeError, ValueError or IndexError for other ``params``, or return a quantizer
        with others.
        """
        options = zip(params, cls._sent(), strict=True)
        return cls(
            *[n if isinstance(o.default, int) else o.metadata["one_of"][n] for n, o in options]
        )

    @classmethod
    def _sent(cls) -> tuple[Field[Any], ...]:
        return fields(cast(Any, cls))[: cls.sent_options]

    def finer(self, bits: int) -> Self:
        """Return this method with up to ``bits`` bits per value more: here itself."""
        return self

    def finer_by(self, bits: int) -> int:
        """Return how many of ``bits`` bits per value more this method can use."""
        found = 0
        while found < bits and self.finer(found + 1) != self.finer(found):
            found += 1
        return found

    @abstractmethod
    def encode(self, values: Vector, parts: TensorSlices, step: StepContext) -> Streams:
        """Convert (k,) finite float32 values to the streams that ``specs`` describes.

        Streams may be views of ``values``.
        """

    @abstractmethod
    def specs(self, parts: TensorSlices) -> tuple[Spec, ...]:
        """Return a `Spec` for each stream; streams of floats come first, so that they are aligned.

        This and ``decode`` depend on no options except those in ``params()``.
        """

    @abstractmethod
    def decode(self, streams: Streams, parts: TensorSlices) -> Vector:
        """Convert streams to (k,) finite float32 values; the result may be a view of a stream.

        The streams have the dtypes and sizes that ``specs`` describes. Raises PayloadError for
        streams that ``encode`` cannot have made.
        """


class Coder(Method, ABC):
    """Compresses one stream (an array of a payload) without loss.

    Class variable: ``contextual`` (True: it uses `Spec.context`, so both ends must know it).
    """

    contextual: ClassVar[bool] = False

    @abstractmethod
    def encode(self, data: Array, spec: Spec) -> Buffer | None:
        """Return the compressed stream, or None to send the stream uncompressed."""

    @classmethod
    @abstractmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Decompress a stream to an array of ``spec.size`` entries of ``spec.dtype``.

        Raises PayloadError if ``coded`` does not hold such an array. The decoder never writes more
        than ``spec.nbytes`` + 1 bytes.
        """


def get_or_zeros(memory: Memory, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return the array ``name`` in ``memory``; if it is missing, create it as (size,) zeros.

    Raises ValueError if the array has another shape or dtype, because it then belongs to another
    model.
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


def fallen(step: StepContext) -> bool:
    """Return whether the loss is lower than at the last step, and store the loss in the memory.

    Returns False at the first step, and if one of the two losses is unknown.
    """
    first = "loss" not in step.memory
    last = get_or_zeros(step.memory, "loss", 1, np.float64)
    known = step.loss is not None and np.isfinite(step.loss)
    better = bool(known and not first and step.loss < last[0])
    last[0] = step.loss if known else -np.inf
    return better


def expect_finite(values: Vector) -> None:
    """Raise PayloadError unless all (k,) float32 values of a payload are finite."""
    if not is_finite(values):
        raise PayloadError("payload holds NaN or infinity")


def is_finite(values: Vector) -> bool:
    """Return whether no entry of (k,) float32 is NaN or infinite.

    numpy may warn of an overflow, unless the caller has turned its warnings off (`quiet`).
    """
    if values.size <= _FEW:  # comparisons with NaN are False; nothing can overflow
        high, low = np.maximum.reduce(values, initial=0.0), np.minimum.reduce(values, initial=0.0)
        return bool(high < math.inf and low > -math.inf)
    # If the sum of squares is finite, all entries are. This takes a third of the time of
    # isfinite().all(). The sum of finite values may overflow; then isfinite() decides.
    return bool(np.isfinite(np.dot(values, values)) or np.isfinite(values).all())
