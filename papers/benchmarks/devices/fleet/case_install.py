"""A device with nothing but the project becomes a node: `... devices.fleet install`, as root.

The device is a system of its own, with systemd as process 1, in new namespaces of mounts, processes
and control groups. Its root is empty but for /usr, the project in /opt/edgewire, and Python. It
cannot set the machine's clock.

Three commands are measured: `edgewire.deploy.install` with a bundle on one device, with a link on
another, and there again with a link of `keys enrol --renew`. The result has the seconds from the
command's start until it returns, and until the server counts the node as online: in the third case
with its new key.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgewire.machine.errors import UsageError
from papers.benchmarks.timing import ROOT
from tests.deploy.processes import Processes, descendants, eventually

BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
cd "$1"
mkdir -p old etc var run tmp proc sys dev opt/edgewire opt/python root home usr
mount --rbind /usr usr
for each in bin sbin lib lib64; do
  if [ -L /$each ]; then cp -a /$each .; elif [ -e /$each ]; then
    mkdir $each; mount --rbind /$each $each; fi
done
cp -a /etc/passwd /etc/group /etc/nsswitch.conf /etc/hosts etc/
cp -a /etc/ld.so.* etc/
echo 00000000000000000000000000000001 > etc/machine-id
mount -t proc none proc
mount -t sysfs none sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs none dev
mkdir dev/pts dev/shm
for each in null zero full random urandom tty; do
  touch dev/$each; mount --bind /dev/$each dev/$each; done
ln -s /proc/self/fd dev/fd
mount -t devpts -o newinstance,ptmxmode=0666 none dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs none run
mount -t tmpfs none tmp
mount --bind "$2" opt/edgewire
mount --bind "$3" opt/python
echo /opt/python/lib > etc/ld.so.conf.d/0.conf
chroot . /sbin/ldconfig
mount -t tmpfs none opt/edgewire/.venv
mkdir opt/edgewire/.venv/bin opt/edgewire/.venv/lib
ln -s /opt/python/bin/python3 opt/edgewire/.venv/bin/python
echo 'home = /opt/python/bin' > opt/edgewire/.venv/pyvenv.cfg
mount --bind "$4" opt/edgewire/.venv/lib
mkdir -p etc/systemd/system
for each in timesyncd sysctl udevd udev-trigger modules-load random-seed; do
  ln -s /dev/null etc/systemd/system/systemd-$each.service; done
pivot_root . old
exec chroot . sh -c 'umount -l /old; exec env -i PATH=/usr/sbin:/usr/bin \
  setpriv --bounding-set -sys_time,-sys_module,-sys_boot \
  /usr/lib/systemd/systemd --unit=basic.target'
"""
NAMESPACES = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
PYTHON = "/opt/edgewire/.venv/bin/python"


class Device:
    """A system with systemd in namespaces of its own."""

    def __init__(self, field: Processes, name: str) -> None:
        root = field.folder / name
        root.mkdir()
        project = root.with_name(f"{name}-project")
        shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".venv", ".git", "results"))
        (project / ".venv").mkdir()
        places = [root, project, Path(sys.base_prefix), Path(sys.prefix) / "lib"]
        words = ["sh", "-c", BOOT, "sh", *map(str, places)]
        started = field.start(["unshare", *NAMESPACES, *words], f"{name}.log")
        self._root = root

        def up() -> bool:
            if started.poll() is not None:
                raise UsageError(f"no systemd in namespaces here: {field.said(f'{name}.log')}")
            below = descendants(started.pid)
            self._process = below[0] if below else 0
            return bool(below) and self.call("systemctl", "is-active", "basic.target") == "active"

        eventually(up, 60)

    def call(self, *words: str) -> str:
        """Run a command in the device; return what it prints."""
        enter = ["nsenter", "-t", str(self._process), "-m", "-p", "-u", "-i", "-C", "-r", "-w"]
        enter += ["sh", "-c", 'cd /opt/edgewire && exec "$@"', "sh"]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(
            [*enter, *words], capture_output=True, text=True, check=False, env=env
        )
        if done.returncode and words[0] == PYTHON:
            raise UsageError(done.stderr)
        return (done.stdout + done.stderr).strip()

    def put(self, file: Path) -> str:
        """Copy a file into the device; return its path there."""
        there = Path(f"/proc/{self._process}/root/var") / file.name
        shutil.copy(file, there)
        return f"/var/{file.name}"


class Server(Processes):
    """A server with TLS; `keys` runs the command on its machine."""

    def __enter__(self) -> Server:
        self.keys("server", "127.0.0.1")
        where = ["--keys", "keys", "--state", str(self.folder / "superlink")]
        self.serve(["--host", "127.0.0.1", *where], cwd=self.folder)
        return self

    def keys(self, *words: str) -> str:
        """Run `edgewire.deploy.keys` in this folder; return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "edgewire.deploy.keys", "--superlink",
             f"127.0.0.1:{self.port}", *words],
            capture_output=True, text=True, check=True, cwd=self.folder, env=self.environment,
        )  # fmt: skip
        return done.stdout.strip()

    def node(self, name: str) -> dict[str, Any]:
        """Return what the server's file says about a node."""
        said = json.loads((self.folder / "superlink" / "nodes.json").read_text())
        return next(each for each in said if each["name"] == name)

    def installed(self, device: Device, name: str, source: str) -> dict[str, float]:
        """Install a node; return the seconds until the command has ended, and until it is online.

        If the name has a node, it is online when its key is another one.
        """
        key: str | None = None
        with suppress(OSError, StopIteration):
            before = self.node(name)
            key = before["publicKey"] if "lastActivatedAt" in before else None
        began = time.monotonic()
        device.call(PYTHON, "-m", "edgewire.deploy.install", source, "--node-config",
                    "partition-id=0 num-partitions=2")  # fmt: skip
        ended = time.monotonic()

        def there() -> bool:
            lines = [each.split() for each in self.keys("list").splitlines()]
            online = any(each[0] == name and "online" in each for each in lines)
            return online and (key is None or self.node(name)["publicKey"] != key)

        eventually(there, 120)
        return {"command": round(ended - began, 1), "online": round(time.monotonic() - began, 1)}


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    argparse.ArgumentParser(prog="install", description=__doc__).parse_args(words)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, Server(Path(name)) as server:
        device = Device(server, "kitchen")
        server.keys("bundle", "kitchen")
        server.keys("register", "kitchen")
        source = device.put(server.folder / "kitchen.json")
        found["bundle"] = server.installed(device, "kitchen", source)
        device.call("systemctl", "stop", "edgewire-node")
        device = Device(server, "garden")
        found["link"] = server.installed(device, "garden", server.keys("enrol", "garden"))
        again = server.keys("enrol", "--renew", "garden")
        found["new_key"] = server.installed(device, "garden", again)
        found["log"] = device.call("journalctl", "-u", "edgewire-node", "-o", "cat")[-2000:]
    return found
