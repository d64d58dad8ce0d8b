"""The server stores the indices of applied updates, within a limit of bytes."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import acks
from edgewire.compression.flower.acks import OTHER_METHOD, AckTracker, AckTrackerState, Pending
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec

BUDGET = 40


def resolve(tracker, state, node, sequence, size):
    state.pending[node] = Pending(sequence, np.arange(size, dtype=np.uint32))
    tracker.resolve(node, applied=True)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 1, 4, 5, 9, 10, 12]), st.booleans()))
)
def test_the_indices_of_the_newest_updates_are_stored_up_to_the_limit(calls):
    """Each call is a node, the number of indices in its update, and whether it leaves later."""
    state, expected = AckTrackerState(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acks, "INDEX_BUDGET", BUDGET)
        tracker = AckTracker(state)
        for sequence, (node, size, leaves) in enumerate(calls, 1):
            resolve(tracker, state, node, sequence, size)
            expected.pop(node, None)
            expected[node] = size
            while 4 * sum(expected.values()) > BUDGET and len(expected) > 1:
                del expected[next(iter(expected))]
            assert {n: len(each) for n, each in state.indices.items()} == expected
            assert tracker.last_applied(node) == sequence
            if leaves:
                tracker.forget([node])
                expected.pop(node, None)
                assert tracker.last_applied(node) == 0
            if sequence % 3 == 0:
                tracker = AckTracker(state)  # a server resumes


def test_a_gibibyte_of_indices_is_stored():
    assert acks.INDEX_BUDGET == 1 << 30


def test_a_payload_of_another_method_is_refused_and_nothing_is_pending():
    layout = Layout(("w",), ((3,),), ("float32",))
    payload = make_codec(quantizer="int8").encode(np.ones(3, np.float32), layout)
    for uplink, refused in ((make_codec(), True), (make_codec(quantizer="int8"), False)):
        tracker = AckTracker(uplink=uplink)
        with pytest.raises(PayloadError, match=OTHER_METHOD) if refused else nullcontext():
            tracker.decode(1, payload, 1, layout)
        assert tracker.pending == ([] if refused else [1])
