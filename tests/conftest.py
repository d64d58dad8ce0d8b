import gc
import math
import os
import resource
import signal
import sys
import uuid
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from hypothesis import settings

# torch reads it when it is imported. With more threads a forked worker would hang.
os.environ.setdefault("OMP_NUM_THREADS", "1")
from tests import fork_server
from tests.quick_hydra import quicken

quicken()
# No deadlines: a busy machine must not fail a test. `make fuzz` sets the variable to `many`.
settings.register_profile("few", deadline=None, max_examples=25)
settings.register_profile("many", deadline=None, max_examples=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))


LONGEST = {  # These files start processes; one of them and another test use two cores fully.
    "test_ray.py", "test_resumed.py", "test_engine.py",
    "test_client.py",
    "test_killed.py", "test_outside.py", "test_wheel.py", "test_hostile.py", "test_run.py",
    "test_main.py", "test_resume.py", "test_stops.py", "test_deploy.py",
    "test_secure.py", "test_sweep.py", "test_keep.py", "test_fleet.py",
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--mutations",
        type=int,
        default=2000,
        help="how many damaged payloads tests/compression/test_fuzz.py decodes",
    )
    parser.addoption(
        "--trees",
        type=int,
        default=600,
        help="how many hostile trees of texts tests/conf/test_fuzz_trees.py loads",
    )
    parser.addoption(
        "--replies",
        type=int,
        default=0,
        help="how many mutated replies of each strategy tests/test_fuzz_replies.py makes (0: few)",
    )
    parser.addoption(
        "--folders",
        type=int,
        default=0,
        help="how many damaged folders tests/report/test_fuzz_folders.py reads (0: few)",
    )

    parser.addoption(
        "--most-seconds",
        type=float,
        default=0,
        help="cases without the marker `system` that take more CPU time are listed (0: none)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let all of xdist's workers start programs by one fork server."""
    if sys.platform == "linux" and not hasattr(config, "workerinput"):
        stack = ExitStack()
        stack.enter_context(fork_server.listening())
        config.add_cleanup(stack.close)


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark further cases, and put the longest files first.

    If the longest file came last, one core would wait for it.
    """
    leave_cases_to_ci(items)
    items.sort(key=lambda item: item.path.name not in LONGEST)


def leave_cases_to_ci(items: list[pytest.Item]) -> None:
    """Mark all cases of a test but `few(n)` of them, evenly spread, with `system`."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        (wanted,) = found[0].get_closest_marker("few").args
        chosen = {round((place + 0.5) * len(found) / wanted - 0.5) for place in range(wanted)}
        for place, item in enumerate(found):
            if place not in chosen:
                item.add_marker("system")


@pytest.fixture(scope="session", autouse=True)
def nothing_is_collected_twice():
    """Let the garbage collector examine loaded objects once, not again in each run."""
    from edgewire.simulation.local import uncollected  # here, because it imports torch

    with uncollected(), pytest.MonkeyPatch.context() as patch:
        # Each run asks whether there are frozen objects; it takes 0.1 s to count them all.
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk():
    """Skip `fsync`: no test turns the machine off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def spared(nothing_is_collected_twice):
    """Freeze existing objects, because some Flower strategies collect garbage for every model."""
    gc.collect()
    gc.freeze()


def cpu_seconds() -> float:
    """Return the CPU time of this process, of its children and of the fork server's programs.

    A process counts once it has ended and somebody has waited for it.
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + sum(fork_server.spent)


STARTED, SPENT = pytest.StashKey[float](), dict[str, float]()


@pytest.hookimpl(tryfirst=True)  # before pytest skips a test
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[STARTED] = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if call.when == "teardown":  # with the fixtures that the case has made
        report.cpu_seconds = cpu_seconds() - item.stash[STARTED]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "system" not in report.keywords:
        SPENT[report.nodeid] = getattr(report, "cpu_seconds", 0)


def too_slow(config: pytest.Config) -> dict[str, float]:
    """Return the cases that took more CPU time than `--most-seconds`, and their seconds."""
    most = config.getoption("--most-seconds") or math.inf
    return {name: seconds for name, seconds in SPENT.items() if seconds > most}


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    for name, seconds in too_slow(config).items():
        line = f"{name} took {seconds:.1f} s of CPU time; make it smaller, or mark it `system`"
        terminalreporter.write_line(line, red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let Python free objects in the order that libraries need."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def hydra_has_run_nothing():
    """Forget the settings of the last run, which a new process does not have either."""
    HydraConfig.instance().cfg = None


@pytest.fixture(autouse=True)
def signals_keep_their_handlers():
    """Fail a test that leaves another handler, which would fail later tests of this process."""
    numbers = (signal.SIGTERM, signal.SIGHUP)  # IPython handles SIGINT even if it was ignored
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture
def identity():
    """Set the identity of this process, without which Flower makes no messages."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1


@pytest.fixture
def logged(caplog):
    """Return a function that returns the messages that EdgeWire has logged."""
    return lambda: [r.getMessage() for r in caplog.records if r.name == "edgewire"]


@pytest.fixture
def naps(monkeypatch):
    """Return the seconds of all sleeps in `timed_grid`; its clock advances only by these sleeps."""
    from edgewire.compression.flower import timed_grid

    slept = []
    monkeypatch.setattr(timed_grid.time, "sleep", slept.append)
    monkeypatch.setattr(timed_grid.time, "monotonic", lambda: 100 + sum(slept))
    return slept


@pytest.fixture
def cli(monkeypatch, capsys):
    """Return a function that runs the command in this process; it returns exit code and output."""
    from edgewire.command import (
        main,  # here, because it sets variables that pytest's own children inherit
    )

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["run.py", *words])
        try:
            main.cli()
            code = 0
        except SystemExit as done:
            code = done.code
        return code, capsys.readouterr()

    return call


@pytest.fixture
def command(cli, tmp_path):
    """Return a function that runs the command; it returns exit code, output and folder."""
    count = 0

    def call(*overrides):
        nonlocal count
        count += 1
        folder = tmp_path / f"run{count}"
        words = [f"hydra.run.dir={folder}", f"hydra.sweep.dir={folder}", *overrides]
        return *cli(*sorted(words, key=lambda word: word == "-m")), folder

    return call


@pytest.fixture
def left_over(monkeypatch):
    """Return a function that lists the commands of this test's processes that still run."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("EDGEWIRE_TEST", mark)

    def find():
        commands = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark.encode() in environ.read_bytes():
                    commands.append(environ.with_name("cmdline").read_text())
            except OSError:
                continue
        return commands

    return find


@pytest.fixture
def listening():
    """Let child processes receive SIGINT and SIGHUP, even if the tests run under nohup or in CI."""
    before = {
        n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
