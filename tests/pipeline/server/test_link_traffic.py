"""A cut model's segments report the seconds that they worked; impossible values do not count."""

import numpy as np
import pytest
from flwr.app import Array

from edgewire.compression.make import make_codec
from edgewire.pipeline.messages import TargetTensor, pack, pack_targets
from edgewire.pipeline.server.link_traffic import Links, plain_bytes


@pytest.mark.parametrize("bad", [1.7e308, float("inf"), float("nan"), -1.0, 5, True, "1", None])
def test_impossible_seconds_are_not_counted(bad):
    links = Links()
    links.begin(2)
    links.worked(0, 0.5, 1)
    for _ in range(20):
        links.worked(0, bad, 1)
    assert links.as_dict()["seconds_by_segment"] == [0.5, 0.0]


@pytest.mark.parametrize(("batches", "shape"), [(1, (4, 3)), (3, (4, 2, 5, 5)), (2, (4,))])
def test_bytes_without_compression_are_those_of_flowers_arrays(batches, shape):
    tensors = [np.ones(shape, np.float32)] * batches
    rows = np.zeros((batches, 4, 7), np.int64)
    payloads = {
        "output": pack(tensors, make_codec(sparsifier="topk", density=0.5)),
        "labels": pack_targets([rows], [TargetTensor((7,))]),
    }
    expected = sum(len(Array(each).data) for each in (*tensors, *rows))
    assert plain_bytes(payloads, [TargetTensor((7,))], (batches, 4)) == expected
