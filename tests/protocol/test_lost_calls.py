"""A ServerApp's calls are repeated after each error of the transport, for a bounded time."""

from types import SimpleNamespace

import httpx
import pytest
from flwr.supercore.retry import make_simple_http_retry_invoker
from hypothesis import given
from hypothesis import strategies as st

from edgewire.protocol.lost_calls import PATIENCE, patient

TEXTS = ["", "_ssl.c:989: The handshake operation timed out", "certificate verify failed", "TLS"]
SLOWEST = 60.0  # seconds until a call fails


def kinds(of=httpx.TransportError):
    """Return a class of errors and all that are derived from it."""
    return [of, *(each for below in of.__subclasses__() for each in kinds(below))]


def status(code):
    """Return the error of a response with this HTTP status."""
    request = httpx.Request("POST", "http://a")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(code))


LOST = st.builds(lambda kind, text: kind(text), st.sampled_from(kinds()), st.sampled_from(TEXTS))
BUSY = st.sampled_from([502, 503, 504]).map(status)


@given(
    failures=st.lists(st.tuples(LOST | BUSY, st.floats(0, SLOWEST)), max_size=20),
    seconds=st.sampled_from([PATIENCE, None]),
    last=st.sampled_from([None, 404, 500]),
)
def test_every_lost_call_is_repeated_for_so_long(failures, seconds, last):
    """`last`: the HTTP status of the first answer; None: a success."""
    clock, starts = SimpleNamespace(now=0.0), []

    def sleep(pause):
        clock.now += pause

    def call():
        starts.append(clock.now)
        if len(starts) > len(failures):
            if last is None:
                return "answer"
            raise status(last)
        error, took = failures[len(starts) - 1]
        clock.now += took
        raise error

    invoker = patient(make_simple_http_retry_invoker(), seconds)
    invoker.wait_function = sleep
    with pytest.MonkeyPatch.context() as patch:
        steady = SimpleNamespace(monotonic=lambda: clock.now)
        patch.setattr("flwr.supercore.retry.retry_invoker.time", steady)
        try:
            found = invoker.invoke(call)
        except httpx.HTTPError as error:
            found = error
    if len(starts) > len(failures):
        assert found == "answer" if last is None else found.response.status_code == last
    else:
        assert found is failures[len(starts) - 1][0]
        assert seconds is not None
        assert starts[-1] >= seconds
    assert seconds is None or all(start < seconds for start in starts[:-1])
