"""Arrays for intermediate results are used again, and their memory is bounded."""

import threading

import numpy as np
import pytest

from edgewire.compression import buffers


@pytest.fixture
def no_buffers():
    buffers.buffers().clear()
    yield
    buffers.buffers().clear()


def test_workspace_is_reused_and_grows(no_buffers):
    first = buffers.workspace("a", 100, np.float32)
    assert first.shape == (100,)
    assert first.dtype == np.float32
    assert np.shares_memory(first, buffers.workspace("a", 50, np.float64))
    assert np.shares_memory(first, buffers.workspace("a", 0, np.uint8).base)
    assert not np.shares_memory(first, buffers.workspace("b", 100, np.float32))
    larger = buffers.workspace("a", 101, np.float32)
    assert not np.shares_memory(first, larger)
    assert np.shares_memory(larger, buffers.workspace("a", 100, np.float32))
    buffers.buffers().clear()
    assert not np.shares_memory(larger, buffers.workspace("a", 100, np.float32))


def test_workspace_is_a_threads_own(no_buffers):
    mine, others = buffers.workspace("a", 10, np.int64), []
    thread = threading.Thread(target=lambda: others.append(buffers.workspace("a", 10, np.int64)))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, others[0])


def test_workspace_is_bounded(no_buffers, monkeypatch):
    monkeypatch.setattr(buffers, "LIMIT", 1000)
    a, b = (buffers.workspace(name, 400, np.uint8) for name in "ab")
    a[:], b[:] = 1, 2
    assert np.shares_memory(a, buffers.workspace("a", 400, np.uint8))  # b is now the oldest
    buffers.workspace("c", 300, np.uint8)
    assert list(buffers.buffers()) == ["a", "c"]
    assert (b == 2).all()
    huge = buffers.workspace("d", 1001, np.uint8)
    assert huge.shape == (1001,)
    assert list(buffers.buffers()) == ["a", "c"]
    assert np.shares_memory(a, buffers.workspace("a", 400, np.uint8))
