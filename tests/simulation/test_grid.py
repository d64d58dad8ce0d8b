"""The local engine's grid: equal replies for any number of workers; a failing node ends no run."""

import gc
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from edgewire.conf.network import Network
from edgewire.machine.errors import Ended
from edgewire.machine.processes import orderly_exit
from edgewire.simulation.grid import LocalGrid
from edgewire.simulation.workers.node_host import NodeHostSpec
from edgewire.simulation.workers.pool import WINDOW, Processes, make_pool
from tests.simulation.grids import FORKED_SECONDS, NODES, app, messages, seen

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_replies_in_the_same_order(grid, workers):
    one, many = grid(1), grid(workers)
    for size in (10, 50_000, 200_000, 100):
        expected = seen(one.send_and_receive(messages(one, size=size)))
        assert seen(many.send_and_receive(messages(many, size=size))) == expected
    assert [node for node, *_ in expected] == list(one.get_node_ids())


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_messages_to_one_node_are_served_one_after_the_other(grid, workers):
    g = grid(workers)
    several = [message for _ in range(4) for message in messages(g)[:3]]
    calls = [r.content["metrics"]["calls"] for r in g.send_and_receive(several)]
    assert calls == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_node_that_raises_is_an_error_reply(grid, workers):
    g = grid(workers)
    replies = g.send_and_receive(messages(g, **{"raise-at": 3}))
    errors = [r for r in replies if r.has_error()]
    assert [r.metadata.src_node_id for r in errors] == [4]
    assert errors[0].error.reason == "RuntimeError: no power"
    assert not any(r.has_error() for r in g.send_and_receive(messages(g)))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("returned", ["nothing", "its message", "a dict", "a record of no kind"])
def test_what_is_no_reply_becomes_an_error_reply(grid, workers, returned):
    g = grid(workers)
    replies = g.send_and_receive(messages(g, returns=returned))
    assert [r.metadata.src_node_id for r in replies if r.has_error()] == list(g.get_node_ids())


def test_a_reply_that_cannot_be_sent_fails_alone(grid):
    g = grid(2)
    list(g.send_and_receive(messages(g)))
    replies = g.send_and_receive(messages(g, returns="what cannot be pickled"))
    assert all("cannot be sent" in reply.error.reason for reply in replies)
    calls = [r.content["metrics"]["calls"] for r in g.send_and_receive(messages(g))]
    assert calls == [3] * NODES  # the workers and their nodes' states are still there


