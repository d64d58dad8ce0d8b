"""A layout holds the names, shapes and dtypes of a model's tensors."""

import pickle

import numpy as np
import pytest

from edgewire.compression.layout import Layout


def test_offsets_follow_the_shapes():
    layout = Layout(("a", "b", "c", "d"), ((2, 3), (), (0, 5), (4,)), ("float32",) * 4)
    assert layout.offsets.tolist() == [0, 6, 7, 7, 11]
    assert layout.offsets.dtype == np.int64
    assert (layout.size, len(layout)) == (11, 4)


def test_an_empty_layout_is_a_layout():
    layout = Layout((), (), ())
    assert (layout.size, len(layout), layout.offsets.tolist()) == (0, 0, [0])
    assert layout


def test_pickles_carry_no_hash():
    layout = Layout(("a",), ((3,),), ("float32",))
    hash(layout), layout.offsets
    copy = pickle.loads(pickle.dumps(layout))
    assert copy == layout
    assert "_hash" not in vars(copy)


@pytest.mark.parametrize(
    ("names", "shapes", "dtypes"),
    [
        (("a", "b"), ((3,),), ("float32",)),
        (("a",), ((3,),), ()),
        (("a",), ((-3,),), ("float32",)),
    ],
)
def test_nonsense_is_refused(names, shapes, dtypes):
    with pytest.raises(ValueError, match=r"layout needs as many|negative dimension"):
        Layout(names, shapes, dtypes)
