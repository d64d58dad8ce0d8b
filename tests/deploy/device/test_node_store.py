"""A node's stored state is restored exactly, is complete or absent, and stays small."""

import copy
import logging
import os
import random
import resource
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from edgewire.compression.flower.node.state import store_arrays, stored_arrays
from edgewire.compression.flower.records import FlatArray
from edgewire.deploy.device.node_database import LARGE, NodeDatabase, hash_of
from edgewire.deploy.device.node_store import open_node_store
from edgewire.machine.errors import UsageError
from edgewire.protocol.lineage import Checkpoint, RunLineage


def state_of(draw, size=3000):
    state = RecordDict()
    store_arrays(state, "flat", {
        "wide": draw.normal(size=size).astype(np.float32), "none": np.zeros((0, 3)),
        "number": np.array(draw.integers(9)), "every other": draw.integers(9, size=20)[::2],
        "bits": draw.random(size=(3, 5)) < 0.5,
    })  # fmt: skip
    state["plain"] = ArrayRecord({"x": Array(draw.normal(size=(3, 4)))})
    state["plain"]["odd"] = Array("uint8", (3,), "some.kind", b"abc")
    state["words"] = ConfigRecord({"a": [1, 2], "b": b"\0\1", "c": "d", "e": 0.1})
    state["metrics"] = MetricRecord({"n": int(draw.integers(2**40)), "x": [0.1, 2.0]})
    return state


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        if not isinstance(one[name], ArrayRecord):
            assert one[name] == other[name]
            continue
        assert list(one[name]) == list(other[name])
        for key, array in one[name].items():
            assert (array.dtype, tuple(array.shape), array.stype) == (
                other[name][key].dtype, tuple(other[name][key].shape), other[name][key].stype
            )  # fmt: skip
            assert array.data == other[name][key].data
    return True


def files(folder):
    return sorted(f.name for f in (folder / "arrays").iterdir())


