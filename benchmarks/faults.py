"""Runs of a real server, real nodes and a real ServerApp, and faults done to all of them.

    python -m benchmarks.faults        # JSON on stdout; half an hour, as root (for a full disk)
    python -m benchmarks.faults --kinds killed,serverapp --count 10 --nodes 2 --algorithm adacomp

Digits, TLS and keys on. Faults come one after the other, each once the one before is over and a
round more is done. A run that was ended is resumed by its one command. Synchronous runs are held
against the same run on the local engine: the model's bytes, what was sent up, what was used. `open`
lists every fault that did not end as it has to. Seconds are from a fault to the next round (for a
node that is killed: it is started again at once).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fault_field import Field, TheRun, eventually

HOOKS = ["claim-before", "claim-after", "answered-before", "answered-after", "rename-before"]
HOOKS += ["rename-after", "commit-after", "push-after"]  # see tests/deploy/killed.py
SHIFTED = str(Path(__file__).parent / "shifted")
SAME = ("accuracy", "loss", "uplink_bytes", "client_updates")
ASYNCHRONOUS = ("adacomp", "asgd")
MOST_WRONG = 3  # runs: then it is of no use to go on


class Faults:
    """What can be done to a field and its run; each returns once it is over."""

    def __init__(self, field: Field, draw: random.Random) -> None:
        self.field, self.draw = field, draw
        self.run: TheRun

    def goes_on(self, rows: int = 2) -> None:
        """Wait until so many rounds more are done, or the run is over."""
        before = self.run.rounds
        eventually(lambda: self.run.rounds >= before + rows or self.run.over)

    def resumed(self) -> None:
        """Wait for the end of this life, and begin the next."""
        eventually(lambda: self.run.over)
        if self.run.process.returncode:
            rows = self.run.rounds
            self.run.resume()
            eventually(lambda: self.run.rounds not in (0, rows) or self.run.over)

    def _again(self, index: int, **env: str) -> None:
        self.field.nodes[index].wait()
        self.field.begin_node(index, **env)

    def _node(self) -> int:
        return self.draw.randrange(self.field.count)

    def killed(self) -> None:
        """A node is killed at a moment."""
        index = self._node()
        time.sleep(self.draw.uniform(0, 0.3))
        self.began = time.monotonic()
        self.field.nodes[index].kill()
        self._again(index)
        self.goes_on()

    def hooked(self) -> None:
        """A node is killed right at a point of its work."""
        index, point = self._node(), self.draw.choice(HOOKS)
        trigger = self.field.folder / "trigger"
        self.field.nodes[index].kill()
        self.field.nodes[index].wait()
        self.field.begin_node(index, POINT=f"{point} {trigger}")
        self.goes_on()
        trigger.touch()
        eventually(lambda: self.field.nodes[index].poll() is not None or self.run.over)
        trigger.unlink()
        self.began = time.monotonic()
        self.field.nodes[index].kill()
        self._again(index)
        self.goes_on()

    def cut(self, mode: str = "cut", seconds: float | None = None) -> None:
        """A link is gone for some seconds."""
        proxy = self.field.proxies[self._node()]
        proxy.set(mode)
        time.sleep(self.draw.uniform(0.2, 4) if seconds is None else seconds)
        proxy.set("open")
        self.goes_on()

    def still(self) -> None:
        """Nothing moves on a link for some seconds."""
        self.cut("still")

    def deaf(self) -> None:
        """What the server answers is lost: what was sent is sent again."""
        self.cut("deaf", self.draw.uniform(0.05, 0.5))

    def minute(self) -> None:
        """A link is gone for a minute."""
        self.cut("cut", 60.0)

    def serverapp(self) -> None:
        """The ServerApp is killed; the run is resumed."""
        os.kill(eventually(self.field.serverapp), signal.SIGKILL)
        self.resumed()
        self.goes_on()

    def superlink(self) -> None:
        """The whole server is killed and started again; the run is resumed."""
        self.field.server.kill()
        self.field.server.wait()
        self.field.begin_server()
        self.resumed()
        self.goes_on()

    def command(self) -> None:
        """run.py is killed: the run goes on at the server, and is followed again."""
        self.run.process.kill()
        self.resumed()
        self.goes_on()

    def clock(self) -> None:
        """A node's clock is off by 400 s; then it is set."""
        index, off = self._node(), self.draw.choice(["400", "-400"])
        before = self.field.said(index).count("clock is")
        self.field.nodes[index].kill()
        self._again(index, FIRST=SHIFTED, CLOCK_OFF=off)
        eventually(lambda: self.field.said(index).count("clock is") > before)
        self.field.nodes[index].kill()
        self._again(index)
        self.goes_on()

    def disk(self) -> None:
        """A node's disk is full for some seconds."""
        index = self._node()
        before, filler = self.field.said(index).count("cannot write"), self.field.state(index) / "x"
        if not filler.parent.is_mount():
            raise RuntimeError("a disk of its own takes root")
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        eventually(lambda: self.field.said(index).count("cannot write") > before or self.run.over)
        filler.unlink()
        self.goes_on()


