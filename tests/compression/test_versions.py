"""Stored payloads of earlier versions still decode to the same values."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from edgewire.compression.decoder import decode, decode_update, describe, parts_of
from edgewire.compression.make import make_codec
from tests.compression.quantizers.bounds import error_bound

STORE = runpy.run_path(str(Path(__file__).parent / "make_payloads.py"))
PRODUCTS = ("powersgd", "drive", "eden")
FILES = sorted(STORE["FOLDER"].glob("*.ewp"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_payloads_decode(path):
    vector, layout = decode(path.read_bytes())
    expected = np.load(path.with_suffix(".npy"))
    # Matrix products may differ in their last bits between machines.
    near = 1e-5 * np.abs(expected).max() if path.stem.split("-")[2] in PRODUCTS else 0
    np.testing.assert_allclose(vector, expected.astype(np.float32), rtol=0, atol=near)
    assert layout == STORE["LAYOUT"]
    version, *combination = path.stem.split("-", 1)
    about = describe(path.read_bytes())
    assert version == f"v{about.version}"
    assert combination == [f"{about.sparsifier}-{about.quantizer}-{about.coder}"]


def test_a_stored_payload_of_many_indices():
    values, layout, _ = STORE["many"]()
    payload = STORE["MANY"].read_bytes()
    assert len(payload) < 2 * np.count_nonzero(values)
    np.testing.assert_array_equal(decode(payload, layout)[0], values)


def test_a_stored_payload_of_tensors_in_their_own_type():
    update = decode_update(STORE["OWN"].read_bytes())
    assert update.layout == STORE["LAYOUT"]
    for expected, found in zip(STORE["own"](), update.own, strict=True):
        assert found[:2] == expected[:2]
        assert found.array.dtype == expected.array.dtype
        np.testing.assert_array_equal(found.array, expected.array)


def test_every_combination_is_stored():
    paths = [path for each in STORE["combinations"]() for path in STORE["paths"](each)]
    absent = [path.name for path in paths if not path.exists()]
    assert not absent, "run tests/compression/make_payloads.py"


@pytest.mark.parametrize("quantizer", ["float32", "float16", "int8"])
def test_stored_values_equal_the_update(quantizer):
    codec = make_codec("dense", quantizer, "raw")
    update, layout = STORE["update"](), STORE["LAYOUT"]
    payload_path, values_path = STORE["paths"](("dense", quantizer, "raw"))
    error = np.abs(np.load(values_path).astype(np.float64) - update)
    assert (error <= error_bound(codec.quantizer, update, parts_of(None, layout))).all()
    # Uncoded bytes depend on the format only.
    assert codec.encode(update, layout, seed=1, names=True) == payload_path.read_bytes()
