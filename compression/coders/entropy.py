"""Lossless coding that depends on the kind of a stream: indices, quantized levels or floats."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from pcodec import ChunkConfig, DeltaSpec, ModeSpec, PagingSpec
from pcodec.wrapped import FileCompressor, FileDecompressor

from ..base import Array, Coder, Kind, PayloadError, Spec
from ..registry import register
from .zstd import Zstd, planes, zstd

# Tags, the first byte of a coded stream. Rice codes with b low bits have the tag 32 + b.
_ZSTD, _PCODEC, _BITMAP, _RICE = 0, 1, 2, 32

# For up to _FEW indices, Rice codes are tried too. Reason: pcodec's tables are 2 to 4 % of the
# coded size of 2048 indices, and 19 % of the coded size of 64 indices.
_FEW = 2048
_PIECE = 1 << 16  # entries in each of the two samples of a longer stream
_WORTH = 0.97  # pcodec takes 5 to 15 times zstd's time, so it must save 3 %
_BLOCK = 1 << 18  # bytes that pcodec codes with one table
_BITS = 1 << 14  # bits of a bitmap that are unpacked at a time
# float16 is not in this list, because pcodec is not better than zstd with one table per byte plane.
_PCODEC_NAMES = {"|u1": "u8", "|i1": "i8", "<u2": "u16", "<u4": "u32", "<f4": "f32"}
# The first byte of pcodec's tables holds the mode "classic" (low half) and deltas off or on (high
# half). The encoder never writes another mode. The decoder refuses other modes, because with one of
# them 43 bytes make pcodec request 128 MB.
_PCODEC_MODES = (b"\x00", b"\x10")
# zstd's level 1 uses matches of 5 bytes in short streams. Among quantized levels such matches are
# accidental, and make the result up to 5 % larger.
_FAST: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.min_match: 7,
}
# If zstd codes a stream to less than 85 % of its order-0 entropy, the stream has many repetitions.
# Then level 6 may save another 5 % in 5 times the time. Example: gradients on images in which some
# pixels are always black.
_REPEATS = 0.85
_DEEP: dict[int, int] = {zstd.CompressionParameter.compression_level: 6}


@register("coder")
@dataclass(frozen=True)
class Entropy(Coder):
    """Codes a stream (an array of a payload) by zstd, pcodec 1.1, a bitmap or Rice codes.

    A tag byte before the coded stream says which method was used. The kind of the stream determines
    which methods are tried.

    `papers.benchmarks.payload` measures the sizes (n: all entries; k: selected entries; H: binary
    entropy). Uniform sets of at least 100 indices need at most 1.024 n H(k/n) bits from a million
    entries on, 1.04 n H(k/n) with 61,706 entries and 1.09 n H(k/n) with 10,000 (tested). Top-k
    indices of real updates of at least a million entries need 0.35 to 0.76 times n H(k/n) bits.
    Levels need at most 1.006 times their order-0 entropy.
    """

    name: ClassVar[str] = "entropy"
    id: ClassVar[int] = 3

    def encode(self, data: Array, spec: Spec) -> bytes | None:
        """Code a stream; return None for an empty stream."""
        if not data.size:
            return None
        if spec.kind is Kind.INDICES:
            return min(_index_codings(data, spec), key=len)
        if spec.kind is Kind.BYTES or spec.dtype.str not in _PCODEC_NAMES:
            return _zstd(data, spec)
        return _numbers(data, spec)

    @classmethod
    def decode(cls, coded: memoryview, spec: Spec) -> Array:
        """Decode a stream by the method that its tag byte names.

        The function needs at most twice the memory of the stream, plus 128 kB.
        """
        tag, body = (coded[0], coded[1:]) if len(coded) else (-1, coded)
        if tag == _PCODEC and spec.dtype.str in _PCODEC_NAMES:
            return _from_pcodec(body, spec)
        if spec.kind is not Kind.INDICES:
            if tag == _ZSTD:
                return Zstd.decode(body, spec)
        elif tag == _BITMAP and spec.bound <= 8 * spec.nbytes:
            return _from_bitmap(body, spec)
        elif _RICE <= tag < _RICE + 32 and spec.size <= _FEW:
            return _from_rice(body, tag - _RICE, spec)
        raise PayloadError(f"payload holds a stream of the unknown coding {tag}")


def _index_codings(indices: Array, spec: Spec) -> Iterator[bytes]:
    """Yield those codings of an index set that could be the shortest.

    For uniform sets a bitmap is smaller than pcodec from a density of about 1/4 on, and takes a
    fifth of pcodec's time. For clustered sets a bitmap is up to 7 % smaller from a density of 1/10
    on. Below 1/16 a bitmap takes more time than pcodec and is rarely smaller.
    """
    if 16 * spec.size >= spec.bound:
        yield _bitmap(indices, spec.bound)
    if 4 * spec.size < spec.bound:
        yield _pcodec(indices, DeltaSpec.try_consecutive(1))
    if spec.size <= _FEW:
        yield _rice(indices)


def _numbers(data: Array, spec: Spec) -> bytes:
    """Code levels or floats with zstd or pcodec.

    For a long stream, two samples decide which of the two is used. zstd gives fewer bytes for dense
    int8 and dense floats. pcodec gives 10 to 50 % fewer bytes for QSGD and sparse ternary levels.
    It gives 3 to 15 % fewer bytes for top-k float32 of small models and for bfloat16 of any model.
    """
    pieces = [data]
    if data.size > 2 * _PIECE:
        starts = (data.size // 4 - _PIECE // 2, data.size * 3 // 4 - _PIECE // 2)
        pieces = [data[start : start + _PIECE] for start in starts]
    plain = [_zstd(piece, spec) for piece in pieces]
    packed = [_pcodec(piece, DeltaSpec.no_op()) for piece in pieces if data.itemsize > 1]
    expected, size = sum(map(len, packed)) if packed else _order_0(pieces), sum(map(len, plain))
    if expected < _WORTH * size:
        return packed[0] if len(packed) == 1 else _pcodec(data, DeltaSpec.no_op())
    if not packed and size < _REPEATS * expected:
        deep = sum(len(_frame(_ZSTD, [piece], _DEEP)) for piece in pieces)
        if deep < _WORTH * size:
            return _frame(_ZSTD, [data], _DEEP)
    return plain[0] if len(plain) == 1 else _zstd(data, spec)


def _order_0(pieces: list[Array]) -> float:
    """Estimate, in a twentieth of its time, how many bytes pcodec needs for 1-byte values."""
    size = 0.0
    for piece in pieces:
        counts = np.bincount(piece.view(np.uint8))
        counts = counts[counts > 0]
        size += float(counts @ np.log2(piece.size / counts)) / 8
        size += 3 * len(counts) / len(pieces)  # one table for all pieces: 3 bytes per level
    return size


def _zstd(data: Array, spec: Spec) -> bytes:
    """Code floats by byte planes, as `Zstd` does, but with a separate table for each plane.

    With one table for all planes of up to 128 kB, float16 streams would be 10 % larger.
    """
    rows = list(planes(data).reshape(data.itemsize, -1)) if spec.kind is Kind.FLOATS else [data]
    return _frame(_ZSTD, rows)


def _frame(tag: int, rows: list[Array], options: dict[int, int] = _FAST) -> bytes:
    compressor = zstd.ZstdCompressor(options=options)
    # With a pledged size the frame declares the smallest window that it needs.
    compressor.set_pledged_input_size(sum([row.nbytes for row in rows]))
    parts = [compressor.compress(row.data, compressor.FLUSH_BLOCK) for row in rows]
    return b"".join((bytes((tag,)), *parts, compressor.flush()))


def _pcodec(data: Array, delta: DeltaSpec) -> bytes:
    """Code a stream with pcodec, block by block, and join the coded blocks without lengths."""
    step = _BLOCK // data.itemsize
    # Bytes have at most 256 bins at any level. Level 12 finds rare bins that level 8 does not find.
    # For ternary levels of which 1 % are not 0, this saves 30 %. For other types level 12 saves
    # 0.3 %, and takes 2 to 20 times as long.
    config = ChunkConfig(
        compression_level=12 if data.itemsize == 1 else 8,
        mode_spec=ModeSpec.classic(),
        delta_spec=delta,
        paging_spec=PagingSpec.equal_pages_up_to(step),
        enable_8_bit=True,
    )
    compressor = FileCompressor()
    parts = [bytes((_PCODEC,)), compressor.write_header()]
    for start in range(0, data.size, step):
        chunk = compressor.chunk_compressor(data[start : start + step], config)
        parts += chunk.write_meta(), chunk.write_page(0)
    return b"".join(parts)


def _from_pcodec(coded: memoryview, spec: Spec) -> Array:
    data = np.empty(spec.size, dtype=spec.dtype)
    step = _BLOCK // spec.dtype.itemsize

    def ahead() -> bytes:
        return bytes(coded[at : at + 2 * _BLOCK])  # always more than one block with its tables

    try:
        decompressor, at = FileDecompressor.new(bytes(coded[:16]))
        for start in range(0, spec.size, step):
            block = data[start : start + step]
            if coded[at : at + 1] not in _PCODEC_MODES:
                raise PayloadError("payload holds a pcodec stream in a mode that is never used")
            chunk, used = decompressor.chunk_decompressor(ahead(), _PCODEC_NAMES[spec.dtype.str])
            at += used
            progress, used = chunk.read_page_into(ahead(), block.size, block)
            at += used
            if progress.n_processed != block.size:
                raise PayloadError("payload holds a broken pcodec stream")
    except RuntimeError:
        raise PayloadError("payload holds a broken pcodec stream") from None
    if at != len(coded):
        raise PayloadError("payload holds a pcodec stream of another length")
    return cast(Array, data)


def _bitmap(indices: Array, bound: int) -> bytes:
    chosen = np.zeros(bound, dtype=np.bool_)
    chosen[indices] = True
    bits: Array = np.packbits(chosen)
    return _frame(_BITMAP, [bits])


def _from_bitmap(coded: memoryview, spec: Spec) -> Array:
    as_bytes = Spec(Kind.BYTES, np.dtype("u1"), -(-spec.bound // 8))
    packed = Zstd.decode(coded, as_bytes).view(np.uint8)
    indices = np.empty(spec.size, dtype=spec.dtype)
    count = 0
    for start in range(0, spec.bound, _BITS):  # in pieces: flatnonzero needs 8 bytes per index
        bits = np.unpackbits(packed[start // 8 : (start + _BITS) // 8])
        found = np.flatnonzero(bits.view(np.bool_))  # with bool it is 3 times as fast
        found += start
        if count + len(found) > spec.size:
            break
        indices[count : count + len(found)] = found
        count += len(found)
    else:
        if count == spec.size and (not count or int(indices[-1]) < spec.bound):
            return indices
    raise PayloadError(f"payload holds a bitmap of other than {spec.size} indices")


def _rice(indices: Array) -> bytes:
    """Rice-code the gaps between indices: all gaps' low bits, then each gap's high part in unary.

    A high part h is written as h zeros and a one. Three numbers of low bits, chosen by the mean
    gap, are compared, and the best is used.
    """
    gaps = indices.astype(np.int64)
    gaps[1:] -= gaps[:-1] + 1
    about = int(gaps.mean()).bit_length()
    choices = range(max(0, about - 2), about + 1)
    low = min(choices, key=lambda low: low * len(gaps) + int((gaps >> low).sum()))
    ends = np.cumsum((gaps >> low) + 1) - 1
    rest = np.zeros(ends[-1] + 1, dtype=np.uint8)
    rest[ends] = 1
    lows = (gaps[:, None] >> np.arange(low)[::-1] & 1).astype(np.uint8)
    return bytes((_RICE + low,)) + np.packbits(lows).tobytes() + np.packbits(rest).tobytes()


def _from_rice(coded: memoryview, low: int, spec: Spec) -> Array:
    cut = -(-spec.size * low // 8)
    rest = np.unpackbits(np.frombuffer(coded[cut : cut + spec.nbytes], dtype=np.uint8))
    ends = np.flatnonzero(rest) if np.count_nonzero(rest) == spec.size else rest[:0]
    padding = (1 << 8 * cut - spec.size * low) - 1 if cut else 0  # mask of the last byte's padding
    spilled = bool(padding and len(coded) >= cut and coded[cut - 1] & padding)
    if len(coded) - cut > spec.nbytes or not len(ends) or len(rest) - ends[-1] > 8 or spilled:
        raise PayloadError(f"payload holds Rice codes of other than {spec.size} indices")
    gaps = np.diff(ends, prepend=-1) - 1
    lows = np.unpackbits(np.frombuffer(coded[:cut], dtype=np.uint8), count=spec.size * low)
    for bits in lows.reshape(spec.size, low).T:
        gaps = gaps << 1 | bits
    indices = np.cumsum(gaps + 1) - 1
    if indices[-1] >= spec.bound:
        raise PayloadError("payload holds Rice codes of indices beyond the model")
    return cast(Array, indices.astype(spec.dtype))
