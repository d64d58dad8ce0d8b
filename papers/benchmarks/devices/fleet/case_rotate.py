"""Certificate, CA and keys change during a run: `... devices.fleet rotate`.

Two nodes train on digits. During the run

- `certificate`: the server's certificate is renewed;
- `authority`: `keys ca` makes another CA, and the server gets a certificate of it. The nodes
  connect anew, though they know the old CA alone. Then the old CA is dropped, and each node starts
  again with the new ca.crt;
- `key`: each node gets another key by `keys register --renew`, and starts again with it.

After each of them the server's old connections are cut, so that nodes make new ones. The result has
for each of them the seconds and the rounds until new connections work, the run's failures, and what
differs from the same run without any change.
"""

from __future__ import annotations

import argparse
import signal
import ssl
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgewire.deploy.keys import main as keys
from papers.benchmarks.devices.faults import Undisturbed
from tests.deploy.processes import eventually
from tests.system.fault_field import NAMES, Field, TheRun

WORDS = ["algorithm=fedavg_f2i", "model=mlp", "timeout=600", "checkpoint_every=10"]
FIRST = 10  # rounds before the first change, and between two


class Changes:
    """The changes of one run."""

    def __init__(self, field: Field, run: TheRun) -> None:
        self._field, self._run = field, run

    def certificate(self) -> None:
        """Renew the server's certificate."""
        self._renewed()
        self._connect_anew()

    def authority(self) -> None:
        """Change the CA."""
        self._keys("ca")
        self._renewed()
        self._connect_anew()
        self._keys("ca", "--drop-old")
        for index in self._field.nodes:
            self._start_again(index)

    def key(self) -> None:
        """Change the keys of all nodes."""
        for index in self._field.nodes:
            name = NAMES[index]
            for file in (self._field.keys / "nodes").glob(f"{name}.*"):
                file.rename(file.with_name(f"old-{file.name}"))
            self._keys("node", name)
            self._keys("register", "--renew", name)
            self._start_again(index)

    def _keys(self, *words: str) -> None:
        where = ["--keys", str(self._field.keys), "--superlink", f"127.0.0.1:{self._field.port}"]
        if keys([*where, *words]):
            raise RuntimeError(f"keys {' '.join(words)} has failed")

    def _renewed(self) -> None:
        """Renew the server's certificate; return when new connections get it."""
        before = self._shown()
        self._keys("server", "--renew", "127.0.0.1")
        eventually(lambda: self._shown() != before)

    def _shown(self) -> str:
        with suppress(OSError):
            return ssl.get_server_certificate(("127.0.0.1", self._field.port))
        return ""

    def _connect_anew(self) -> None:
        for each in self._field.proxies:
            each.set("cut")
            each.set("open")
        self._further()

    def _start_again(self, index: int) -> None:
        """End a node as systemd's reload does, and start it."""
        node = self._field.nodes[index]
        node.send_signal(signal.SIGHUP)
        node.wait()
        self._field.begin_node(index)
        self._further()

    def _further(self) -> None:
        """Return when all nodes have done further rounds."""
        before = self._run.rounds
        eventually(lambda: self._run.over or self._run.rounds > before + 1)


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="rotate", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--steps", type=int, default=50, help="local steps of a round")
    args = parser.parse_args(words)
    overrides = [*WORDS, f"rounds={args.rounds}", f"local_steps={args.steps}"]
    overrides.append(f"eval_every={args.rounds}")
    with tempfile.TemporaryDirectory() as name, Field(Path(name), 2) as field:
        undisturbed = Undisturbed(field, overrides)
        run = TheRun(field, "run", overrides)
        changes, report = Changes(field, run), dict[str, Any]()
        calls: tuple[Callable[[], None], ...]
        calls = changes.certificate, changes.authority, changes.key
        for call in calls:
            start = run.rounds + FIRST
            eventually(lambda start=start: run.over or run.rounds > start)  # type: ignore[misc]
            began, before = time.monotonic(), run.rounds
            call()
            report[call.__name__] = {
                "seconds": round(time.monotonic() - began, 1),
                "rounds": run.rounds - before,
                "run_over": run.over,
            }
        eventually(run.has_ended, 600)
        result = run.result()
        return report | {
            "rounds": args.rounds,
            "failures": result["failures"],
            "updates": result["client_updates"],
            "differences": undisturbed.differences(run, field),
        }