@pytest.mark.parametrize("size", [10_000, 300_000, 2_000_000])
def test_messages_and_replies_without_large_arrays_do_not_block_each_other(grid, size):
    def late(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        g = grid(2)
        sent = [
            Message(RecordDict({"config": ConfigRecord({"bytes": bytes(size)})}), node, "query")
            for node in g.get_node_ids()
        ]
        replies = g.send_and_receive(sent)
        assert [len(r.content["config"]["bytes"]) for r in replies] == [size] * NODES
        assert [len(r.content["arrays"]) for r in replies] == [size // 1000] * NODES
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_to_the_process_does_not_fail_the_working_node(grid):
    g = grid(1)
    with pytest.raises(Ended) as caught, orderly_exit():
        list(g.send_and_receive(messages(g, **{"end-at": 3})))
    assert caught.value.code == 128 + signal.SIGTERM


def test_a_worker_that_dies_loses_its_messages_only(grid):
    g = grid(2)
    replies = g.send_and_receive(messages(g, **{"die-at": 2}))
    assert len(replies) == NODES
    failed = [r for r in replies if r.has_error()]
    assert 1 <= len(failed) <= 2  # the message it worked on, and the one that waited for it
    assert 3 in [r.metadata.src_node_id for r in failed]
    assert "worker process died" in failed[0].error.reason
    assert not any(r.has_error() for r in g.send_and_receive(messages(g)))


def runs(process):
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("dies", [True, False])
def test_a_forked_process_ends_with_its_worker_and_hides_no_death(tmp_path, dies):
    pool = make_pool(NodeHostSpec(app, NODES, 1, {}), 2)
    g, note, start = LocalGrid(pool, NODES), tmp_path / "pid", time.monotonic()
    where = {"fork-at": 2, "note": str(note), "die-at": 2 if dies else -1}
    failed = [r for r in g.send_and_receive(messages(g, **where)) if r.has_error()]
    assert bool(failed) == dies
    if not dies:
        pool.close()
    while runs(note.read_text()):
        assert time.monotonic() - start < FORKED_SECONDS / 2
        time.sleep(0.01)
    if dies:
        assert time.monotonic() - start < FORKED_SECONDS / 2
        pool.close()


def test_a_stop_right_after_a_fork_ends_the_forked_process():
    """A signal ends a forked process even before the default handler is restored there."""
    program = (
        "import os, signal\n"
        "me = os.getpid()\n"
        "end = lambda: os.getpid() == me or os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.register_at_fork(after_in_child=end)\n"
        "from edgewire.simulation.workers.worker import ignore_stops\n"
        "ignore_stops()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(-signal.SIGTERM), "[]"]


@pytest.mark.parametrize("workers", [1, 2])
def test_nodes_do_not_see_what_others_do_to_a_shared_content(grid, workers):
    g = grid(workers)
    replies = g.send_and_receive(messages(g, "evaluate"))
    assert [r.content["metrics"]["seen"] for r in replies] == [0] * NODES


def test_workers_compute_while_the_server_only_sends(grid, queue):
    server = grid(2, nodes=500)
    for message in messages(server, "evaluate", size=10):
        server.push_messages([message])  # no reply is ever asked for
        if len(queue.answers) > 2 * WINDOW:
            return
        time.sleep(0.01)
    pytest.fail("each worker waits for its first replies to be taken")


def test_workers_compute_while_the_server_evaluates(grid, queue):
    server = grid(2, nodes=100)
    ids = server.push_messages(messages(server, "evaluate", size=10))
    for _ in range(1000):
        server.tend()
        if len(queue.answers) == len(ids):
            break
        time.sleep(0.01)
    assert len(queue.answers) == len(ids)
    assert len(server.pull_messages(ids)) == len(ids)


def test_the_message_due_first_is_computed_first(grid, queue):
    """Nodes wait for different times; workers compute their messages in the order of arrival."""
    network = Network(waiting="uniform", waiting_seconds=1.0)
    arrivals = []
    for workers in (1, 2):
        server = grid(workers, nodes=150, network=network)
        ids, arrived = server.push_messages(messages(server, "evaluate", size=10)), []
        arrivals.append([])
        while ids:
            replies = server.pull_messages(ids)
            assert replies
            for reply in replies:
                arrivals[-1].append((reply.metadata.src_node_id, server.virtual_seconds))
                arrived.append(reply.metadata.reply_to_message_id)
                ids.remove(arrived[-1])
    assert arrivals[0] == arrivals[1]
    at_once = queue.taken[: workers * WINDOW]  # taken before all messages were there
    assert queue.taken[len(at_once) :] == [i for i in arrived if i not in at_once]


def test_messages_sent_together_may_depend_on_each_other(grid):
    """A node may crash after its first message; then the second message finds no state."""
    network = Network(waiting="fixed", waiting_seconds=1.0, crash=0.5, rejoin_seconds=0.5)
    for workers in (1, 2):
        server = grid(workers, network=network)
        twice = [m for _ in range(2) for m in messages(server, size=10)]
        ids, replies = server.push_messages(twice), []
        while got := server.pull_messages(ids):
            replies += got
        if workers == 1:
            expected = seen(replies)
    assert seen(replies) == expected
    assert len(expected) > NODES


def test_nodes_without_state_cost_nothing(grid):
    contexts = weakref.WeakValueDictionary()

    def watched(message, context):
        contexts[len(contexts)] = context
        return app(message, context)

    g = grid(1, nodes=100_000, client=watched)
    for kind, kept in (("evaluate", 0), ("train", 50)):
        assert len(g.send_and_receive(messages(g, kind)[:50])) == 50
        gc.collect()
        assert len(contexts) == kept


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rounds_replies_have_the_order_of_its_messages(grid, workers):
    g = grid(workers, Network(seconds_per_step=1.0))
    sent = messages(g)[::-1]  # the last node, which takes the most steps, comes first
    replies = g.send_and_receive(sent)
    assert [r.metadata.src_node_id for r in replies] == list(g.get_node_ids())[::-1]
    assert not g.send_and_receive([])
    assert g.virtual_seconds == NODES


@pytest.mark.system
def test_spawned_workers_reply_too():
    """Workers are spawned where forking is unsafe: with a GPU in use, or not on Linux."""
    pool = Processes(NodeHostSpec("papers.benchmarks.echo:app", NODES, 1, {}), 2, method="spawn")
    g = LocalGrid(pool, NODES)
    replies = g.send_and_receive(messages(g)[:3])
    assert [r.content["arrays"]["payload"].data[:3] for r in replies] == [b"\x00\x01\x02"] * 3
    pool.close()
