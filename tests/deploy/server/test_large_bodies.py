"""Large bodies of requests and responses do not block the server's event loop."""

import asyncio
import gc
import threading
import time
import tracemalloc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.deploy.server.large_bodies import PIECE, WORKERS, LargeBodies, LargeResponse
from tests.deploy.loaded import loaded

SIZES = st.sampled_from([0, 1, 100, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7])


@given(st.lists(SIZES, max_size=6))
def test_a_response_has_its_parts_and_lets_others_run_between_its_pieces(sizes):
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    events, turns = [], []

    async def send(event):
        events.append((event, len(turns)))

    async def other():
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    async def main():
        task = asyncio.create_task(other())
        response = LargeResponse(parts, media_type="a/b", headers={"x": "y"})
        await response({"type": "http"}, None, send)
        task.cancel()

    asyncio.run(main())
    (head, _), *body = events
    headers = dict(head["headers"])
    assert headers[b"content-length"] == str(sum(sizes)).encode()
    assert (headers[b"x"], headers[b"content-type"]) == (b"y", b"a/b")
    assert b"".join(bytes(each["body"]) for each, _ in body) == b"".join(parts)
    assert [each["more_body"] for each, _ in body] == [True] * (len(body) - 1) + [False]
    full = [turn for each, turn in body if len(each["body"]) == PIECE]
    assert max([len(each["body"]) for each, _ in body]) <= PIECE
    assert len(full) == len(set(full))  # another task ran after each of them


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_a_body_is_joined_from_its_pieces(pieces):
    async def given_pieces():
        for each in pieces:
            yield each

    async def main():
        return await LargeBodies().joined(given_pieces())

    assert asyncio.run(main()) == b"".join(pieces)


@pytest.mark.parametrize("piece", [1000, 1 << 18])
def test_a_body_is_in_memory_once_while_it_arrives(piece):
    size = 32 << 20

    async def pieces():
        for _ in range(size // piece):
            yield bytes(piece)

    async def main():
        assert len(await LargeBodies().joined(pieces())) == size // piece * piece

    tracemalloc.start()
    asyncio.run(main())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.25 * size


class Body(bytearray):
    """A body that a test can watch."""


def test_a_refused_body_does_not_wait_for_a_garbage_collection():
    def refuse(body):
        try:
            raise IndexError(len(body))
        except IndexError as error:
            raise ValueError("refused") from error

    async def main():
        body = Body(9)
        there = weakref.ref(body)
        with pytest.raises(ValueError, match="refused"):
            await LargeBodies().work(refuse, body)
        del body
        await asyncio.sleep(0.05)  # the thread has ended the call
        return there()

    gc.disable()
    try:
        assert asyncio.run(main()) is None
    finally:
        gc.enable()


def test_a_few_calls_run_at_a_time_in_threads_and_their_errors_arrive():
    running, most, loop = set(), [], threading.get_ident()

    def call(number):
        running.add(number)
        most.append(len(running))
        assert threading.get_ident() != loop
        running.remove(number)
        if number % 3 == 0:
            raise ValueError(number)
        return number

    async def main():
        large = LargeBodies()
        calls = [large.work(call, number) for number in range(20)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(main())
    assert [each for each in found if isinstance(each, int)] == [n for n in range(20) if n % 3]
    assert sum(isinstance(each, ValueError) for each in found) == 7
    assert max(most) <= WORKERS


@pytest.mark.system
def test_large_bodies_of_50_nodes_leave_the_event_loop_free(tmp_path):
    """The loop's thread never computes for a tenth of a second, whatever the machine's load is."""
    with loaded(tmp_path, 50, 1 << 20) as load:
        began = time.monotonic()
        load.apps()
        load.rounds()
        load.names(500)
        pauses = load.most(began)
    assert pauses["cpu"] < 0.1
    assert pauses["gap"] < 1.5