class Node:
    """A node's folder. `begin` opens its store, as a node does after a start or a restart."""

    def __init__(self, folder):
        self.folder, self.database = folder, None

    def begin(self):
        self.end()
        self.database = NodeDatabase(self.folder)
        return open_node_store(self.database, "1")

    def end(self):
        if self.database is not None:
            self.database.close()
            self.database = None


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("size", [3000, LARGE // 4 - 1, LARGE // 4])
def test_a_state_is_restored_after_every_reply(size, node):
    node_store = node.begin()
    assert (node_store.answered, len(node_store.state)) == ([], 0)
    for number in range(5):
        state = state_of(np.random.default_rng(number), size)
        node_store.commit(state, f"m{number}", b"reply %d" % number)
        assert node_store.reply() == b"reply %d" % number
        node_store = node.begin()
        assert same(state, node_store.state)
        assert node_store.reply() == b"reply %d" % number
        assert node_store.answered == [f"m{n}" for n in range(number + 1)]
    assert len(files(node.folder)) == (size * 4 >= LARGE)


def test_ids_of_messages_are_bounded(node):
    node_store = node.begin()
    for number in range(40):
        node_store.commit(node_store.state, str(number), b"")
    assert node.begin().answered == [str(n) for n in range(24, 40)]


@pytest.mark.parametrize("size", [1_000_000, 50_000])  # floats: in a file, in the database
def test_unchanged_values_are_not_written_again(size, node, monkeypatch):
    node_store, state, small = node.begin(), RecordDict(), np.zeros(1)
    large = np.arange(size, dtype=np.float32)
    store_arrays(state, "large", {"x": large})
    node_store.commit(state, "a", b"")
    before = files(node.folder)
    journal = node.folder / "node.db-wal"
    for number in range(5):
        store_arrays(state, "small", {"y": small + number})
        ended = journal.stat().st_size
        node_store.commit(state, str(number), b"some reply")
        assert journal.stat().st_size - ended < 40_000
        assert files(node.folder) == before
        if number == 2:
            node_store = node.begin()
            store_arrays(state, "small", {"y": small - 1})
            node_store.commit(state, "again", b"")
    large[7] = -1
    node_store.commit(state, "b", b"")
    assert len(files(node.folder)) == len(before)
    assert files(node.folder) != before or not before
    assert same(state, node.begin().state)


def test_the_folder_stays_small(node):
    node_store, state = node.begin(), RecordDict()
    for number in range(40):
        sizes = {"a": 50_000, "b": 100_000}
        store_arrays(
            state, "moving", {name: np.full(size, number * 1.0) for name, size in sizes.items()}
        )
        store_arrays(state, "small", {"y": np.full(20_000, number)})
        node_store.commit(state, str(number), b"")
    assert len(files(node.folder)) == 2
    assert sum(f.stat().st_size for f in node.folder.glob("node.db*")) < 6 << 20  # 4 MB: journal
    node.end()
    assert (node.folder / "node.db").stat().st_size < 800_000


def test_runs_share_nothing(node):
    node.begin()
    states = {name: state_of(np.random.default_rng(1), LARGE) for name in "12"}
    for name, state in states.items():
        open_node_store(node.database, name).commit(state, "a", b"reply")
    assert len(files(node.folder)) == 2  # equal arrays, one for each run
    node.database.remove("1")
    assert len(files(node.folder)) == 1
    assert len(node.begin().state) == 0
    assert same(states["2"], open_node_store(node.database, "2").state)


def full(*_):
    raise OSError(28, "No space left on device")


FULL = {"files": "No space", "database": "No space"}
FULL |= dict.fromkeys((0, 100_000, 270_000), "File too large|disk I/O error")


@contextmanager
def full_disk(patch, node, kind):
    """Let the next writes fail: of files, of the database, or after a number of bytes."""
    if isinstance(kind, int):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (kind, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return
    if kind == "database":
        pages = node.database.connection.execute("PRAGMA page_count").fetchone()[0]
        node.database.connection.execute(f"PRAGMA max_page_count = {pages}")
    with patch.context() as inside:
        if kind == "files":
            inside.setattr(os, "fsync", full)
        yield
    node.database.connection.execute("PRAGMA max_page_count = 1000000000")


@pytest.mark.parametrize(("kind", "size"), [*((each, 70_000) for each in FULL), (0, 3000)])
def test_a_failed_write_leaves_the_state_unchanged(kind, size, node, monkeypatch, caplog):
    node_store, before = node.begin(), state_of(np.random.default_rng(1), size)
    node_store.commit(before, "a", b"first")
    there, after = files(node.folder), state_of(np.random.default_rng(2), size)
    store_arrays(after, "more", {"y": np.arange(20_000)})
    before = copy.deepcopy(before)
    for _ in range(2):  # it can be tried again
        with full_disk(monkeypatch, node, kind), pytest.raises(OSError, match=FULL[kind]):
            node_store.commit(after, "b", b"second")
        assert files(node.folder) == there  # the disk gets its space back
    again = node.begin()
    assert not caplog.messages  # a failed write is no damage
    assert same(before, again.state)
    assert (again.answered, again.reply()) == (["a"], b"first")
    again.commit(after, "b", b"second")
    assert same(after, node.begin().state)


def expect_new(node, caplog):
    """Expect one warning and an empty store, which can be used."""
    found = node.begin()
    assert (found.answered, len(found.state)) == ([], 0)
    (said,) = caplog.messages
    assert "is damaged" in said
    assert "starts anew" in said
    state = state_of(np.random.default_rng(3), LARGE)
    found.commit(state, "b", b"next")
    found = node.begin()
    assert found.answered == ["b"]
    assert same(state, found.state)


def cut(pattern, size):
    """Return a function that cuts the file of a node's folder, or removes it (`size`: None)."""

    def damage(node):
        node.end()
        (file,) = node.folder.glob(pattern)
        file.unlink() if size is None else file.write_bytes(file.read_bytes()[:size])

    return damage


def forget_reply(node):
    with node.database.connection as db:
        db.execute("UPDATE blobs SET content = 'other' WHERE content = ?", [b"reply"])


@pytest.mark.parametrize(
    "damage",
    [*(cut("node.db", size) for size in (0, 1, 15, 99, 100, 4095, 4096, 9000, -4097)),
     *(cut("arrays/*", size) for size in (0, 1, LARGE, None)), forget_reply],
)  # fmt: skip
def test_a_damaged_folder_counts_as_empty(damage, node, caplog):
    node.begin().commit(state_of(np.random.default_rng(1), LARGE), "a", b"reply")
    damage(node)
    expect_new(node, caplog)


def test_a_changed_bit_is_found_or_harmless(node, caplog):
    """After it, the state is as before, or absent with a warning; and it can be written."""
    state = state_of(np.random.default_rng(1))
    node.begin().commit(state, "a", b"reply")
    hashes = [digest for (digest,) in node.database.connection.execute("SELECT hash FROM blobs")]
    node.end()
    file = node.folder / "node.db"
    data, damaged = file.read_bytes(), 0
    keys = [data.index(digest.encode()) for digest in hashes]
    name = data.index(b"tableblobsblobs") + 5  # with 0x80 it is no UTF-8 in SQLite's message
    for at in [*keys, *range(0, 104, 7), *range(name, name + 8), *range(104, len(data), 1499)]:
        bit = 0x80 if name <= at < name + 8 else 1 << at % 8
        shutil.rmtree(node.folder / "arrays", ignore_errors=True)
        caplog.clear()
        file.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        try:
            found = node.begin()
        except UsageError:
            assert 60 <= at < 64  # the number of the format
            continue
        if found.answered:
            assert not caplog.messages
            assert same(state, found.state)
            assert found.reply() == b"reply"
        else:
            assert all("starts anew" in said for said in caplog.messages)
            damaged += bool(caplog.messages)
        for _ in range(2):
            try:
                found.commit(state, "b", b"next")
            except OSError:
                continue  # the damage is found only now: the second try has an empty database
            break
        assert node.begin().answered[-1] == "b"
        node.end()
    assert damaged > len(data) / 1499 / 3


def test_damage_in_a_running_node_is_one_failure(node, caplog, monkeypatch):
    node_store, state = node.begin(), state_of(np.random.default_rng(1), LARGE)
    node_store.commit(state, "a", b"reply")
    node.end()
    node_store = node.begin()
    with (node.folder / "node.db").open("r+b") as file:
        file.write(bytes(os.fstat(file.fileno()).st_size))
    node.database.connection.execute("PRAGMA cache_size = 0")
    state["metrics"] = MetricRecord({"n": 7})
    node.database.connection.execute("PRAGMA shrink_memory")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):  # then it is tried again
            node_store.commit(state, "b", b"next")
    with pytest.raises(OSError, match=r"malformed|not a database"):
        node_store.commit(state, "b", b"next")
    assert "starts anew" in caplog.text
    node_store.commit(state, "b", b"next")
    found = node.begin()
    assert same(state, found.state)
    assert found.answered == ["a", "b"]


def test_a_journal_without_its_database_is_not_used(node, caplog):
    node.begin().commit(state_of(np.random.default_rng(1), LARGE), "a", b"reply")
    journal = (node.folder / "node.db-wal").read_bytes()
    node.end()
    (node.folder / "node.db-wal").write_bytes(journal)
    (node.folder / "node.db").rename(node.folder / "node.draft")  # as after a kill, too
    found = node.begin()
    assert (found.answered, len(found.state), files(node.folder)) == ([], 0, [])
    assert not caplog.messages


def test_a_new_database_has_a_durable_name(node, monkeypatch):
    real, done = os.fsync, []

    def noted(handle):
        target = Path(os.readlink(f"/proc/self/fd/{handle}"))
        done.append((target, {each.name for each in target.iterdir()}))
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    node.begin()
    ((folder, names),) = done
    assert (folder, names - {"node.db-wal"}) == (node.folder, {"arrays", "node.db"})


def test_files_are_durable_before_the_database_names_them(node, monkeypatch):
    """A file and its name are durable before the transaction; a file is removed after it."""
    node_store = node.begin()
    node_store.commit(state_of(np.random.default_rng(1), LARGE), "a", b"reply")
    done = []

    def noted(name, real):
        def call(what, *more):
            target = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what
            if os.path.isdir(target):
                assert f"1-{hash_of(wide)}" in os.listdir(target)
            real(what, *more)
            done.append((name, os.path.basename(target).rpartition("-")[2] in new))

        return call

    state = state_of(np.random.default_rng(2), LARGE)
    wide = state["flat"]["wide"].vector
    new = {hash_of(wide), "arrays"}
    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(Path, "unlink", noted("unlink", Path.unlink))
    node.database.connection.set_trace_callback(lambda said: done.append((said, None)))
    node_store.commit(state, "b", b"next")
    ends = done.index(("COMMIT", None))
    assert [each for each in done[:ends] if each[1] is not None] == [("fsync", True)] * 2
    assert [each for each in done[ends:] if each[1] is not None] == [("unlink", False)]
    (level,) = node.database.connection.execute("PRAGMA synchronous").fetchone()
    assert level == 2  # FULL: SQLite calls fsync at each commit


def test_a_damaged_state_of_a_checkpoint_is_dropped(node, caplog):
    node_store, state = node.begin(), RecordDict()
    store_arrays(state, "large", {"x": np.arange(40_000)})
    node_store.take_up(1, RunLineage(5, 5))
    node_store.commit(state, "a", b"reply")
    (first,) = (node.folder / "arrays").iterdir()
    node_store.take_up(1, RunLineage(5, 5, (Checkpoint(5, 1),)))
    store_arrays(state, "large", {"x": np.zeros(40_000)})
    node_store.commit(state, "b", b"reply")
    assert len(files(node.folder)) == 2
    first.write_bytes(first.read_bytes()[:9])
    found = node.begin()
    assert found.answered == ["a", "b"]
    found.take_up(1, RunLineage(5, 6, (Checkpoint(5, 1),)))
    assert len(found.state) == 0
    assert "the state at the run's checkpoint is damaged" in caplog.text
    store_arrays(state, "large", {"x": np.arange(40_000)})  # the damaged file is written again
    found.commit(state, "c", b"reply")
    assert stored_arrays(node.begin().state, "large")["x"][-1] == 39_999
    assert FlatArray  # the store finds the app's arrays by their attributes, not by their class


def test_a_folder_of_another_format_is_refused(node):
    node.begin()
    node.database.connection.execute("PRAGMA user_version = 4")
    with pytest.raises(UsageError, match=r"format 4, .* needs format 3: remove node\.db\* and "):
        node.begin()


# kills

WRITES = [*range(0, 20_000, 4_000), *range(20_000, 700_000, 70_000)]  # bytes


def numbered(number):
    """Return the state after message `number`: two arrays in files, others in the database."""
    state = state_of(np.random.default_rng(number))
    store_arrays(
        state, "large", {"x": np.full(LARGE // 8, number), "y": np.full(LARGE // 4, number)}
    )
    return state


def ended_while_it_writes(node, number, *, size=None, seconds=None, handled=False):
    """Let a child commit the states from `number` on until it ends.

    Return the number of the last state whose commit had returned, or `number` - 1. `size`: the
    write of a file's byte after `size` kills the child. `seconds`: the child is killed then, or,
    if `handled` is true, a signal's handler raises `SystemExit`.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        logging.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, exit_now if handled else signal.SIG_DFL)
        try:
            if size is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            else:  # again and again, because Python ignores an exception in some callbacks
                signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
            node_store = node.begin()
            for each in range(number, number + 250):
                node_store.commit(numbered(each), str(each), b"reply %d" % each)
                os.write(writing, bytes([each - number]))
            os._exit(1)
        except SystemExit:
            node.end()
        finally:
            os._exit(7)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 7 if handled else os.WIFSIGNALED(status), (status, said)
    return number + len(said) - 1


def exit_now(number, frame):
    raise SystemExit


def expect_whole(node, at_least, caplog):
    """Expect a whole state: that of the last commit that returned, or of the next."""
    found = node.begin()
    assert not caplog.messages
    number = int(found.answered[-1]) if found.answered else -1
    assert number in (at_least, at_least + 1)
    if number >= 0:
        assert found.reply() == b"reply %d" % number
        assert same(found.state, numbered(number))
    assert len(files(node.folder)) == (2 if number >= 0 else 0)
    node.end()
    return number


@pytest.mark.few(1)
@pytest.mark.parametrize("fresh", [True, False])
def test_a_node_killed_at_any_write_has_a_whole_state(fresh, node, caplog):
    number = -1
    for size in WRITES:
        if fresh:
            shutil.rmtree(node.folder)
            node.folder.mkdir()
            number = -1
        number = expect_whole(node, ended_while_it_writes(node, number + 1, size=size), caplog)
    assert number > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("handled", [True, False])
def test_a_node_ended_at_any_moment_has_a_whole_state(handled, node, caplog):
    number, draw = -1, random.Random(1)
    for attempt in range(60):
        if attempt >= 15 and number > 0:
            break
        seconds = draw.uniform(0.001, 0.1 * (1 + attempt // 15))  # longer on a busy machine
        ended = ended_while_it_writes(node, number + 1, seconds=seconds, handled=handled)
        number = expect_whole(node, ended, caplog)
    assert number > 0
