"""Faults in runs with a real server, real nodes and a real ServerApp.

    python -m papers.benchmarks.devices.faults    # prints JSON; half an hour, as root
    python -m papers.benchmarks.devices.faults --kinds killed --count 10 --algorithm adacomp

Root is needed for a full disk.

The runs train on digits, with TLS and keys. A fault begins when the fault before is over and
further rounds are done. If a fault ends a run, the run is resumed with `resume=`. A synchronous run
must have the model's bytes, the uplink bytes and the number of updates of the same run on the local
engine, and the nodes' residuals of a run on real nodes without faults. The faults in `SICK` may
change the result; then the run's failures must be the messages that nodes logged as failed. `open`
lists every run that did not end as required. `seconds` has the median and the maximum time from a
fault until further rounds are done; a killed node is restarted at once.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from edgewire.deploy.device.node_database import NodeDatabase
from edgewire.deploy.device.node_store import open_node_store
from edgewire.deploy.device.throttled_log import AGAIN
from edgewire.machine.processes import orderly_exit
from papers.benchmarks.devices.fault_kinds import GONE, Faults, Ill
from papers.benchmarks.timing import ROOT
from tests.deploy.processes import eventually
from tests.system.fault_field import Field, TheRun

SAME = ("accuracy", "loss", "uplink_bytes", "client_updates")
ASYNCHRONOUS = ("adacomp", "asgd")
SICK = ("lost", "old", "data")
MODEL = "model.safetensors"
MOST_WRONG = 3  # after this many wrong runs the trial stops
USUAL = {"killed": 60, "hooked": 40, "cut": 30, "still": 16, "deaf": 24, "serverapp": 6}
USUAL |= {"superlink": 6, "command": 6, "clock": 8, "disk": 6, "minute": 1, "version": 4}
USUAL |= {"lost": 4, "old": 4, "data": 4}


class Undisturbed:
    """Results without faults: a run on the local engine, and the residuals of real nodes."""

    def __init__(self, field: Field, words: list[str]) -> None:
        self.folder = field.folder / "undisturbed"
        line = ["run.py", *words, f"nodes={field.count}", "engine=local", "engine.workers=1"]
        done = [sys.executable, *line, f"hydra.run.dir={self.folder}"]
        subprocess.run(done, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        self.result = json.loads((self.folder / "result.json").read_text())
        run = TheRun(field, "quiet", words)
        eventually(run.has_ended, 600)
        self.kept = kept(field)
        if wrong := self.differences(run, field):
            raise RuntimeError(f"without any fault: {wrong}")

    def differences(self, run: TheRun, field: Field) -> list[str]:
        """Return the differences between a run with faults and the run without faults."""
        found, other = run.result(), self.result
        wrong = [f"{key}: {found[key]} {other[key]}" for key in SAME if found[key] != other[key]]
        if (run.folder / MODEL).read_bytes() != (self.folder / MODEL).read_bytes():
            wrong.append("another model")
        if found["failures"]:
            wrong.append(f"{found['failures']} failures")
        pairs = zip(kept(field), self.kept, strict=True)
        return wrong + [f"node {n} keeps other values" for n, (a, b) in enumerate(pairs) if a != b]


def kept(field: Field) -> list[dict[str, bytes]]:
    """Return the arrays that each node stores for its last run, such as residuals.

    If two runs have equal models and equal residuals, no part of an update was lost or applied
    twice.
    """
    found = list[dict[str, bytes]]()
    for index in range(field.count):
        copy = field.folder / f"copy{index}"  # the running node has locked its database
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(field.state(index), copy)
        database = NodeDatabase(copy)
        newest = next(name for name in database.names() if name.isdecimal())
        records = open_node_store(database, newest).state.array_records
        database.close()
        arrays = {
            f"{r} {k}": array.data for r, record in records.items() for k, array in record.items()
        }
        found.append(arrays)
    return found


class Trial:
    """Makes runs with the processes of one `Field` until all faults are done."""

    def __init__(self, field: Field, args: argparse.Namespace) -> None:
        self.field, self.todo, self.words = field, drawn(args), words_of(args)
        self.faults = Faults(field, random.Random(args.seed))
        self.ill = Ill(self.faults)
        asynchronous = args.algorithm in ASYNCHRONOUS
        self.undisturbed = None if asynchronous else Undisturbed(field, self.words)
        self.seconds = defaultdict[str, list[float]](list)
        self.wrong, self.runs = list[dict[str, Any]](), 0

    def go(self) -> None:
        """Do all the faults, in as many runs as needed."""
        while self.todo and len(self.wrong) < MOST_WRONG:
            self.runs += 1
            run = self.faults.run = TheRun(self.field, f"run{self.runs}", self.words)
            done = list[str]()
            try:
                problems = self._disturbed(run, done)
            except (TimeoutError, OSError, RuntimeError) as error:
                problems = [f"{type(error).__name__}: {error}"]
            if problems:
                self.wrong.append({"run": self.runs, "faults": done, "wrong": problems})
                print(self.wrong[-1], file=sys.stderr, flush=True)
                if not run.over:
                    run.process.terminate()
                    run.process.wait()

    def _disturbed(self, run: TheRun, done: list[str]) -> list[str]:
        eventually(run.has_begun)
        failed, already = self._failed(), self._said(GONE)
        sick = False
        while self.todo and not run.over and sick == (self.todo[0] in SICK and bool(done)):
            kind = self.todo.pop(0)
            done.append(kind)
            self.faults.began = time.monotonic()
            sick = kind in SICK
            getattr(self.ill if sick else self.faults, kind)()
            self.seconds[kind].append(round(time.monotonic() - self.faults.began, 2))
            print(self.runs, run.rounds, kind, self.seconds[kind][-1], file=sys.stderr, flush=True)
        eventually(run.has_ended, 600)
        if not (run.folder / "result.json").is_file():
            return ["it has left no result"]
        found = run.result()
        problems = [] if found["ended"] == "finished" else [f"it has ended with {found['ended']}"]
        problems += [] if done else ["it ended before any fault"]
        if sick:
            said, gone = self._failed() - failed, self._said(GONE) - already
            if not said <= found["failures"] <= said + gone:
                problems.append(f"{found['failures']} failures, {said} and {gone} said")
            return problems
        if self.undisturbed is not None:
            problems += self.undisturbed.differences(run, self.field)
        return problems

    def _said(self, words: str) -> int:
        """Return how often the nodes have logged `words`."""
        return sum(self.field.told(index).count(words) for index in range(self.field.count))

    def _failed(self) -> int:
        """Return the number of messages without a reply; nodes log it once they reply again."""
        said = [self.field.told(index) for index in range(self.field.count)]
        return sum(int(n) for text in said for n in re.findall(rf"{AGAIN} (\d+)", text))

    def report(self) -> dict[str, Any]:
        """Return the findings as a dict for JSON."""
        return {
            "faults": {kind: len(each) for kind, each in self.seconds.items()},
            "runs": self.runs,
            "seconds": {kind: [median(each), max(each)] for kind, each in self.seconds.items()},
            "open": self.wrong,
        }


def words_of(args: argparse.Namespace) -> list[str]:
    """Return a run's overrides."""
    words = [f"algorithm={args.algorithm}", "checkpoint_every=10", "timeout=600"]
    words.append(f"eval_every={args.rounds}")
    if args.algorithm not in ASYNCHRONOUS:
        return [*words, f"rounds={args.rounds}"]
    pushes = [f"strategy.pushes={args.rounds}", "strategy.record_every=5"]
    return [*words, "network=ideal", *pushes]


def drawn(args: argparse.Namespace) -> list[str]:
    """Return the kinds of all faults, in the order in which they are done."""
    kinds = args.kinds.split(",")
    todo = [kind for kind in kinds for _ in range(args.count or USUAL[kind])]
    random.Random(args.seed).shuffle(todo)
    return sorted(todo, key=lambda kind: kind in SICK)


def tried(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Do all faults; return the report."""
    with Field(folder, args.nodes) as field:
        trial = Trial(field, args)
        trial.go()
        return trial.report()


def main() -> None:
    """Print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(USUAL))
    parser.add_argument("--count", type=int, default=0, help="of each kind; 0: as usual")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--algorithm", default="esgd")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for all that is written")
    args = parser.parse_args()
    if unknown := set(args.kinds.split(",")) - set(USUAL):
        parser.error(f"no kind {', '.join(sorted(unknown))}; there are: {', '.join(USUAL)}")
    with orderly_exit():  # so that all started processes end
        if args.keep is not None:
            args.keep.mkdir(parents=True)
            print(json.dumps(tried(args, args.keep), indent=1))
            return
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(tried(args, Path(folder)), indent=1))


if __name__ == "__main__":
    main()
