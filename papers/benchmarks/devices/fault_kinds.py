"""Faults that a test causes in real processes during a run; each method is one kind of fault."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from edgewire.deploy.device.throttled_log import SERVER_INFORMED
from edgewire.task.datasets.digits import FILE
from papers.benchmarks.timing import ROOT
from tests.deploy.processes import eventually
from tests.system.fault_field import Field, TheRun

HOOKS = ["claim-before", "claim-after", "answered-before", "answered-after"]
HOOKS += [
    "removal-before",
    "removal-after",
    "commit-after",
    "push-after",
]  # see tests/deploy/killed.py
SHIFTED = str(Path(__file__).parent / "shifted")
KILLED = str(ROOT / "tests/deploy/killed.py")
OLDER = "flwr==1.36.0"  # a node's first import fails with this release
GONE = "objects are gone"  # a node logs this for a message that it may have replied to long ago


def copy_digits(folder: Path) -> None:
    """Copy the digits into a folder, for a device without scikit-learn."""
    shutil.copy(Path(str(files("sklearn").joinpath(FILE))), folder / Path(FILE).name)


class Faults:
    """Faults that must not change a run's result; each method returns once its fault is over."""

    def __init__(self, field: Field, draw: random.Random) -> None:
        self.field, self.draw = field, draw
        self.run: TheRun

    def goes_on(self, rows: int = 2) -> None:
        """Wait until `rows` more rounds are done, or the run is over."""
        before = self.run.rounds
        eventually(lambda: self.run.rounds >= before + rows or self.run.over)

    def resumed(self) -> None:
        """Wait until run.py has ended, then resume the run."""
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
        """Kill a node at a random moment, and restart it."""
        index = self._node()
        time.sleep(self.draw.uniform(0, 0.3))
        self.began = time.monotonic()
        self.field.nodes[index].kill()
        self._again(index)
        self.goes_on()

    def hooked(self) -> None:
        """Kill a node exactly at one of the points `HOOKS` of its work."""
        index, point = self._node(), self.draw.choice(HOOKS)
        trigger = self.field.folder / "trigger"
        self.field.nodes[index].kill()
        self.field.nodes[index].wait()
        self.field.begin_node(index, [KILLED, point, str(trigger), "--"])
        self.goes_on()
        trigger.touch()
        eventually(lambda: self.field.nodes[index].poll() is not None or self.run.over)
        trigger.unlink()
        self.began = time.monotonic()
        self.field.nodes[index].kill()
        self._again(index)
        self.goes_on()

    def cut(self, mode: str = "cut", seconds: float | None = None) -> None:
        """Interrupt a node's link for some seconds."""
        proxy = self.field.proxies[self._node()]
        proxy.set(mode)
        time.sleep(self.draw.uniform(0.2, 4) if seconds is None else seconds)
        proxy.set("open")
        self.goes_on()

    def still(self) -> None:
        """Let no data pass on a node's link for some seconds."""
        self.cut("still")

    def deaf(self) -> None:
        """Lose the server's answers to a node, so that the node repeats its requests."""
        self.cut("deaf", self.draw.uniform(0.05, 0.5))

    def minute(self) -> None:
        """Interrupt a node's link for a minute."""
        self.cut("cut", 60.0)

    def serverapp(self) -> None:
        """Kill the ServerApp, and resume the run."""
        os.kill(eventually(self.field.serverapp), signal.SIGKILL)
        self.resumed()
        self.goes_on()

    def superlink(self) -> None:
        """Kill the server and restart it, and resume the run."""
        self.field.server.kill()
        self.field.server.wait()
        self.field.begin_server()
        self.resumed()
        self.goes_on()

    def command(self) -> None:
        """Kill run.py; the server continues the run, and run.py follows it again with `resume=`."""
        self.run.process.kill()
        self.resumed()
        self.goes_on()

    def clock(self) -> None:
        """Shift a node's clock by 400 s, then correct it."""
        index, off = self._node(), self.draw.choice(["400", "-400"])
        before = self.field.told(index).count("clock is")
        self.field.nodes[index].kill()
        self._again(index, first=SHIFTED, CLOCK_OFF=off)
        eventually(lambda: self.field.told(index).count("clock is") > before)
        self.field.nodes[index].kill()
        self._again(index)
        self.goes_on()

    def disk(self) -> None:
        """Fill a node's disk for some seconds. The node may still have room in its database."""
        index, rows = self._node(), self.run.rounds
        before, filler = self.field.told(index).count("cannot write"), self.field.state(index) / "x"
        if not filler.parent.is_mount():
            raise RuntimeError("a disk of its own takes root")
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        eventually(
            lambda: (
                self.field.told(index).count("cannot write") > before
                or self.run.rounds > rows + 5
                or self.run.over
            )
        )
        filler.unlink()
        self.goes_on()

    def version(self) -> None:
        """Start a node with an older Flower: it must name the needed release. Restart the node."""
        index = self._node()
        self.field.nodes[index].kill()
        self.field.nodes[index].wait()
        before = self.field.told(index)
        self.field.begin_node(index, first=str(self._older()))
        code = eventually(lambda: self.field.nodes[index].poll(), 60)
        said = self.field.told(index)[len(before) :]
        if code != 2 or "pip install" not in said or "Traceback" in said:
            raise RuntimeError(f"a node with {OLDER} has ended with {code}: {said}")
        self.field.begin_node(index)
        self.goes_on()

    def _older(self) -> Path:
        """Return a folder with an older Flower; install it if the folder does not exist."""
        folder = self.field.folder / "older"
        if not folder.exists():
            tool = [shutil.which("uv") or "uv", "pip"]
            tool = [sys.executable, "-m", "pip"] if find_spec("pip") else tool
            words = ["install", "--quiet", "--no-deps", "--target", str(folder), OLDER]
            subprocess.run([*tool, *words], check=True)
        return folder


class Ill:
    """Faults that change a run's result: the node must log them, and the run must end."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.field = faults, faults.field

    def data(self) -> None:
        """Start a node without its data, then provide the data."""
        bare, place = self.field.folder / "bare", self.field.folder / "data"
        for each in (bare, place):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()
        (bare / "sitecustomize.py").write_text("import sys\n\nsys.modules['sklearn'] = None\n")
        said = self.field.told(0).count(SERVER_INFORMED)
        self.field.nodes[0].kill()
        self.field.nodes[0].wait()
        self.field.begin_node(0, first=str(bare), EDGEWIRE_DATA=str(place))
        eventually(lambda: self.field.told(0).count(SERVER_INFORMED) > said + 1)
        copy_digits(place)
        self.faults.goes_on(5)

    def lost(self) -> None:
        """Delete a node's stored state."""

        def remove(state: Path) -> None:
            for file in state.glob("node.db*"):
                file.unlink()

        self._without(remove)

    def old(self) -> None:
        """Replace a node's stored state by an older copy."""
        index, copy = 0, self.field.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        self.field.nodes[index].kill()
        self.field.nodes[index].wait()
        shutil.copytree(self.field.state(index), copy)
        self.field.begin_node(index)
        self.faults.goes_on(5)

        def restore(state: Path) -> None:
            for each in state.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            shutil.copytree(copy, state, dirs_exist_ok=True)

        self._without(restore)

    def _without(self, change: Callable[[Path], object]) -> None:
        said = self.field.told(0).count("starts anew")
        self.field.nodes[0].kill()
        self.field.nodes[0].wait()
        change(self.field.state(0))
        self.field.begin_node(0)
        self.faults.goes_on()
        eventually(lambda: self.field.told(0).count("starts anew") > said, 30)
