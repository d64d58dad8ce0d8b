"""While the same failure repeats, a node logs it once."""

import logging

from edgewire.deploy.device.throttled_log import ThrottledLog


def test_a_reason_is_logged_when_it_changes_and_again_after_a_reply(caplog):
    caplog.set_level(logging.INFO, "edgewire")
    failing = ThrottledLog()
    for number, error in enumerate([None, None, IndexError("far"), IndexError("far")]):
        failing.say("the app failed", f"no data for round {number}", error)
    failing.over()
    failing.over()
    failing.say("the app failed", "no data for round 4")
    assert [bool(record.exc_info) for record in caplog.records] == [False, True, False, False]
    assert caplog.messages == [
        "the app failed; the server is told so: no data for round 0",
        "the app failed; the server is told so: no data for round 2",
        "messages are answered again; before that there failed 4",
        "the app failed; the server is told so: no data for round 4",
    ]
