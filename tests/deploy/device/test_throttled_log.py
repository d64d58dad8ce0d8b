"""While the same failure repeats, a node logs it less and less often."""

import logging

import pytest

from edgewire.deploy.device.throttled_log import ThrottledLog


@pytest.fixture(autouse=True)
def all_of_it(caplog):
    caplog.set_level(logging.INFO, "edgewire")


def test_a_repeated_reason_is_logged_less_and_less_often_with_its_count(caplog):
    failing = ThrottledLog()
    for number in range(1000):
        failing.say("the app failed", f"no data for round {number}")
    failing.over()
    failing.over()
    first, *more, last = caplog.messages
    assert first == "the app failed; the server is told so: no data for round 0"
    assert [line.partition("(")[2] for line in more] == [
        f"{2**n} times now)" for n in range(1, 10)
    ]  # fmt: skip
    assert last == "messages are answered again; before that there failed 1000"


def test_a_new_reason_is_logged_at_once_as_is_any_after_a_reply(caplog):
    failing = ThrottledLog()
    for reason in ("no data", "no room", "no data", "no data", "no room"):
        failing.say("the app failed", reason)
    failing.over()
    failing.say("the app failed", "no data")
    failing.over()
    said = [line.rpartition("told so: ")[2] for line in caplog.messages]
    assert said == [
        "no data", "no room", "no data (2 times now)", "no room (2 times now)",
        "messages are answered again; before that there failed 5",
        "no data", "messages are answered again; before that there failed 1",
    ]  # fmt: skip


def test_a_traceback_is_logged_once(caplog):
    failing = ThrottledLog()
    for _ in range(2):
        failing.say("the app failed", error=IndexError("far"))
    failing.say("the app failed", error=KeyError("other"))
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, True]
    assert caplog.messages[1] == (
        "the app failed; the server is told so: IndexError('far') (2 times now)"
    )


def test_endless_new_reasons_take_little_memory(caplog):
    failing = ThrottledLog()
    names = ["x" * n for n in range(1, 201)]
    for name in names:
        failing.say("the app failed", name)
    assert len(caplog.messages) == 200
    failing.say("the app failed", names[0])
    assert caplog.messages[-1].endswith(": x")  # as at the first time
