"""A run with a node whose memory does not suffice: `... devices.fleet poison --megabytes 330`.

Two nodes train ResNet18. One of them is killed whenever its memory exceeds the limit, as by the
kernel, and is started again after a second. The memory is that of the process alone, without the
pages of files, as a control group counts it. The result has run.py's exit code, the seconds of the
run, how often the node has died, the updates that were used, the failures, and the lines of run.py
that say why.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.system.fault_field import Field, TheRun

WORDS = ["algorithm=fedavg_f2i", "model=resnet18", "local_steps=1", "batch_size=8", "lr=0.01"]
AGAIN = 1.0  # seconds until a dead node is started again


class Limited:
    """Kills node 0 of a field whenever its memory exceeds a limit, and starts it again.

    `deaths`: how often it has died; `most`: the most bytes of its memory.
    """

    def __init__(self, field: Field, limit: float) -> None:
        self.deaths, self.most = 0, 0
        self._field, self._limit, self._over = field, limit, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Leave the node alone."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            node = self._field.nodes[0]
            if node.poll() is not None:
                self.deaths += 1
                time.sleep(AGAIN)
                self._field.begin_node(0)
                continue
            status = Path(f"/proc/{node.pid}/status")
            with suppress(OSError, IndexError):  # it has just ended
                used = int(re.findall(r"RssAnon:\s+(\d+) kB", status.read_text())[0]) * 1024
                self.most = max(self.most, used)
                if used > self._limit:
                    node.kill()
                    node.wait()


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="poison", description=__doc__)
    parser.add_argument("--megabytes", type=float, default=330.0, help="the node's limit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=900.0, help="seconds, after which it stops")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name, Field(Path(name), 2) as field:
        began = time.monotonic()
        limited = Limited(field, args.megabytes * 1e6)
        run = TheRun(field, "run", [*WORDS, f"rounds={args.rounds}"])
        while not run.over and time.monotonic() < began + args.most:
            time.sleep(0.1)
        seconds = time.monotonic() - began
        limited.end()
        said = field.said("run.log")
        report: dict[str, Any] = {
            "exit": run.process.poll(),
            "seconds": round(seconds, 1),
            "deaths": limited.deaths,
            "megabytes": round(limited.most / 1e6),
            "said": [line for line in said.splitlines() if "left out" in line],
        }
        with suppress(OSError):
            result = json.loads((run.folder / "result.json").read_text())
            report |= {key: result[key] for key in ("client_updates", "failures", "ended")}
        return report
