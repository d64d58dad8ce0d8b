"""Ctrl-C and SIGTERM are held back to a safe moment, once, and not for long."""

import signal
import threading
import time

import pytest

from strategy.run import graceful_shutdown
from strategy.run.graceful_shutdown import GracefulShutdown


@pytest.fixture
def heard():
    """The signals that got through to who handles them outside."""
    found = []
    before = {
        number: signal.signal(number, lambda number, frame: found.append(number))
        for number in graceful_shutdown.NUMBERS
    }
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", graceful_shutdown.NUMBERS)
def test_the_first_signal_waits_for_a_safe_moment(heard, number):
    with GracefulShutdown() as stop:
        stop.go()  # nobody has asked
        signal.raise_signal(number)
        assert (stop.asked, heard) == (number, [])
        stop.go()
        assert (stop.asked, heard) == (None, [number])
    signal.raise_signal(number)
    assert heard == [number, number]  # as before


def test_the_second_one_does_not_wait(heard):
    with GracefulShutdown() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
        assert stop.asked == signal.SIGINT


def test_nobody_waits_for_long(heard, monkeypatch):
    monkeypatch.setattr(graceful_shutdown, "GRACE", 0.05)
    with GracefulShutdown():
        signal.raise_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
    assert heard == [signal.SIGTERM]


def test_a_run_that_ends_meanwhile_is_not_disturbed_by_it(heard, monkeypatch):
    monkeypatch.setattr(graceful_shutdown, "GRACE", 0.05)
    with GracefulShutdown() as stop:
        signal.raise_signal(signal.SIGTERM)
    time.sleep(0.15)
    assert heard == []
    stop.go()
    assert heard == [signal.SIGTERM]


def test_what_nobody_handles_ends_a_process_as_ever(heard):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with GracefulShutdown() as stop:
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != stop.go


def test_other_threads_hear_no_signals(heard):
    def inside():
        with GracefulShutdown():
            found.append(signal.getsignal(signal.SIGTERM))

    before, found = signal.getsignal(signal.SIGTERM), []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_file_is_heard_where_no_signal_is(tmp_path):
    stop = GracefulShutdown(str(tmp_path))
    stop.go()
    assert not stop.wanted
    (tmp_path / graceful_shutdown.STOP).touch()
    assert stop.wanted
    with pytest.raises(KeyboardInterrupt):
        stop.go()
    assert not stop.wanted
    stop.go()
