import numpy as np
from flwr.app import Array

from compression.flower import FlatArray, layout_of, to_arrays, to_vector
from tests.compression.flower.federation import initial


def test_arrays_to_vector_and_back():
    arrays = initial()
    arrays["count"] = Array(np.array(7, np.int64))  # like BatchNorm's num_batches_tracked
    arrays["double"] = Array(np.array([0.5, 2.0]))
    back = to_arrays(to_vector(arrays), layout_of(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name].numpy(), array.numpy())
        assert back[name].dtype == array.dtype


def test_a_flat_array_is_an_array():
    vector = np.arange(5, dtype=np.float32)
    flat, plain = FlatArray(vector), Array(vector)
    assert flat.data == plain.data
    assert flat.deflate() == plain.deflate()
    assert (flat.dtype, flat.shape, flat.stype) == (plain.dtype, plain.shape, plain.stype)
    flat.numpy()[0] = 9  # a fresh array, as in Flower
    assert vector[0] == 0
