"""What a cut model's last node needs for the loss arrives there bit for bit, in few bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.pipeline.messages import TargetTensor, pack_targets, unpack_targets
from edgewire.task.datasets import Data, Split
from edgewire.task.errors import TaskError
from edgewire.task.objectives.end_loss import EndLoss
from edgewire.task.objectives.reconstruction import Reconstruction
from edgewire.task.objectives.regression import Regression
from edgewire.task.tensors import leaves, taken

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.complex64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]
ROWS = 6


@st.composite
def tensors(draw):
    """Return a tensor of `ROWS` samples, of any type and shape, with NaN among floats."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    made = torch.randint(-200, 200, (ROWS, *shape), generator=torch.Generator().manual_seed(1))
    made = made.to(dtype)
    if dtype.is_floating_point and made.numel():
        made.view(-1)[0] = float("nan")
    return made


@st.composite
def structures(draw):
    parts = draw(st.lists(tensors(), max_size=3))
    kind = draw(st.sampled_from(["tuple", "dict", "one"]))
    if kind == "one" and parts:
        return parts[0]
    return {str(n): t for n, t in enumerate(parts)} if kind == "dict" else tuple(parts)


@given(
    targets=structures(), inputs=tensors(), objective=st.sampled_from([Regression, Reconstruction])
)
def test_targets_and_inputs_arrive_bit_for_bit(targets, inputs, objective):
    split = Split(inputs, targets)
    end = EndLoss(objective(), Data(split, split))
    forms = [
        TargetTensor(*each, between)
        for each, between in zip(end.tensors, end.ranges(), strict=True)
    ]
    batch = torch.tensor([4, 1])
    sent = end.sent(taken(targets, batch), taken(inputs, batch))
    assert [tuple(t.shape[1:]) for t in sent] == [form.shape for form in forms]
    if not forms:
        return
    payload = pack_targets([t.numpy()[None] for t in sent], forms)
    arrays = unpack_targets(payload, (1, 2), forms)
    found, truth = end.received([torch.from_numpy(a[0].copy()) for a in arrays])[::-1]
    pairs = [(found, targets), (truth, inputs)] if objective.needs_inputs else [(found, targets)]
    for got, wanted in pairs:
        assert type(got) is type(wanted)
        for one, other in zip(leaves(got), leaves(taken(wanted, batch)), strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert len(payload) < 200 + sum(t.nbytes for t in sent)


@pytest.mark.parametrize("value", [-1, 17, 1 << 40])
def test_integers_that_the_data_set_lacks_are_refused(value):
    split = Split(torch.zeros(4, 3), torch.arange(12).reshape(4, 3) % 17)
    end = EndLoss(Regression(), Data(split, split))
    forms = [
        TargetTensor(*each, between)
        for each, between in zip(end.tensors, end.ranges(), strict=True)
    ]
    assert forms[0].range == (0, 11)
    payload = pack_targets([np.full((1, 4, 3), value)], forms)
    with pytest.raises(PayloadError, match="labels: they must be from 0 to 11"):
        unpack_targets(payload, (1, 4), forms)


def test_a_type_that_cannot_be_sent_is_refused():
    split = Split(torch.zeros(4), torch.zeros(4, dtype=torch.complex128))
    with pytest.raises(TaskError, match="complex128"):
        EndLoss(Regression(), Data(split, split))
