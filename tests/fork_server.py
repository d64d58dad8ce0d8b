"""Starts Python programs in a tenth of a second, where a new process would import for seconds.

A server process imports torch, Flower, Hydra and all other packages that the project needs, once
for all tests, and forks itself for each program. The program imports the project's modules itself.
`Popen` and `run` have the arguments and results of their namesakes in `subprocess`.

Use `subprocess` in a test about imports, and in a test that finds processes by their environment:
in `/proc` a forked program has the environment and the command line of the server.
"""

import atexit
import gc
import importlib
import os
import pickle
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
PLACE = "EDGEWIRE_FORK_SERVER"  # the variable that holds the path of the server's socket
LOADED = [
    "edgewire.command.main", "edgewire.strategy.app", "edgewire.client.app",
    "edgewire.deploy.node", "edgewire.deploy.server.api",
    "edgewire.simulation.any_app.main", "flwr_datasets", "sklearn.datasets", "pytest",
]  # fmt: skip
FLOWERS = ["flwr.superlink.cli.flower_superlink",
           "flwr.supercore.superexec.executor.subprocess_executor"]  # fmt: skip
SCRIPTS = {"flower-superlink", "flower-superexec", "flwr-serverapp"}
OURS, FINDERS = ("edgewire", "docs", "papers", "run", "tests"), ("edgewire.import_names",)
MOST = 1 << 18  # bytes of a request
spent = []  # CPU seconds of each program that has ended, with its children


class Forked:
    """A forked program, with the attributes and methods of `subprocess.Popen` that tests use."""

    def __init__(self, args, connection, stdout, stderr):
        self.args, self.returncode = args, None
        self.stdout, self.stderr = stdout, stderr
        self._connection = connection
        self.pid = int(self._received())

    def _received(self):
        data = self._connection.recv(100)
        if not data:
            raise RuntimeError("the fork server has ended: its standard error says why")
        return data

    def poll(self):
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            code, seconds = self._received().split()
            self.returncode = int(code)
            spent.append(float(seconds))
            self._connection.close()
        return self.returncode

    def communicate(self, timeout=None):
        """Read what the program prints until it ends; return it as (stdout, stderr)."""
        found, end = {}, None if timeout is None else time.monotonic() + timeout
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        readers = [
            threading.Thread(target=lambda each=each: found.update({each: each.read()}))
            for each in streams
        ]
        for reader in readers:
            reader.daemon = True
            reader.start()
        for reader in readers:
            reader.join(_left(end))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(_left(end))
        for stream in streams:
            stream.close()
        return found.get(self.stdout), found.get(self.stderr)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _left(end):
    return None if end is None else max(0, end - time.monotonic())


def Popen(args, *, stdout=None, stderr=None, cwd=None, env=None, text=False, before=None, **rest):
    """Start a program as `subprocess.Popen` does; fork it if it is a Python file or module.

    A forked program has no input, and leads a new session. `before`: a function that a forked
    program calls first.
    """
    words = _python_of(args)
    if words is None or PLACE not in os.environ:
        return subprocess.Popen(
            args, stdout=stdout, stderr=stderr, cwd=cwd, env=env, text=text, **rest
        )
    ends, streams, own = [], [], []
    for stream, usual in ((stdout, 1), (stderr, 2)):
        read = None
        if stream == subprocess.PIPE:
            read, stream = os.pipe()
            own.append(stream)
        elif stream == subprocess.DEVNULL:
            stream = os.open(os.devnull, os.O_WRONLY)
            own.append(stream)
        elif stream == subprocess.STDOUT:
            stream = ends[0]
        elif stream is None:
            stream = usual
        ends.append(stream if isinstance(stream, int) else stream.fileno())
        streams.append(None if read is None else os.fdopen(read, "r" if text else "rb"))
    request = words, os.fspath(cwd or os.getcwd()), dict(os.environ if env is None else env), before
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ[PLACE])
    socket.send_fds(connection, [pickle.dumps(request)], ends)
    for stream in own:
        os.close(stream)
    return Forked(args, connection, *streams)


