"""A call to a SuperLink whose answer is lost is repeated; a SuperLink that has ended is not."""

from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.engines.superlink_client import PATIENCE, REPEATED

SLOWEST = 40.0  # seconds until a call fails
LOST = [httpx.ReadTimeout("slow"), httpx.ReadError("cut"), httpx.RemoteProtocolError("no answer")]
REFUSED = httpx.ConnectError("refused")
REFUSED.__cause__ = ConnectionRefusedError()


@given(
    st.lists(
        st.tuples(st.sampled_from([*LOST, *LOST, REFUSED]), st.floats(0, SLOWEST)), max_size=30
    )
)
def test_a_lost_call_is_repeated_for_two_minutes_unless_nothing_listens(failures):
    """Each failure comes after some seconds of waiting for the answer."""
    clock, starts = SimpleNamespace(now=0.0), []

    def sleep(seconds):
        clock.now += seconds

    def call():
        starts.append(clock.now)
        if len(starts) > len(failures):
            return "answer"
        error, seconds = failures[len(starts) - 1]
        clock.now += seconds
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "flwr.supercore.retry.retry_invoker.time",
            SimpleNamespace(monotonic=lambda: clock.now),
        )
        patch.setattr(REPEATED, "wait_function", sleep)
        try:
            found = REPEATED.invoke(call)
        except httpx.TransportError as error:
            found = error
    gone = found is REFUSED or (found in LOST and starts[-1] >= PATIENCE)
    assert gone or (found == "answer" and len(starts) == len(failures) + 1)
    before = [error for error, _ in failures[: len(starts) - 1]]
    assert REFUSED not in before
    assert all(start < PATIENCE for start in starts[:-1])
    assert starts[-1] <= PATIENCE + SLOWEST + 10
