"""No report of a damaged folder ends with a traceback, takes long, fills memory, or leaves `--out`.

`--folders` sets the number of folders. The seeds are fixed: a failure names the seed. Each folder
is read in a process of its own, which is forked when all modules are loaded.
"""

import os
import shutil
import signal
import sys
import traceback
from collections import defaultdict
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from edgewire.command.run_result import RunResult, SweepResult
from edgewire.report import __main__ as page
from edgewire.report import curves, table
from edgewire.report.html import html_report
from edgewire.report.html.watch import WatchedReport
from edgewire.report.reader import ResultsError
from tests.report.damaged_runs import CANARY, damage
from tests.report.made_runs import add_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and measures its processes")
SHOWN = ("metrics", "traffic", "overrides", "config", "history", "nodes", "__repr__")
FEW = 6  # folders in the normal tests
SECONDS, MEGABYTES = 5, 300  # more than an empty folder takes
WAIT = 60  # seconds


def reports(folder, out, draws=True):
    """Let each report read a folder; return what they print. Raises what they raise.

    `draws`: whether they also draw pictures, which takes most of the time.
    """
    text = StringIO()
    if not draws:
        html_report.draw_all = lambda *_: defaultdict(list)
    with redirect_stdout(text), redirect_stderr(text):
        codes = [page.main([str(folder), "--out", str(out)]), table.main([str(folder)])]
        if draws:
            options = ["--y", "loss", "--out", str(out / "curves.png")]
            codes.append(curves.main([str(folder), *options]))
    assert set(codes) <= {0, 2}
    watched = WatchedReport([folder])
    found = [text.getvalue(), *watched.jobs.lines(), *watched.jobs.lines()]
    for read in (
        lambda: repr(SweepResult(folder)),
        *(getter(name, folder) for name in SHOWN),
    ):
        try:
            found.append(read())
        except ResultsError as error:
            found.append(str(error))
    return "\n".join(found)


def getter(name, folder):
    """Return a function that returns an attribute of a run's result as text."""

    def get():
        found = getattr(RunResult(folder), name)
        if name == "config":  # access replaces references
            found = {key: found[key] for key in found if found[key] is not None}
        return str(found() if callable(found) else found)

    return get


def cost(folder, out, draws=True):
    """Return the seconds and the megabytes that the reports of a folder take, and what fails.

    The seconds are those of the processor, because other tests run at the same time. A report that
    waits is ended after `WAIT` seconds.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.environ["CANARY"] = CANARY
        signal.alarm(WAIT)
        problem = ""
        try:
            shown = reports(folder, out, draws)
            written = "".join(
                each.read_text(errors="replace") for each in out.glob("*") if each.suffix != ".png"
            )
            if CANARY in shown + written:
                problem = "it shows the environment or a file that a link leads to"
        except BaseException:
            problem = traceback.format_exc()
        os.write(writing, problem[-4000:].encode(errors="replace"))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        problem = pipe.read().decode()
    _, status, used = os.wait4(child, 0)
    ended = "" if status == 0 else f"ended with status {status}"
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, problem or ended


def test_a_damaged_folder_costs_little_and_no_traceback(tmp_path, pytestconfig):
    add_run(tmp_path / "sound", "lr=1 seed=0")
    reports(tmp_path / "sound", tmp_path / "out")  # loads all modules
    (tmp_path / "empty").mkdir()
    seconds, megabytes, _ = cost(tmp_path / "empty", tmp_path / "out", draws=False)
    problems = []
    place = tmp_path / "made"
    for seed in range(pytestconfig.getoption("--folders") or FEW):
        folder, out = place / "in" / "a" / "run", place / "in" / "out"
        folder.mkdir(parents=True)
        done = damage(folder, seed)
        before = {each for each in place.rglob("*") if out not in each.parents}
        took, filled, problem = cost(folder, out, draws=seed % 8 == 0)
        stray = {e for e in place.rglob("*") if out not in e.parents} - before - {out}
        if stray:
            problem += f" wrote {stray}"
        if problem or took - seconds > SECONDS or filled - megabytes > MEGABYTES:
            problems.append(f"seed {seed}, {done}: {took:.1f} s, {filled:.0f} MB\n{problem}")
        shutil.rmtree(place)
    assert not problems, f"{len(problems)} folders\n" + "\n".join(problems[:40])