def run(args, *, timeout=None, check=False, **options):
    """Run a program to its end as `subprocess.run` does, and capture what it prints."""
    process = Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _python_of(args):
    """Return Python's arguments for a program; None if it is no Python file or module."""
    first, *words = map(str, args)
    if first == sys.executable and words[0] != "-c":
        return words
    found = shutil.which(first)
    return [found, *words] if found and Path(found).name in SCRIPTS else None


@contextmanager
def listening():
    """Let the processes of this context start programs; the server imports at the first one."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as requests,
    ):
        requests.bind(f"{folder}/socket")
        requests.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(requests.fileno())],
            cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
            pass_fds=[requests.fileno()], stdin=subprocess.PIPE,
        )  # fmt: skip
        os.environ[PLACE] = f"{folder}/socket"
        try:
            yield
        finally:
            del os.environ[PLACE]
            process.stdin.close()  # tells the server to end
            process.wait()


def serve(requests):
    """Fork a process for each request, and send its id and its exit status, until input ends."""
    running, loaded = {}, False
    while True:
        for handle in select.select([requests, sys.stdin, *running], [], [])[0]:
            if handle is sys.stdin:
                return
            if handle is requests:
                connection, _ = requests.accept()
                if not loaded:
                    loaded = load()
                pid = fork(connection, requests)
                running[os.pidfd_open(pid)] = pid, connection
                connection.send(b"%d" % pid)
            else:
                pid, connection = running.pop(handle)
                _, status, usage = os.wait4(pid, 0)
                seconds = usage.ru_utime + usage.ru_stime
                with suppress(BrokenPipeError):  # nobody waits for it
                    connection.send(b"%d %f" % (os.waitstatus_to_exitcode(status), seconds))
                connection.close()
                os.close(handle)


def load():
    """Import what programs need, and forget the project's modules; return True."""
    for name in [*LOADED, *FLOWERS, "tests.quick_hydra"]:
        importlib.import_module(name)
    sys.modules["tests.quick_hydra"].quicken()
    for name in FLOWERS:  # Flower's server starts its programs by forks too
        sys.modules[name].subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": Popen})
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__ not in FINDERS]
    tasks = Path("/proc/self/task").glob("*/comm")
    if others := {task.read_text() for task in tasks} - {"python\n", "jemalloc_bg_thd\n"}:
        raise RuntimeError(f"forked programs would lack these threads: {others}")
    gc.collect()
    gc.freeze()  # the programs share these objects, and need not examine them
    return True


def fork(connection, requests):
    """Fork a process for the request of a connection; return its id."""
    data, streams, *_ = socket.recv_fds(connection, MOST, 2, socket.MSG_CMSG_CLOEXEC)
    if not (pid := os.fork()):
        requests.close()
        connection.close()
        program(streams, *pickle.loads(data))
    for stream in streams:
        os.close(stream)
    return pid


def program(streams, words, cwd, env, before):
    """Become a program, and end as Python ends."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for own, stream in zip((0, 1, 2), (os.open(os.devnull, os.O_RDONLY), *streams), strict=True):
        os.dup2(stream, own)
        os.close(stream)
    sys.stdout, sys.stderr = (  # the server's own may be files, in which one can seek
        os.fdopen(own, "w", buffering=1, encoding=old.encoding, errors=old.errors, closefd=False)
        for own, old in ((1, sys.stdout), (2, sys.stderr))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    code = 1
    try:
        if before is not None:
            before()
        execute(words)
        code = 0
    except SystemExit as error:
        code = error.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # noqa: SLF001  # wait for threads
        atexit._run_exitfuncs()  # noqa: SLF001
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def execute(words):
    """Run a file, or `-m MODULE`, as the program."""
    sys.orig_argv = [sys.executable, *words]
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # without the cleanup of the imported packages
