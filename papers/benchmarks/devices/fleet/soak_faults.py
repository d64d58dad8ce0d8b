"""The faults of the case `soak`: each is a method that ends when its disturbance is over.

A method's arguments are a node's number and the seconds that the disturbance lasts. Nobody helps
afterwards: a `Supervisor` starts dead processes again, as systemd does.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from edgewire.deploy.certificates import CA, SERVER, make_server, private_key
from papers.benchmarks.devices.fault_kinds import HOOKS, KILLED, SHIFTED
from tests.deploy.processes import descendants
from tests.system.fault_field import Field

AGAIN = 1.0  # seconds until a dead process is started again
SERVER_PROCESS, RUN = "server", "run"  # names of processes; a node's name is its number
LAST = (0, 2, 130)  # exit codes after which systemd does not start the run's command again
BLOCK = 1 << 12  # bytes that a power cut may damage
FILLER = "filler"  # the file that fills a disk


class Supervisor:
    """Starts the server, the nodes and the run's command again when they have ended.

    `settings`: the variables and the first module folder with which a process is started. `codes`:
    the exit codes of the run's command, which is not started again after those in `LAST`.
    """

    def __init__(self, field: Field) -> None:
        self.field, self.codes = field, list[int]()
        self.settings: dict[str, dict[str, str]] = {}
        self.programs: dict[str, list[str]] = {}
        self._held: dict[str, int] = {}
        self._lock, self._over = threading.RLock(), threading.Event()
        self._command: Callable[[], subprocess.Popen[bytes]] | None = None
        self.command: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Start nothing more."""
        self._over.set()
        self._thread.join()

    def run(self, command: Callable[[], subprocess.Popen[bytes]]) -> None:
        """Start a run's command, and start it again until it has ended with an exit code."""
        with self._lock:
            self._command, self.command = command, command()

    def process(self, name: str) -> subprocess.Popen[bytes] | None:
        """Return a process."""
        if name == RUN:
            return self.command
        return self.field.server if name == SERVER_PROCESS else self.field.nodes[int(name)]

    @contextmanager
    def down(self, *names: str, by: signal.Signals = signal.SIGKILL) -> Iterator[None]:
        """Within this context these processes have ended, and are not started again."""
        with self._lock:
            for name in names:
                self._held[name] = self._held.get(name, 0) + 1
        try:
            for name in names:
                self.send(name, by)
                if process := self.process(name):
                    process.wait()
            yield
        finally:
            with self._lock:
                for name in names:
                    self._held[name] -= 1

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process; SIGKILL also reaches what the server and a run started."""
        process = self.process(name)
        if process is None or process.poll() is not None:
            return
        below = descendants(process.pid) if number == signal.SIGKILL else []
        for each in [process.pid, *below]:
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for name in [SERVER_PROCESS, *map(str, self.field.nodes), RUN]:
                process = self.process(name)
                if process is None or process.poll() is None or self._held.get(name):
                    continue
                if name == RUN:
                    self.codes.append(process.returncode)
                    if process.returncode in LAST:
                        self.command = None
                        continue
                with suppress(ProcessLookupError):  # what it has started and left
                    os.killpg(process.pid, signal.SIGKILL)
                self._over.wait(AGAIN)
                with self._lock:
                    if not self._held.get(name) and not self._over.is_set():
                        self._start(name)

    def _start(self, name: str) -> None:
        settings = self.settings.get(name, {})
        if name == RUN:
            assert self._command is not None
            self.command = self._command()
        elif name == SERVER_PROCESS:
            self.field.start_server(**settings)
        else:
            program = self.programs.get(name, ["-m", "edgewire.deploy.node"])
            self.field.begin_node(int(name), program, **settings)


class SoakFaults:
    """All kinds of faults; `LOSES` names those after which a node has lost its state."""

    LOSES = frozenset({"state_is_lost", "state_is_old", "power_cut_damages_database"})
    GIVES_UP = frozenset({"memory_limit"})  # its messages may be answered by an error

    def __init__(self, field: Field, keeper: Supervisor, seed: int) -> None:
        self._field, self._keeper, self._draw = field, keeper, random.Random(seed)
        self._lock = threading.Lock()

    @classmethod
    def kinds(cls) -> list[str]:
        """Return the names of all kinds."""
        return [name for name in vars(cls) if name[0] != "_" and name.islower() and name != "kinds"]

    # of a node's process

    def node_is_killed(self, node: int, seconds: float) -> None:
        """Kill a node."""
        self._keeper.send(str(node), signal.SIGKILL)

    def node_is_killed_at_a_point(self, node: int, seconds: float) -> None:
        """Kill a node at a chosen point of its work."""
        name, point = str(node), self._draw.choice(HOOKS)
        trigger = self._field.folder / f"trigger{node}"
        with self._keeper.down(name):
            self._keeper.programs[name] = [KILLED, point, str(trigger), "--"]
        time.sleep(10)
        trigger.touch()
        time.sleep(seconds)
        trigger.unlink()
        self._keeper.programs.pop(name, None)

    def node_is_stopped_by_its_service(self, node: int, seconds: float) -> None:
        """End a node in order."""
        with self._keeper.down(str(node), by=signal.SIGTERM):
            pass

    def node_is_frozen(self, node: int, seconds: float) -> None:
        """Stop a node's process for some time."""
        self._frozen([self._pid(str(node))], seconds)

    def node_is_off(self, node: int, seconds: float) -> None:
        """Turn a node off for some time."""
        with self._keeper.down(str(node)):
            time.sleep(seconds)

    def node_has_a_slow_core(self, node: int, seconds: float) -> None:
        """Let a node's process work for a tenth of the time."""
        self._slow(str(node), seconds)

    def memory_limit(self, node: int, seconds: float) -> None:
        """Kill a node whenever it needs more memory than now, and a little more."""
        limit, until = 1.01 * (_memory(self._pid(str(node))) or 3e8), time.monotonic() + seconds
        while time.monotonic() < until:
            if _memory(self._pid(str(node))) > limit:
                self._keeper.send(str(node), signal.SIGKILL)
            time.sleep(0.01)

    def clock_is_ahead(self, node: int, seconds: float) -> None:
        """Let a node's clock be 400 s ahead for some time."""
        self._clock(str(node), "400", seconds)

    def clock_is_behind(self, node: int, seconds: float) -> None:
        """Let a node's clock be 600 s behind for some time."""
        self._clock(str(node), "-600", seconds)

    # of a node's disk

    def power_cut_damages_database(self, node: int, seconds: float) -> None:
        """Kill a node, and damage a part of its database."""
        self._damaged(node, "node.db")

    def power_cut_cuts_the_journal(self, node: int, seconds: float) -> None:
        """Kill a node, and cut the last bytes of its database's journal."""
        with self._keeper.down(str(node)), suppress(OSError):
            file = self._field.state(node) / "node.db-wal"
            os.truncate(file, max(0, file.stat().st_size - self._draw.randrange(1, 500)))

    def power_cut_empties_the_identity(self, node: int, seconds: float) -> None:
        """Kill a node, and empty its node.json."""
        with self._keeper.down(str(node)), suppress(OSError):
            os.truncate(self._field.state(node) / "node.json", 0)

    def power_cut_damages_the_app(self, node: int, seconds: float) -> None:
        """Kill a node, and damage a file of its stored app."""
        with self._keeper.down(str(node)):
            files = sorted(self._field.state(node).glob("apps/**/*.py"))
            if files:
                os.truncate(self._draw.choice(files), 0)

    def apps_are_gone(self, node: int, seconds: float) -> None:
        """Kill a node, and remove its stored apps."""
        with self._keeper.down(str(node)):
            shutil.rmtree(self._field.state(node) / "apps", ignore_errors=True)

    def state_is_lost(self, node: int, seconds: float) -> None:
        """Give a node a new card."""
        with self._keeper.down(str(node)):
            _empty(self._field.state(node))

    def state_is_old(self, node: int, seconds: float) -> None:
        """Put a copy of a node's folder back that is some seconds old."""
        copy = Path(tempfile.mkdtemp(dir=self._field.folder))
        state, without = self._field.state(node), shutil.ignore_patterns(FILLER)
        with self._keeper.down(str(node)):
            shutil.copytree(state, copy, dirs_exist_ok=True, ignore=without)
        time.sleep(seconds)
        with self._keeper.down(str(node)):
            _empty(state)
            shutil.copytree(copy, state, dirs_exist_ok=True)
        shutil.rmtree(copy)

    def disk_is_full(self, node: int, seconds: float) -> None:
        """Fill a node's disk for some time."""
        self._full(self._field.state(node), seconds)

    # of a node's link

    def link_is_cut(self, node: int, seconds: float) -> None:
        """Cut a node's link for some time."""
        self._link(node, "cut", seconds)

    def link_stalls(self, node: int, seconds: float) -> None:
        """Let no data pass on a node's link for some time."""
        self._link(node, "still", seconds)

    def answers_are_lost(self, node: int, seconds: float) -> None:
        """Lose the server's answers to a node."""
        self._link(node, "deaf", min(seconds, 5))

    def link_loses_connections(self, node: int, seconds: float) -> None:
        """Break connections of a node at random."""
        self._link(node, "loss", seconds)

    def link_is_slow(self, node: int, seconds: float) -> None:
        """Let a node's link pass 64 kB in a quarter of a second."""
        self._link(node, "slow", seconds)

    def address_changes(self, node: int, seconds: float) -> None:
        """Give a node another address: its connections stall until TCP's keepalive ends them."""
        self._field.proxies[node].move()

    def link_flaps(self, node: int, seconds: float) -> None:
        """Cut a node's link again and again."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._link(node, "cut", 0.3)
            time.sleep(0.7)

    # of the server's machine

    def server_is_killed(self, node: int, seconds: float) -> None:
        """Kill the server with its ServerApp."""
        self._keeper.send(SERVER_PROCESS, signal.SIGKILL)

    def server_is_stopped_by_its_service(self, node: int, seconds: float) -> None:
        """End the server in order."""
        with self._keeper.down(SERVER_PROCESS, by=signal.SIGTERM):
            pass

    def server_is_off(self, node: int, seconds: float) -> None:
        """Turn the server off for some time."""
        with self._keeper.down(SERVER_PROCESS):
            time.sleep(seconds)

    def server_is_frozen(self, node: int, seconds: float) -> None:
        """Stop the server's process for some time, up to a minute."""
        self._frozen([self._pid(SERVER_PROCESS)], 2 * seconds)

    def server_has_a_slow_core(self, node: int, seconds: float) -> None:
        """Let the server's process work for a tenth of the time."""
        self._slow(SERVER_PROCESS, seconds)

    def serverapp_is_killed(self, node: int, seconds: float) -> None:
        """Kill the ServerApp."""
        with suppress(ProcessLookupError):
            if number := self._field.serverapp():
                os.kill(number, signal.SIGKILL)

    def serverapp_is_frozen(self, node: int, seconds: float) -> None:
        """Stop the ServerApp's process for some time."""
        self._frozen([self._field.serverapp()], 2 * seconds)

    def command_is_killed(self, node: int, seconds: float) -> None:
        """Kill run.py, or the command that keeps it."""
        command = self._keeper.command
        numbers = [command.pid, *descendants(command.pid)] if command else []
        with suppress(ProcessLookupError):
            if numbers:
                os.kill(self._draw.choice(numbers), signal.SIGKILL)

    def server_machine_reboots(self, node: int, seconds: float) -> None:
        """Kill the server, its ServerApp and the run's command together."""
        with self._keeper.down(SERVER_PROCESS, RUN):
            time.sleep(seconds)

    def server_disk_is_full(self, node: int, seconds: float) -> None:
        """Fill the server's disk for some time."""
        self._full(self._field.folder / "superlink", seconds)

    def server_clock_steps(self, node: int, seconds: float) -> None:
        """Let the server's clock be 600 s ahead for some time."""
        self._clock(SERVER_PROCESS, "600", seconds)

    def certificate_is_renewed(self, node: int, seconds: float) -> None:
        """Renew the server's certificate."""
        with self._lock:
            make_server(self._field.keys, ["127.0.0.1"], renew=True)

    def certificate_has_expired(self, node: int, seconds: float) -> None:
        """Let the server have an expired certificate for some time, across a restart."""
        with self._lock:
            with self._keeper.down(SERVER_PROCESS):
                expire(self._field.keys)
            time.sleep(seconds)
            make_server(self._field.keys, ["127.0.0.1"], renew=True)

    def _pid(self, name: str) -> int:
        process = self._keeper.process(name)
        return process.pid if process is not None and process.poll() is None else 0

    def _frozen(self, numbers: list[int], seconds: float) -> None:
        for number, pause in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
            for each in filter(None, numbers):
                with suppress(ProcessLookupError):
                    os.kill(each, number)
            time.sleep(pause)

    def _slow(self, name: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._frozen([self._pid(name)], 0.09)
            time.sleep(0.01)

    def _clock(self, name: str, off: str, seconds: float) -> None:
        with self._keeper.down(name):
            self._keeper.settings[name] = {"first": SHIFTED, "CLOCK_OFF": off}
        time.sleep(seconds)
        with self._keeper.down(name):
            self._keeper.settings.pop(name, None)

    def _link(self, node: int, mode: str, seconds: float) -> None:
        self._field.proxies[node].set(mode)
        time.sleep(seconds)
        self._field.proxies[node].set("open")

    def _damaged(self, node: int, name: str) -> None:
        with self._keeper.down(str(node)), suppress(OSError, ValueError):
            file = self._field.state(node) / name
            place = self._draw.randrange(file.stat().st_size)
            with file.open("r+b") as opened:
                opened.seek(place)
                opened.write(bytes(BLOCK))

    def _full(self, folder: Path, seconds: float) -> None:
        filler = folder / FILLER
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(BLOCK))
                file.flush()
        time.sleep(seconds)
        filler.unlink(missing_ok=True)


def expire(keys: Path) -> None:
    """Replace the server's certificate by one with the same names that ended yesterday."""
    file = keys / f"{SERVER}.crt"
    old = x509.load_pem_x509_certificate(file.read_bytes())
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), x509.random_serial_number(),
        now - timedelta(days=9), now - timedelta(days=1), list(old.extensions),
    )  # fmt: skip
    signed = builder.sign(private_key(keys / f"{CA}.key"), hashes.SHA384())
    file.write_bytes(signed.public_bytes(Encoding.PEM))


def _memory(process: int) -> float:
    """Return the bytes of a process's own memory; 0 if it has ended."""
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{process}/status").read_text()
        return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) * 1024
    return 0


def _empty(folder: Path) -> None:
    """Remove all that a folder holds; the folder may be a disk of its own."""
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
