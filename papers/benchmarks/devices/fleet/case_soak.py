"""Random faults for hours, and nobody helps: `... devices.fleet soak --minutes 120`, as root.

A server, four nodes and runs of eSGD on digits, one after the other, under
`edgewire.engines.keep`. Dead processes are started again after a second. Faults of all kinds
(`soak_faults`) are drawn with the seed: two sequences of them go on at the same time. Root is
needed for full disks.

Each run must end with exit code 0 and the result "finished", and each update must be used or
counted as a failure exactly once. If each node was there in each round, and none has failed or
lost its state, the model must be that of the same run on the local engine. `open` lists the runs
that did not end so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from papers.benchmarks.devices.fleet.soak_faults import RUN, SoakFaults, Supervisor
from papers.benchmarks.timing import ROOT
from tests.system.fault_field import Field

MODEL = "model.safetensors"
LOGS = 3000  # characters of a log that the report of a failed run has


class Soak:
    """Faults in two threads, while runs follow each other."""

    def __init__(self, field: Field, args: argparse.Namespace) -> None:
        self._field, self._args = field, args
        self._words = ["algorithm=esgd", f"rounds={args.rounds}", "checkpoint_every=10"]
        self._words += [f"eval_every={args.rounds}", f"nodes={args.nodes}"]
        self._keeper = Supervisor(field)
        self._faults = SoakFaults(field, self._keeper, args.seed)
        self._done = list[tuple[float, str, int, float]]()  # moment, kind, node, seconds
        self._over, self._wrong = threading.Event(), list[str]()
        self.model = self._undisturbed()

    def report(self) -> dict[str, Any]:
        """Make runs for as long as asked, and return what came of them."""
        threads = [threading.Thread(target=self._disturb, args=(n,), daemon=True) for n in (0, 1)]
        for thread in threads:
            thread.start()
        end, runs = time.monotonic() + 60 * self._args.minutes, list[dict[str, Any]]()
        threading.Timer(60 * self._args.minutes, self._over.set).start()  # the last run ends alone
        while time.monotonic() < end:
            runs.append(self._run(len(runs), end))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        self._over.set()
        for thread in threads:
            thread.join(60)
        self._keeper.close()
        kinds = Counter(kind for _, kind, _, _ in self._done)
        return {
            "seed": self._args.seed,
            "minutes": self._args.minutes,
            "faults": sum(kinds.values()),
            "kinds": dict(sorted(kinds.items())),
            "runs": len(runs),
            "rounds": sum(run.get("rounds", 0) for run in runs),
            "updates": sum(run.get("updates", 0) for run in runs),
            "failures": sum(run.get("failures", 0) for run in runs),
            "same model": sum(run.get("same") is True for run in runs),
            "longest run": max(run["seconds"] for run in runs),
            "open": [run for run in runs if run["wrong"]] + self._wrong,
        }

    def _disturb(self, number: int) -> None:
        """Cause one fault after the other until the end; the pauses are drawn, too."""
        draw = random.Random(f"{self._args.seed} {number}")
        kinds = self._args.kinds.split(",")
        pause = self._args.pause
        while not self._over.wait(draw.uniform(0.2 * pause, 1.8 * pause)):
            kind, node = draw.choice(kinds), draw.randrange(self._args.nodes)
            seconds = draw.uniform(1, self._args.longest)
            began = time.monotonic()
            try:
                getattr(self._faults, kind)(node, seconds)
            except Exception as error:
                self._wrong.append(f"{kind} of node {node}: {type(error).__name__}: {error}")
            self._done.append((began, kind, node, round(time.monotonic() - began, 1)))

    def _run(self, number: int, end: float) -> dict[str, Any]:
        """Let one run be made; return its numbers, and what is wrong in `wrong`."""
        folder, began = self._field.folder / f"run{number}", time.monotonic()
        words = [
            "engine=superlink", f"engine.address=127.0.0.1:{self._field.port}",
            f"engine.certificate={self._field.keys / 'ca.crt'}", *self._words,
        ]  # fmt: skip
        line = [sys.executable, "-m", "edgewire.engines.keep", str(folder), "--", *words]
        before = len(self._keeper.codes)
        self._keeper.run(lambda: self._field.start(line, f"{RUN}{number}.log"))
        while self._keeper.command is not None:
            time.sleep(0.2)
            if time.monotonic() > end + self._args.most:  # a wait without end
                break
        codes = self._keeper.codes[before:]
        ended = time.monotonic()
        lived = [(kind, n) for at, kind, n, took in self._done if at + took > began and at < ended]
        found: dict[str, Any] = {"run": number, "seconds": round(ended - began), "codes": codes}
        found["faults"], found["wrong"] = len(lived), list[str]()
        with suppress(OSError):
            result = json.loads((folder / "result.json").read_text())
            found |= {"rounds": result["round"], "ended": result["ended"]}
            found |= {"updates": result["client_updates"], "failures": result["failures"]}
            nodes = json.loads((folder / "nodes.json").read_text())["nodes"]
            found["messages"] = sum(node["messages"] for node in nodes)
            found["same"] = (folder / MODEL).read_bytes() == self.model
        found["wrong"] = self._problems(found, {kind for kind, _ in lived})
        if found["wrong"]:
            found["lived"] = [f"{kind} {n}" for kind, n in lived]
            with suppress(OSError):
                found["log"] = self._field.said(f"{RUN}{number}.log")[-LOGS:]
        return found

    def _problems(self, found: dict[str, Any], kinds: set[str]) -> list[str]:
        if "ended" not in found:
            return ["it has left no result"]
        problems = [] if found["codes"][-1:] == [0] else [f"exit code {found['codes'][-1:]}"]
        if found["ended"] != "finished":
            problems.append(f"it has ended with {found['ended']}")
        counted, all_of = found["updates"] + found["failures"], found["rounds"] * self._args.nodes
        if counted != found["messages"] or counted > all_of:
            problems.append(f"{counted} updates and failures of {found['messages']} messages")
        lost = found["updates"] < all_of or kinds & SoakFaults.LOSES
        if not found["same"] and not lost:
            problems.append("another model")
        return problems

    def _undisturbed(self) -> bytes:
        folder = self._field.folder / "undisturbed"
        line = [sys.executable, "run.py", *self._words, "engine=local", "engine.workers=1"]
        done = [*line, f"hydra.run.dir={folder}"]
        subprocess.run(done, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return (folder / MODEL).read_bytes()


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=120.0, help="after which no further run begins")
    add("--nodes", type=int, default=4)
    add("--rounds", type=int, default=500, help="of a run")
    add("--seed", type=int, default=0)
    add("--pause", type=float, default=30.0, help="mean seconds between two faults of a sequence")
    add("--longest", type=float, default=40.0, help="seconds of a disturbance")
    add("--most", type=float, default=900.0, help="seconds after the end for the last run")
    add("--kinds", default=",".join(SoakFaults.kinds()))
    add("--keep", type=Path, help="a folder for all that is written")
    args = parser.parse_args(words)
    if "_is_full" in args.kinds and os.geteuid():
        parser.error("full disks need root, who mounts small ones: name other --kinds")
    with ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        field = Field(folder, args.nodes)
        field.give_disk(folder / "superlink")
        with field:
            return Soak(field, args).report()
