"""Writes a payload of format version 1 for each method that has none; it changes no other file.

Run it once when a method is added: python tests/compression/make_payloads.py
"""

import sys
from itertools import product
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
FOLDER = HERE / "payloads"
sys.path.insert(0, str(HERE.parents[1]))

from edgewire.compression.decoder import decode  # noqa: E402
from edgewire.compression.layout import Layout  # noqa: E402
from edgewire.compression.make import make_codec  # noqa: E402
from edgewire.compression.registry import names  # noqa: E402
from edgewire.compression.wire_header import DTYPES  # noqa: E402
from edgewire.compression.wire_natives import NativeTensor  # noqa: E402

OWN = FOLDER / "own" / "v1-dense-int8-zstd.ewp"
MANY = FOLDER / "many" / "v1-topk-float32-entropy.ewp"
LAYOUT = Layout(
    ("conv.weight", "conv.bias", "steps", "none", "zeros", "fc.weight"),
    ((4, 3, 3, 3), (4,), (), (0, 2), (3, 2), (7, 20)),
    ("float32", "float32", "int64", "float32", "float32", "float16"),
)


def update() -> np.ndarray:
    """Return a float32 update (LAYOUT.size,) from integer arithmetic: equal on every machine."""
    counts = np.arange(LAYOUT.size, dtype=np.int64)
    values = ((counts * counts * 31 + counts * 7) % 61 - 30).astype(np.float32)
    for tensor in range(len(LAYOUT)):
        values[LAYOUT.offsets[tensor] : LAYOUT.offsets[tensor + 1]] *= np.float32(2.0 ** (-tensor))
    values[LAYOUT.offsets[4] : LAYOUT.offsets[5]] = 0
    return values


def combinations() -> list[tuple[str, str, str]]:
    """Return the combinations of methods that a decoder tells apart, with each sparsifier once.

    A payload of the coder `context` needs more than its bytes; test_shared_context.py has a stream.
    """
    coders = [name for name in names("coder") if name != "context"]
    return sorted(
        {
            *product(["dense"], names("quantizer"), coders),
            *product(["topk"], names("quantizer"), ["entropy"]),
            *product(names("sparsifier"), ["float16"], ["entropy", "raw"]),
        }
    )


def options(sparsifier: str) -> dict[str, float]:
    """Return options that select enough entries for every coder."""
    return {"density": 0.25} if sparsifier == "topk" else {}


def many() -> tuple[np.ndarray, Layout, float]:
    """Return an update of 5,000 entries among zeros, its layout, and the share of nonzero entries.

    Many indices are coded differently from few indices.
    """
    counts = np.arange(5000, dtype=np.int64)
    values = np.zeros(100_000, dtype=np.float32)
    values[(counts * counts * 7 + counts * 3) % values.size] = 1 + counts % 5
    layout = Layout(("fc.weight",), ((250, 400),), ("float32",))
    return values, layout, np.count_nonzero(values) / values.size


def own() -> tuple[NativeTensor, ...]:
    """Return a tensor of each NumPy dtype, for places before, among and after LAYOUT's tensors."""
    kinds = [name for name in DTYPES if name != "bfloat16"]
    return tuple(
        NativeTensor(
            2 * i, f"{kind} größe", (np.arange(6).reshape(2, 3) % 2 * (i + 1)).astype(kind)
        )
        for i, kind in enumerate(kinds)
    )


def paths(combination: tuple[str, str, str]) -> tuple[Path, Path]:
    """Return the paths of a combination's payload and of the values that it decodes to."""
    stem = "v1-" + "-".join(combination)
    return FOLDER / f"{stem}.ewp", FOLDER / f"{stem}.npy"


def main() -> None:
    """Write the payload files that do not exist yet."""
    MANY.parent.mkdir(parents=True, exist_ok=True)
    for combination in combinations():
        payload_path, values_path = paths(combination)
        if not payload_path.exists():
            codec = make_codec(*combination, **options(combination[0]))
            payload = codec.encode(update(), LAYOUT, seed=1, names=True)
            payload_path.write_bytes(payload)
            np.save(values_path, decode(payload)[0])
            print(f"{payload_path.name}: {len(payload)} bytes")
    if not MANY.exists():
        values, layout, density = many()
        MANY.write_bytes(make_codec("topk", density=density).encode(values, layout))
    if not OWN.exists():
        OWN.parent.mkdir(parents=True, exist_ok=True)
        codec = make_codec(quantizer="int8", coder="zstd")
        OWN.write_bytes(codec.encode(update(), LAYOUT, names=True, own=own()))


if __name__ == "__main__":
    main()
