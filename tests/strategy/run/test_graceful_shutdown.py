"""Ctrl-C and SIGTERM wait for a safe moment; a second signal or a time limit ends the wait."""

import signal
import threading
import time

import pytest

from edgewire.strategy.run import graceful_shutdown
from edgewire.strategy.run.graceful_shutdown import GracefulShutdown


@pytest.fixture
def heard():
    """Return the list of signals that reach the outer handlers."""
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
        stop.go()  # no signal has arrived
        signal.raise_signal(number)
        assert (stop.asked, heard) == (number, [])
        stop.go()
        assert (stop.asked, heard) == (None, [number])
    signal.raise_signal(number)
    assert heard == [number, number]  # the outer handler is installed again


def test_the_second_one_does_not_wait(heard):
    with GracefulShutdown() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
        assert stop.asked == signal.SIGINT


def test_a_signal_waits_no_longer_than_the_limit(heard, monkeypatch):
    monkeypatch.setattr(graceful_shutdown, "GRACE", 0.05)
    with GracefulShutdown():
        signal.raise_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
    assert heard == [signal.SIGTERM]


def test_a_run_that_ends_while_a_signal_waits_is_not_disturbed(heard, monkeypatch):
    monkeypatch.setattr(graceful_shutdown, "GRACE", 0.05)
    with GracefulShutdown() as stop:
        signal.raise_signal(signal.SIGTERM)
    time.sleep(0.15)
    assert heard == []
    stop.go()
    assert heard == [signal.SIGTERM]


def test_a_signal_without_a_handler_ends_the_process(heard):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with GracefulShutdown() as stop:
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != stop.go


def test_other_threads_get_no_signals(heard):
    def inside():
        with GracefulShutdown():
            found.append(signal.getsignal(signal.SIGTERM))

    before, found = signal.getsignal(signal.SIGTERM), []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_stop_file_replaces_signals_where_there_are_none(tmp_path):
    stop = GracefulShutdown(str(tmp_path))
    stop.go()
    assert not stop.wanted
    (tmp_path / graceful_shutdown.STOP).touch()
    assert stop.wanted
    with pytest.raises(KeyboardInterrupt):
        stop.go()
    assert not stop.wanted
    stop.go()
