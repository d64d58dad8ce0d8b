"""The processes of ServerApps: a slow one goes on, a dead one is replaced or ends its run."""

import secrets
import subprocess
import time
from contextlib import contextmanager

import pytest
from flwr.common.constant import Status, SubStatus
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.fab import Fab
from flwr.superlink.main import create_app

from edgewire.deploy.server import task_processes
from edgewire.deploy.server.task_processes import MOST_ENDS, TaskProcesses, process_with

FLOWERS = 0.5  # seconds that Flower gives a process for its first heartbeat


class Link:
    """An in-memory SuperLink with one run. Its SuperExec is the method `poll`."""

    def __init__(self, starts):
        self.state = create_app().state.linkstate_factory.state()
        digest = self.state.store_fab(Fab("", b"app", {}))
        run = self.state.create_run(
            "a/b", "1", digest, {}, NOOP_FEDERATION_ID, None, "<id:none>", TaskType.SERVER_APP
        )
        self.task = self.state.get_run_info(run_ids=[run])[0].primary_task_id
        TaskProcesses(self.state, pause=0.01)
        self.tokens, self._starts = [], starts

    def poll(self):
        """Start a process if the task waits for one; return the task's status."""
        if (token := self.state.claim_task(self.task)) is not None:
            self.tokens.append(token)
            self._starts(token)
        (found,) = self.state.get_tasks(task_ids=[self.task])
        return found.status

    def until(self, wanted):
        """Poll until `wanted` is true of the task's status; return the status."""
        end = time.monotonic() + 30
        while not wanted(status := self.poll()):
            assert time.monotonic() < end
            time.sleep(0.02)
        return status


@pytest.fixture
def link(monkeypatch):
    """Yield a `Link` whose processes sleep, with the token on their command line."""
    monkeypatch.setattr(in_memory_corestate, "HEARTBEAT_DEFAULT_INTERVAL", FLOWERS)
    with _sleeping() as (made, start):
        there = Link(start)
        there.processes = made
        yield there


@contextmanager
def _sleeping():
    made = []

    def start(token):
        made.append(subprocess.Popen(["bash", "-c", 'exec -a "$0" sleep 60', token]))
        while process_with(token) is None:
            time.sleep(0.01)

    try:
        yield made, start
    finally:
        for each in made:
            each.kill()
            each.wait()


def test_a_process_that_imports_for_long_is_started_once(link):
    begun = time.monotonic()
    while time.monotonic() - begun < 4 * FLOWERS:
        assert link.poll().status == Status.STARTING
        time.sleep(0.02)
    assert len(link.tokens) == 1
    assert link.state.acknowledge_task_heartbeat(link.task)
    assert link.state.activate_task(link.task)
    assert link.state.acknowledge_task_heartbeat(link.task)
    time.sleep(3 * FLOWERS)  # Flower's limit is two of these
    assert link.poll().status == Status.RUNNING


def test_without_a_process_here_flowers_limit_holds(link, monkeypatch):
    monkeypatch.setattr(task_processes, "process_with", lambda token: None)
    link.until(lambda status: len(link.tokens) == 3)


def test_a_process_that_ends_before_it_begins_is_replaced_a_few_times(link):
    for count in range(1, MOST_ENDS + 1):
        link.until(lambda status, count=count: len(link.tokens) == count)
        link.until(lambda status: _is_seen(link))
        link.processes[-1].kill()
    status = link.until(lambda status: status.status == Status.FINISHED)
    assert len(link.tokens) == MOST_ENDS
    assert status.sub_status == SubStatus.FAILED
    assert "ended 3 times before it began" in status.details


def test_the_run_of_a_killed_process_ends_at_once(link):
    """Its token is valid for ten more minutes."""
    link.until(lambda status: _is_seen(link))
    assert link.state.activate_task(link.task)
    assert link.state.acknowledge_task_heartbeat(link.task)
    link.until(lambda status: _is_seen(link))
    link.processes[-1].kill()
    status = link.until(lambda status: status.status == Status.FINISHED)
    assert (status.sub_status, len(link.tokens)) == (SubStatus.FAILED, 1)


def test_a_process_that_has_finished_is_no_failure(link):
    link.until(lambda status: _is_seen(link))
    assert link.state.activate_task(link.task)
    assert link.state.finish_task(link.task, SubStatus.COMPLETED, "")
    link.processes[-1].kill()
    time.sleep(0.1)
    assert link.poll().sub_status == SubStatus.COMPLETED


def test_no_process_has_an_unknown_token():
    assert process_with(secrets.token_hex()) is None


def _is_seen(link):
    """Return whether the process has been seen: its token is valid for long."""
    record = link.state.task_token_store.get(link.task)
    return record is not None and _left(record) > 100


def _left(record):
    return (record.active_until - in_memory_corestate.now()).total_seconds()
