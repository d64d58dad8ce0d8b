"""From an update to one self-describing payload. See docs/payload.md."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compression.envelope import ALL, INDICES, NAMED, REPEATED, digest, seal, tables
from compression.header import varint
from compression.layout import Layout
from compression.payload import decode_update, index_spec, parts_of, quiet
from compression.stages import (
    Array,
    Buffer,
    Coder,
    Indices,
    Memory,
    Parts,
    PayloadError,
    Quantizer,
    Rng,
    Selection,
    Sparsifier,
    Spec,
    Step,
    Vector,
    add_at,
    is_finite,
    remembered,
    subtract_at,
)
from compression.statistics import split

_SMALL = 64  # streams of fewer bytes are left as they are: coding gains nothing
_ERROR = "error"  # the memory of the generic error feedback, float32 (n,)


@dataclass(frozen=True)
class Codec:
    """Three stages: which coordinates, how their values are written, lossless coding.

    ``feedback``: what the quantizer loses is added to the next update (error feedback, Seide et
    al. 2014; Karimireddy et al. 2019): to what the sparsifier keeps anyway, or, if that keeps
    nothing, to a memory of the codec's own, which then also holds what was not selected.
    """

    sparsifier: Sparsifier
    quantizer: Quantizer
    coder: Coder
    feedback: bool = False

    @property
    def keeps(self) -> bool:
        """Whether what is not sent is kept, so that a lost payload can be put back."""
        return self.feedback or self.sparsifier.kept is not None

    def memory_bytes(self, layout: Layout) -> int:
        """Bytes that a node keeps between two updates."""
        inner = split(layout)
        own = 4 * layout.size if self.feedback and self.sparsifier.kept is None else 0
        selecting = self.sparsifier.memory_bytes(inner.layout if inner else layout)
        return own + selecting + self.quantizer.memory_bytes(layout)

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
        as_before: bool = False,
    ) -> bytes:
        """Encode (layout.size,) contiguous float32.

        ``memory``: the arrays kept on this node, changed in place; without, every update is the
        first. ``seed``: for methods that draw; the global random state is never touched.
        ``names``: add the tensors' names and dtypes, for a receiver that has no layout. ``loss``:
        of the data that made the update, for methods that steer by it. ``as_before``: the receiver
        has decoded this memory's last payload and kept its indices, which need no sending again.
        Raises ValueError for a vector or memory that does not fit the layout, PayloadError for NaN
        or infinity: the memory has not seen that update.
        """
        _check_update(update, layout)
        memory = {} if memory is None else memory
        given = self._given(update, memory)
        selection = self._select(given, layout, Step(layout, memory, Rng(seed, 0), loss))
        indices, values, same = selection
        if values is not update and not is_finite(values):
            raise PayloadError(
                "the values to be sent have grown beyond float32: training has diverged"
            )
        parts = parts_of(indices, layout)
        streams = self.quantizer.encode(values, parts, memory, Rng(seed, 1))
        ids = bytes((self.sparsifier.id, self.quantizer.id, self.coder.id, NAMED * bool(names)))
        head = tables(layout, ids) + _selected(indices, same and as_before)
        listed = None if same and as_before else indices
        payload = self._assemble(head, listed, layout.size, streams, parts)
        if self.feedback:
            decoded = self.quantizer.decode(self.quantizer.params(), streams, parts)
            if self.sparsifier.kept is None:
                subtract_at(given, indices, decoded)
            else:
                self._return(indices, values - decoded, layout, memory)
        return payload

    def put_back(self, payload: Buffer, layout: Layout, memory: Memory) -> None:
        """Add to what is kept a payload, this memory's last one, that was not received or applied.

        Then *sent + kept == given* as if it had never been sent. Raises PayloadError for a payload
        that is not this memory's last.
        """
        update = decode_update(payload, layout, before=self._last(layout, memory))
        self._return(update.indices, update.values, layout, memory)

    def _given(self, update: Vector, memory: Memory) -> Vector:
        """Return the update with what the generic feedback has kept of earlier ones."""
        if not self.feedback or self.sparsifier.kept is not None:
            return update
        given: Vector = remembered(memory, _ERROR, len(update), np.float32)
        given += update
        return given

    def _select(self, given: Vector, layout: Layout, step: Step) -> Selection:
        inner = split(layout)
        if inner is None:
            return self.sparsifier.select(given, step)
        selection = self.sparsifier.select(inner.gather(given), step._replace(layout=inner.layout))
        if selection.indices is None:
            return Selection(None, given)
        return inner.widen(selection, given)

    def _assemble(
        self,
        head: bytes,
        indices: Indices | None,
        size: int,
        streams: Sequence[Array],
        parts: Parts,
    ) -> bytes:
        params = self.quantizer.params()
        specs: tuple[Spec, ...] = self.quantizer.specs(params, parts)
        if indices is not None:
            spec = index_spec(len(indices), size)
            specs, streams = (spec, *specs), (indices.astype(spec.dtype, copy=False), *streams)
        numbers = [len(params), *params, len(specs)]
        bodies: list[Buffer] = []
        for stream, spec in zip(streams, specs, strict=True):
            coded = self.coder.encode(stream, spec) if spec.nbytes >= _SMALL else None
            smaller = coded is not None and len(coded) < spec.nbytes
            body = coded if coded is not None and smaller else stream.data
            numbers.append(memoryview(body).nbytes << 1 | smaller)
            bodies.append(body)
        return seal(head + b"".join(map(varint, numbers)), bodies)

    def _return(
        self, indices: Indices | None, values: Vector, layout: Layout, memory: Memory
    ) -> None:
        """Add values to what is kept, wherever that is; statistics are not: they are no sums."""
        inner = split(layout)
        if self.sparsifier.kept is None:
            add_at(remembered(memory, _ERROR, layout.size, np.float32), indices, values)
        elif indices is None or inner is None:
            self.sparsifier.put_back(indices, values, memory)
        else:
            self.sparsifier.put_back(*inner.narrow(indices, values), memory)

    def _last(self, layout: Layout, memory: Memory) -> Indices | None:
        """Return the indices sent last by a sparsifier that may repeat them."""
        if "sent" not in memory:
            return None
        indices = np.flatnonzero(memory["sent"]).astype(np.uint32)
        inner = split(layout)
        return indices if inner is None else inner.widen_indices(indices)


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
            f"update holds {what} in {layout.names[tensor]}: training has diverged; "
            "lower the learning rate or clip the gradients"
        )
