"""The options of a codec that belong to no single stage."""

from itertools import product

import numpy as np
import pytest

from edgewire.compression.decoder import decode_update
from edgewire.compression.make import make_codec
from edgewire.compression.registry import names as methods
from edgewire.compression.wire import ids_of

PAIRS = list(product(methods("sparsifier"), methods("quantizer")))


@pytest.mark.parametrize(("sparsifier", "quantizer"), PAIRS)
def test_the_first_updates_are_sent_without_the_quantizer(sparsifier, quantizer, lenet, update_for):
    """They select the same entries as the codec whose quantizer is float32, with the same bytes."""
    codec = make_codec(sparsifier, quantizer, exact_steps=2)
    without = make_codec(sparsifier, "float32", feedback=codec.feedback)
    plain = make_codec(sparsifier, quantizer)
    memory, other = {}, {}
    for number in (1, 2):
        given = {"seed": number, "loss": 1.0, "number": number}
        payload = codec.encode(update_for(lenet), lenet, memory=memory, **given)
        assert payload == without.encode(update_for(lenet), lenet, memory=other, **given)
        assert codec.made(payload)
        assert plain.made(payload) == (quantizer == "float32")
        if codec.feedback and codec.sparsifier.residual_key is None:
            sent = decode_update(payload, lenet)
            at = slice(None) if sent.indices is None else sent.indices
            assert not memory["error"][at].any()
    for number in (0, 3):
        payload = codec.encode(update_for(lenet), lenet, memory=dict(memory), number=number)
        assert ids_of(payload) == codec.ids
        assert codec.made(payload)


def test_a_sparse_mean_is_sent_without_the_quantizer_too(lenet):
    indices = np.arange(0, lenet.size, 50, dtype=np.uint32)
    values = np.linspace(-1, 1, len(indices), dtype=np.float32)
    codec = make_codec("dense", "int8", exact_steps=1)
    for number, same in ((1, True), (2, False)):
        payload = codec.encode_sparse(indices, values, lenet, number=number)
        made = decode_update(payload, lenet)
        np.testing.assert_array_equal(made.indices, indices)
        assert np.array_equal(made.values, values) == same


def test_steps_below_0_are_refused():
    with pytest.raises(ValueError, match="exact_steps"):
        make_codec(exact_steps=-1)