class Ill:
    """Faults after which a run is another one: what counts is that it says so, and ends."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.field = faults, faults.field

    def lost(self) -> None:
        """A node's memory is gone."""
        self._without(lambda state: shutil.rmtree(state / "runs"))

    def old(self) -> None:
        """An older copy of a node's memory is put back."""
        index, copy = 0, self.field.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        self.field.nodes[index].kill()
        self.field.nodes[index].wait()
        shutil.copytree(self.field.state(index), copy)
        self.field.begin_node(index)
        self.faults.goes_on(5)

        def put_back(state: Path) -> None:
            for each in state.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            shutil.copytree(copy, state, dirs_exist_ok=True)

        self._without(put_back)

    def _without(self, change: Callable[[Path], None]) -> None:
        said = self.field.said(0).count("starts anew")
        self.field.nodes[0].kill()
        self.field.nodes[0].wait()
        change(self.field.state(0))
        self.field.begin_node(0)
        self.faults.goes_on()
        eventually(lambda: self.field.said(0).count("starts anew") > said, 30)


USUAL = {"killed": 60, "hooked": 40, "cut": 30, "still": 16, "deaf": 24, "serverapp": 6}
USUAL |= {"superlink": 6, "command": 6, "clock": 8, "disk": 6, "minute": 1, "lost": 4, "old": 4}


def reference(folder: Path, words: list[str], nodes: int) -> Path:
    """Do the run on the local engine."""
    here = folder / "undisturbed"
    line = ["run.py", *words, f"nodes={nodes}", "engine=local", "engine.workers=1"]
    done = [sys.executable, *line, f"hydra.run.dir={here}"]
    subprocess.run(done, cwd=Path(__file__).parents[1], check=True, stdout=subprocess.DEVNULL)
    return here


def differences(run: TheRun, undisturbed: Path | None) -> list[str]:
    """Return in what a run is not as it has to be."""
    if not (run.folder / "result.json").is_file():
        return ["it has left no result"]
    found = run.result()
    wrong = [] if found["ended"] == "finished" else [f"it has ended with {found['ended']}"]
    if undisturbed is not None:
        other = json.loads((undisturbed / "result.json").read_text())
        wrong += [f"{key}: {found[key]} {other[key]}" for key in SAME if found[key] != other[key]]
        model = "model.safetensors"
        if (run.folder / model).read_bytes() != (undisturbed / model).read_bytes():
            wrong.append("another model")
        if found["failures"]:
            wrong.append(f"{found['failures']} failures")
    return wrong


def tried(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Do all the faults to as many runs as it takes."""
    words = [f"algorithm={args.algorithm}", "checkpoint_every=10", "timeout=600"]
    asynchronous = args.algorithm in ASYNCHRONOUS
    if asynchronous:
        words += [f"strategy.pushes={args.rounds}", "network=ideal", f"eval_every={args.rounds}"]
        words += ["strategy.record_every=5"]
    else:
        words += [f"rounds={args.rounds}", f"eval_every={args.rounds}"]
    undisturbed = None if asynchronous else reference(folder, words, args.nodes)
    wanted = {kind: args.count or USUAL[kind] for kind in args.kinds.split(",")}
    draw = random.Random(args.seed)
    todo = [kind for kind, count in wanted.items() for _ in range(count)]
    draw.shuffle(todo)
    todo.sort(key=lambda kind: kind in ("lost", "old"))
    seconds, wrong, runs = defaultdict[str, list[float]](list), list[dict[str, Any]](), 0
    with Field(folder, args.nodes) as field:
        faults = Faults(field, draw)
        ill = Ill(faults)
        while todo and len(wrong) < MOST_WRONG:
            runs += 1
            faults.run = run = TheRun(field, f"run{runs}", words)
            done = list[str]()
            try:
                eventually(run.has_begun)
                sick = False
                while todo and not run.over and sick == (todo[0] in ("lost", "old") and bool(done)):
                    kind = todo.pop(0)
                    done.append(kind)
                    faults.began = time.monotonic()
                    sick = kind in ("lost", "old")
                    getattr(ill if sick else faults, kind)()
                    seconds[kind].append(round(time.monotonic() - faults.began, 2))
                    print(runs, run.rounds, kind, seconds[kind][-1], file=sys.stderr, flush=True)
                eventually(run.has_ended, 600)
                problems = differences(run, None if sick else undisturbed)
                problems += [] if done else ["it ended before any fault"]
            except (TimeoutError, OSError, RuntimeError) as error:
                problems = [f"{type(error).__name__}: {error}"]
            if problems:
                wrong.append({"run": runs, "faults": done, "wrong": problems})
                print(wrong[-1], file=sys.stderr, flush=True)
                if not run.over:
                    run.process.terminate()
                    run.process.wait()
    return {
        "faults": {kind: len(each) for kind, each in seconds.items()},
        "runs": runs,
        "seconds": {kind: [median(each), max(each)] for kind, each in seconds.items()},
        "open": wrong,
    }


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(USUAL))
    parser.add_argument("--count", type=int, default=0, help="of each kind; 0: as usual")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--algorithm", default="esgd")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for all that is written")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with it
    if args.keep is not None:
        args.keep.mkdir(parents=True)
        print(json.dumps(tried(args, args.keep), indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(tried(args, Path(folder)), indent=1))


if __name__ == "__main__":
    main()
