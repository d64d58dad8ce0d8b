"""Encodes an update into a payload, in the long or the short form; what it leaves is a residual.

The page docs/payload.md describes the format.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from .base import (
    DIVERGED,
    PRIVATE,
    Array,
    Buffer,
    Coder,
    Indices,
    Kind,
    Memory,
    PayloadError,
    Quantizer,
    Sparsifier,
    Spec,
    StepContext,
    Vector,
    get_or_zeros,
    is_finite,
    quiet,
)
from .batchnorm import Separation, exact_tensors, expect_matches, separate
from .coders.shared_context import SharedContext
from .decoder import Update, decode_trained, exact_spec, index_spec, parts_of
from .layout import Layout
from .quantizers.float32 import Float32
from .scatter import add_at, subtract_at
from .validation import expect_bounds
from .wire import ALL, INDICES, REPEATED, Body, assemble, digest, ids_of, tables, with_native_table
from .wire_header import varint
from .wire_natives import NativeTensor, natives_bytes

_SMALL = 64  # streams of fewer bytes stay uncoded, because coding would not make them smaller
RECEIVERS = ("models", "gradients", "sums", "differences")  # described in `expect_receiver`
_ERROR = "error"  # name of the codec's array for error feedback, float32 (n,)


@dataclass(frozen=True)
class Codec:
    """Encodes updates in three stages.

    The sparsifier selects entries, the quantizer reduces the precision of their values, and the
    coder compresses the result without loss.

    ``feedback``: add the quantizer's error to the next update (error feedback, Seide et al. 2014;
    Karimireddy et al. 2019). The error is stored in the sparsifier's residual. If the sparsifier
    has no residual, the codec has its own array for the error and for the entries that were not
    selected. ``exact_names``: patterns of names. Tensors with such a name, and BatchNorm's running
    statistics, skip the sparsifier and the quantizer. They have no residual: if a payload is
    lost, the values of these tensors are not added to a later update. ``residual_decay``: before
    each update is added to what a node stores (residual, error), the latter is multiplied by this
    factor, from 0 to 1. ``exact_steps``: the values of the first so many updates are sent as
    float32, without the quantizer, such as in the warm-up of 1-bit Adam.
    """

    sparsifier: Sparsifier
    quantizer: Quantizer
    coder: Coder
    feedback: bool = False
    exact_names: tuple[str, ...] = ()
    residual_decay: float = 1.0
    exact_steps: int = 0

    def __post_init__(self) -> None:
        decay, steps = self.residual_decay, self.exact_steps
        expect_bounds("option residual_decay", decay, {"at_least": 0, "at_most": 1})
        expect_bounds("option exact_steps", steps, {"at_least": 0})
        if decay != 1 and not self.keeps:
            raise ValueError(
                f"option residual_decay does not go with sparsifier {self.sparsifier.name} and "
                "feedback=false: a node stores nothing that could decay"
            )
        if self.sparsifier.incremental:
            self._expect_sums()
        if self.feedback and not self.sparsifier.contracts:
            raise ValueError(
                f"option feedback does not go with {self.sparsifier.name} as it is set: what it "
                "sends is further from the update than nothing is"
            )

    def _expect_sums(self) -> None:
        """Raise `ValueError` for options with which a receiver's sum would lack what was sent."""
        wrong = {
            "residual_decay": self.residual_decay != 1,
            "feedback=false": not (self.feedback or self.quantizer.exact),
            "exact": bool(self.exact_names),
        }
        for option in (name for name, found in wrong.items() if found):
            raise ValueError(
                f"option {option} does not go with sparsifier {self.sparsifier.name}: the receiver "
                "adds up what it gets, so the residual must hold all that it lacks"
            )

    def expect_receiver(self, receiver: str, *, contextual: bool = False) -> None:
        """Raise `ValueError` if a receiver's results with this codec would be wrong.

        ``receiver``: ``models`` (it adds changes of models to its model, as FedAvg does),
        ``gradients`` (it takes steps with gradients, and has no momentum), ``sums`` (it takes steps
        with the sum of all updates so far), or ``differences`` (of models; the next one includes
        what this one lacks). ``contextual``: whether it knows the context of the index sets.
        """
        expect_bounds("option receiver of a codec", receiver, {"one_of": RECEIVERS})
        method, gain = self.sparsifier, self.sparsifier.gain_of_momentum
        sums = receiver == "sums"
        wrong = {
            f"sparsifier={method.name} sends changes, and only strategy/optimizer=ef21 of "
            "strategy=sparse_averaging adds up those of nodes: choose topk": method.incremental
            and not sums,
            "strategy/optimizer=ef21 adds up changes: give compression=ef21": sums
            and not method.incremental,
            f"sparsifier={method.name} counts each update up to {gain:g} times, as is right for "
            "gradients and a server without momentum: give momentum=0": receiver == "models"
            and gain > 1,
            f"sparsifier={method.name} as it is set sends values further from a difference than 0 "
            "is, so errors grow: choose topk": receiver == "differences" and not method.contracts,
            f"coder={self.coder.name} is for strategy=sparse_averaging and asynchronous "
            "strategies, where both ends know what was sent: choose coder=entropy": not contextual
            and self.coder.contextual,
        }
        for why in (why for why, found in wrong.items() if found):
            raise ValueError(why)

    def finer(self, bits: int) -> Self:
        """Return this codec with up to ``bits`` bits per value more, if the quantizer has bits."""
        quantizer = self.quantizer.finer(bits)
        return self if quantizer == self.quantizer else replace(self, quantizer=quantizer)

    @cached_property
    def exact(self) -> bool:
        """Whether the codec is lossless: a decoded update equals the encoded one, bit for bit."""
        return self.quantizer.exact and not self.sparsifier.selects and not self.feedback

    @property
    def keeps(self) -> bool:
        """Whether a node stores unsent values; then `restore` can add a lost payload to them."""
        return self.feedback or self.sparsifier.residual_key is not None

    @property
    def _unsent(self) -> str:
        """Name of the array in ``memory`` that holds the residual, or else the codec's error."""
        return self.sparsifier.residual_key or _ERROR

    @property
    def sends_all(self) -> bool:
        """Whether what one payload lacks is sent by a later one; `exact_names` are left aside."""
        lossless = self.feedback or self.quantizer.exact
        kept = self.keeps and self.residual_decay == self.sparsifier.gain_of_momentum == 1
        return self.exact or (kept and lossless)

    def memory_bytes(self, layout: Layout) -> int:
        """Return the bytes that a node stores between two updates."""
        trained = self._separation(layout).layout
        own = 4 * trained.size if self.feedback and self.sparsifier.residual_key is None else 0
        return own + self.sparsifier.memory_bytes(trained) + self.quantizer.memory_bytes(trained)

    @quiet
    def encode(
        self,
        update: Vector,
        layout: Layout,
        *,
        memory: Memory | None = None,
        seed: int = 0,
        names: bool = False,
        loss: float | None = None,
        workers: int = 0,
        number: int = 0,
        as_before: bool = False,
        own: Sequence[NativeTensor] = (),
        context: SharedContext | None = None,
        density_factor: float = 1.0,
        common: Sequence[int] | None = None,
    ) -> bytes:
        """Encode an update, (layout.size,) contiguous float32, and tensors of other dtypes.

        ``memory``: the arrays stored on this node, changed in place; without a memory, every update
        is treated as the first.
        ``seed``: for methods that use random numbers; the global random state is never used.
        ``names``: add the tensors' names and dtypes, for a receiver without a layout.
        ``loss``: the loss on the data that made the update, for methods that depend on it.
        ``workers``: how many updates the server averages in its next step, for methods whose
        clipping depends on this number (0: unknown).
        ``number``: the number of the update from 1 (0: unknown), for methods with a warm-up.
        ``as_before``: True if the receiver has decoded the last payload that was encoded with this
        memory, and has stored its indices. If the indices of this payload are the same, they are
        not sent again.
        ``own``: the tensors that are sent in their own dtype, sorted by position in the model.
        ``context``: what the receiver knows too, for a coder that uses it; None: nothing. With such
        a coder and without ``names`` the payload has the short form, which holds no shapes.
        ``density_factor``: multiplies the density of a sparsifier that is ``scalable``.
        ``common``: what all nodes have in common, for a quantizer whose levels are summed.

        Raises ValueError for a vector or memory that does not fit the layout. Raises PayloadError
        for NaN or infinity in the update; then the memory is unchanged. Raises PayloadError if the
        sum of update and residual exceeds float32; then the memory is emptied.
        """
        _check_update(update, layout)
        raw = natives_bytes(own) if own else None
        memory = {} if memory is None else memory
        inner = self._separation(layout)
        trained = inner.gather(update)
        if self.residual_decay != 1 and self._unsent in memory:
            memory[self._unsent] *= np.float32(self.residual_decay)
        step = StepContext(
            inner.layout, memory, (seed, 0), loss, workers, number, density_factor, common
        )
        given = self._given(trained, memory)
        indices, values, same = self.sparsifier.select(given, step)
        if self.sparsifier.id >= PRIVATE and indices is not None:
            self.sparsifier.expect_increasing(indices, len(given))
        if values is not trained and not is_finite(values):
            memory.clear()
            raise PayloadError("update and what this node keeps unsent add up beyond float32")
        payload, decoded = self._payload(
            layout,
            inner,
            indices,
            values,
            inner.gather_exact(update),
            replace(step, seed=(seed, 1)),
            context,
            names=names,
            repeated=same and as_before,
            own=own,
            raw=raw,
        )
        if decoded is not None:
            if self.sparsifier.residual_key is None:
                subtract_at(given, indices, decoded)
            else:
                add_at(memory[self._unsent], indices, values - decoded)
        return payload

    @quiet
    def encode_sparse(
        self,
        indices: Indices | None,
        values: Vector,
        layout: Layout,
        *,
        memory: Memory | None = None,
        seed: int = 0,
        number: int = 0,
        context: SharedContext | None = None,
        common: Sequence[int] | None = None,
    ) -> bytes:
        """Encode a sparse vector: (k,) float32 at strictly increasing indices, zeros elsewhere.

        An example is a mean of sparse updates. If ``indices`` is None, ``values`` is the whole
        vector, (layout.size,). The time depends only on k. But a codec that selects entries, or
        uses error feedback, encodes the whole vector.
        ``memory``, ``seed``, ``number``, ``context``, ``common`` and the errors are as in `encode`.
        """
        if indices is None or self.sparsifier.selects or self.feedback:
            dense = Update(layout, indices, values, type(self.sparsifier)).dense()
            more: dict[str, Any] = {"number": number, "context": context, "common": common}
            return self.encode(dense, layout, memory=memory, seed=seed, **more)
        memory = {} if memory is None else memory
        if not is_finite(values):
            raise PayloadError("the vector to send holds NaN or infinity")
        inner = self._separation(layout)
        indices, values, exact = inner.narrow(indices, values)
        step = StepContext(inner.layout, memory, (seed, 1), number=number, common=common)
        return self._payload(layout, inner, indices, values, exact, step, context)[0]

    def restore(
        self, payload: Buffer, layout: Layout, memory: Memory, context: SharedContext | None = None
    ) -> None:
        """Add the values of a payload back to the residual, because it was lost or not applied.

        Afterwards the residual is the same as if these values had never been sent. Exact tensors,
        such as running statistics, are not restored, because they are values and not changes.
        ``context``: the one with which the payload was encoded. Raises PayloadError for a payload
        that is not the last one encoded with this memory.
        """
        sent = memory.get("sent")
        last = None if sent is None else np.flatnonzero(sent).astype(np.uint32)
        indices, values = decode_trained(payload, layout, last, context)
        size = self._separation(layout).layout.size
        add_at(get_or_zeros(memory, self._unsent, size, np.float32), indices, values)

    def exact_tensors(self, layout: Layout) -> tuple[int, ...]:
        """Return the positions of the tensors that this codec sends without loss."""
        return self._separation(layout).exact

    def _separation(self, layout: Layout) -> Separation:
        """Return the division of a layout into trained tensors, and exact ones.

        Exact tensors skip the sparsifier and the quantizer.
        """
        if self.exact and not self.exact_names:
            return separate(layout, ())  # nothing is lossy, and there is no residual
        expect_matches(layout, self.exact_names)
        return separate(layout, exact_tensors(layout, self.exact_names))

    def _given(self, update: Vector, memory: Memory) -> Vector:
        """Return the update plus the error of earlier updates, if the codec stores this error."""
        if not self.feedback or self.sparsifier.residual_key is not None:
            return update
        given: Vector = get_or_zeros(memory, _ERROR, len(update), np.float32)
        given += update
        return given

    @cached_property
    def ids(self) -> bytes:
        """The ids of sparsifier, quantizer and coder in a payload, one byte each."""
        return self._ids(self.quantizer)

    def _ids(self, quantizer: Quantizer) -> bytes:
        return bytes((self.sparsifier.id, quantizer.id, self.coder.id))

    def made(self, payload: Buffer) -> bool:
        """Return whether a payload names the same three methods as this codec.

        With ``exact_steps`` its quantizer may also be float32. A payload does not hold the options
        of its methods.
        """
        found = ids_of(payload)
        return found == self.ids or (self.exact_steps > 0 and found == self._ids(Float32()))

    def _payload(
        self,
        layout: Layout,
        inner: Separation,
        indices: Indices | None,
        values: Vector,
        exact: Vector,
        step: StepContext,
        context: SharedContext | None,
        *,
        names: bool = False,
        repeated: bool = False,
        own: Sequence[NativeTensor] = (),
        raw: Array | None = None,
    ) -> tuple[bytes, Vector | None]:
        """Return the payload of selected entries, and the decoded values for error feedback.

        ``inner``: the division of ``layout`` into exact and trained tensors. ``indices``: those of
        the trained entries, whose values are ``values``; ``repeated``: True to send their digest
        instead. ``exact``: the exact tensors' values. ``step``: for the quantizer. ``own``,
        ``raw``: the tensors in their own dtype, and their bytes.
        """
        quantizer = Float32() if 0 < step.number <= self.exact_steps else self.quantizer
        parts = parts_of(indices, inner.layout)
        streams = quantizer.encode(values, parts, step)
        # A receiver that knows the context has the layout, so the short form is enough for it.
        shared = context if self.coder.contextual and not names else None
        head = tables(layout, self._ids(quantizer), names, inner.exact, short=shared is not None)
        head = with_native_table(head + _selected(indices, repeated), own)
        listed: list[tuple[Any, Spec]] = []
        if inner.exact:
            listed.append((exact, exact_spec(len(exact))))
        if indices is not None and not repeated:
            classes = None if shared is None else shared.of(layout, inner.exact)
            listed.append((indices, index_spec(len(indices), inner.layout.size, classes)))
        listed += zip(streams, quantizer.specs(parts), strict=True)
        if raw is not None:
            listed.append((raw, Spec(Kind.BYTES, raw.dtype, raw.size)))
        params = quantizer.params()
        head += b"".join(map(varint, (len(params), *params)))
        bodies = [self._coded(array, spec) for array, spec in listed]
        decoded = quantizer.decode(streams, parts) if self.feedback else None
        return assemble(head, bodies, layout, shared), decoded

    def _coded(self, array: Any, spec: Spec) -> Body:
        """Return a stream as a payload holds it: coded, if this makes it smaller."""
        stream = array.astype(spec.dtype, copy=False)
        coded = self.coder.encode(stream, spec) if spec.nbytes >= _SMALL else None
        if coded is None or len(coded) >= spec.nbytes:
            return Body(memoryview(stream.data), False)
        return Body(memoryview(coded), True)


def _selected(indices: Indices | None, repeated: bool) -> bytes:
    if indices is None:
        return bytes((ALL,))
    if repeated:
        check = digest(indices).to_bytes(4, "little")
        return bytes((REPEATED,)) + varint(len(indices)) + check
    return bytes((INDICES,)) + varint(len(indices))


def _check_update(update: Vector, layout: Layout) -> None:
    if (
        not isinstance(update, np.ndarray)
        or update.dtype != np.float32
        or update.shape != (layout.size,)
        or not update.flags.c_contiguous
    ):
        got = f"{getattr(update, 'dtype', type(update).__name__)} {getattr(update, 'shape', '')}"
        raise ValueError(f"update must be {layout.size} contiguous float32 entries, not {got}")
    if not is_finite(update):
        first = int(np.argmin(np.isfinite(update)))
        tensor = int(np.searchsorted(layout.offsets, first, side="right")) - 1
        what = "NaN" if np.isnan(update[first]) else "infinity"
        raise PayloadError(
            f"update holds {what} in {layout.names[tensor]}: {DIVERGED}; "
            "lower the learning rate or clip the gradients"
        )
