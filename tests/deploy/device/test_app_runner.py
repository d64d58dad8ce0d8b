"""What a node logs when its app fails: one line if the user can correct the mistake."""

from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from edgewire.client.app import LocalError
from edgewire.compression.base import PayloadError
from edgewire.conf.schema import ConfigError
from edgewire.deploy.device.app_runner import answered
from edgewire.deploy.device.throttled_log import ThrottledLog
from edgewire.task.errors import TaskError

CONTEXT = SimpleNamespace(run_id=1, node_id=2)


def hidden(error):
    """Raise an error whose cause is only in the node's own log, and not sent to the server."""
    raise LocalError("this node's own log says more") from error


def said_of(failing, caplog):
    """Let an app fail; return the reply's bytes and the log."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    message = Message(RecordDict({"a": ConfigRecord({"n": 1})}), 2, "train")
    message.metadata.__dict__["_message_id"] = "a"

    def app(message, context):
        failing()

    bundle = answered(message, CONTEXT, lambda: app, ThrottledLog())
    (record,) = caplog.records
    return bundle, record


@pytest.mark.parametrize("kind", [TaskError, ConfigError, PayloadError])
@pytest.mark.parametrize("hides", [True, False])
def test_an_error_that_a_user_can_correct_gives_one_line(kind, hides, caplog):
    def failing():
        if hides:
            hidden(kind("no photos in /srv/photos"))
        raise kind("no photos in /srv/photos")

    bundle, record = said_of(failing, caplog)
    said = "the app failed; the server is told so: no photos in /srv/photos"
    assert record.getMessage() == said
    assert record.exc_info is None
    assert (b"/srv/photos" in bundle) is not hides
    assert b"<class" not in bundle
    assert not hides or b"this node's own log says more" in bundle


def test_any_other_failure_is_logged_with_its_traceback(caplog):
    _, record = said_of(lambda: [][1], caplog)
    assert record.getMessage() == "the app failed; the server is told so"
    assert record.exc_info[0] is IndexError
