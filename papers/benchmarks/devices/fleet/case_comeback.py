"""A run that is kept, with faults: `python -m papers.benchmarks.devices.fleet comeback`.

`python -m edgewire.engines.keep` makes a run on two nodes. The server is restarted 5 seconds after
each end, as by systemd. Nobody does anything else. The faults come one after the other, each when
the run has gone on after the one before:

* `server`, `serverapp`, `both`: a kill of these processes;
* `starting`: a kill of the server, and of the new ServerApp while its task is STARTING;
* `stop`: the server is stopped for some seconds (SIGSTOP), at a random moment of a round;
* `clock`: the server's clock steps by 600 s and stays there, while the nodes' clocks are right.

The result has, for each fault, the seconds until the next round: from the kill of the last process,
the SIGCONT or the step, until the history has more rows than at that moment. `same` says whether
the model is that of the local engine, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from papers.benchmarks.devices.cases import chosen
from papers.benchmarks.devices.fault_kinds import SHIFTED
from papers.benchmarks.timing import ROOT
from tests.deploy.processes import eventually
from tests.system.fault_field import Field, TheRun

WORDS = ["algorithm=esgd", "batch_size=16", "checkpoint_every=10"]
MODEL = "model.safetensors"
RESTART = 5.0  # seconds, as in the unit of the server
STEP = 600  # seconds of the clock's step
BETWEEN = 25  # rounds between two faults
MOST = 400.0  # seconds for which a fault's next round is awaited


class Supervised(Field):
    """A field whose server is started again after each end, with a clock that can be stepped."""

    def __init__(self, folder: Path, nodes: int) -> None:
        super().__init__(folder, nodes)
        self.step, self.over = folder / "clock", threading.Event()
        self.environment |= {"CLOCK_FILE": str(self.step)}
        self.supervisor = threading.Thread(target=self._supervise, daemon=True)

    def __exit__(self, *error: object) -> None:
        self.over.set()
        if self.supervisor.is_alive():
            self.supervisor.join()
        super().__exit__(*error)

    def begin_server(self) -> None:
        """Start the server with a clock that `step` shifts; the ServerApp has the same clock."""
        plain = self.environment["PYTHONPATH"]
        self.environment["PYTHONPATH"] = os.pathsep.join([SHIFTED, plain])
        super().begin_server()
        self.environment["PYTHONPATH"] = plain

    def _supervise(self) -> None:
        while not self.over.wait(0.05):
            if self.server.poll() is not None and not self.over.wait(RESTART):
                self.begin_server()


class Kept(TheRun):
    """A run of `edgewire.engines.keep`."""

    def begin(self, words: list[str]) -> None:
        """Start the command with these words, but the folder, which it adds itself."""
        command = [sys.executable, "-m", "edgewire.engines.keep", str(self.folder), "--"]
        self.process = self._field.start([*command, *words[:-1]], f"{self.folder.name}.log")


class Comeback:
    """The faults; each method returns when its fault is over, before the run goes on."""

    def __init__(self, field: Supervised, stopped: float) -> None:
        self._field, self._stopped, self._draw = field, stopped, random.Random(0)

    def server(self) -> None:
        """Kill the server."""
        self._field.server.kill()

    def serverapp(self) -> None:
        """Kill the ServerApp."""
        os.kill(eventually(self._field.serverapp), signal.SIGKILL)

    def both(self) -> None:
        """Kill the ServerApp and the server."""
        self.serverapp()
        self.server()

    def starting(self) -> None:
        """Kill the server; then kill the process that starts as ServerApp, and the server again."""
        old = self._field.server
        self.server()
        eventually(lambda: self._field.server is not old)
        self.serverapp()
        time.sleep(1.0)  # the next process for the same task
        self.both()

    def stop(self) -> None:
        """Stop the server's process for some seconds."""
        time.sleep(self._draw.uniform(0, 0.2))
        number = self._field.server.pid
        os.kill(number, signal.SIGSTOP)
        time.sleep(self._stopped)
        os.kill(number, signal.SIGCONT)

    def clock(self) -> None:
        """Let the server's clock step."""
        self._field.step.write_text(str(STEP))


def local_model(folder: Path, rounds: int, nodes: int) -> bytes:
    """Return the model of the same run on the local engine."""
    words = [*WORDS, f"rounds={rounds}", f"eval_every={rounds}", f"nodes={nodes}", "engine=local"]
    command = [sys.executable, "run.py", *words, "engine.workers=1", f"hydra.run.dir={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return (folder / MODEL).read_bytes()


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    kinds = ["server", "serverapp", "both", "starting", "stop", "clock"]
    parser = argparse.ArgumentParser(prog="comeback", description=__doc__)
    parser.add_argument("--faults", default=",".join(kinds))
    parser.add_argument("--stopped", type=float, default=90.0, help="seconds of SIGSTOP")
    parser.add_argument("--keep", type=Path, help="a new folder for all that is written")
    args = parser.parse_args(words)
    faults = list(chosen(dict(zip(kinds, kinds, strict=True)), args.faults))
    rounds = 2 * BETWEEN * (len(faults) + 1)
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        folder.mkdir(exist_ok=True)
        expected = local_model(folder / "local", rounds, 2)
        with Supervised(folder, 2) as field:
            field.supervisor.start()
            run = Kept(field, "run", [*WORDS, f"rounds={rounds}", f"eval_every={rounds}"])
            seconds = dict[str, float]()
            comeback = Comeback(field, args.stopped)
            for fault in faults:
                eventually(lambda before=run.rounds: run.rounds > before + BETWEEN or run.over)
                make: Callable[[], None] = getattr(comeback, fault)
                make()
                began, before = time.monotonic(), run.rounds
                eventually(lambda before=before: run.rounds > before or run.over, MOST)
                seconds[fault] = round(time.monotonic() - began, 1)
                print(fault, seconds[fault], file=sys.stderr, flush=True)
            eventually(run.has_ended, MOST)
            report: dict[str, Any] = {"exit": run.process.returncode, "seconds": seconds}
            report["said"] = [each for each in field.said("run.log").splitlines() if "exit" in each]
            if report["exit"] == 0:
                found = run.result()
                report |= {key: found[key] for key in ("client_updates", "failures", "ended")}
                report["same"] = (run.folder / MODEL).read_bytes() == expected
            return report
