"""Payloads of the past still decode, to the same values."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from compression import decode, describe, make_codec

STORE = runpy.run_path(str(Path(__file__).parent / "make_payloads.py"))
FILES = sorted(STORE["FOLDER"].glob("*.ewp"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_payloads_decode(path):
    vector, layout = decode(path.read_bytes())
    expected = np.load(path.with_suffix(".npy"))
    assert vector.tobytes() == expected.astype(np.float32).tobytes()
    assert layout == STORE["LAYOUT"]
    version, *combination = path.stem.split("-", 1)
    about = describe(path.read_bytes())
    assert version == f"v{about.version}"
    assert combination == [f"{about.sparsifier}-{about.quantizer}-{about.coder}"]


@pytest.mark.parametrize("combination", STORE["combinations"](), ids="-".join)
def test_every_combination_is_stored(combination):
    payload_path, values_path = STORE["paths"](combination)
    assert payload_path.exists(), "run tests/compression/make_payloads.py"
    assert values_path.exists()


@pytest.mark.parametrize("quantizer", ["float32", "float16", "int8"])
def test_stored_values_are_the_update(quantizer):
    codec = make_codec("dense", quantizer, "raw")
    update, layout = STORE["update"](), STORE["LAYOUT"]
    payload_path, values_path = STORE["paths"](("dense", quantizer, "raw"))
    error = np.abs(np.load(values_path).astype(np.float64) - update)
    assert (error <= codec.quantizer.error_bound(update, layout.offsets)).all()
    # Uncoded bytes depend on nothing but the format.
    assert codec.encode(update, layout, seed=1, names=True) == payload_path.read_bytes()
