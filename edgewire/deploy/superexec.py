"""Flower's SuperExec, which starts the processes of runs, for a server that goes on.

Flower's own ends if the server does not answer a TLS handshake, for example after a SIGSTOP, and is
not started again if it is killed. Then the server would start no run any more.
"""

from __future__ import annotations

import os
import time

from flwr.supercore.cli import flower_superexec
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.superexec import run_superexec

from edgewire.protocol.lost_calls import patient

AGAIN = 1.0  # seconds until it is started again


def main() -> None:
    """Run the SuperExec in a child process, again and again while the server lives."""
    server = os.getppid()
    while child := os.fork():
        os.waitpid(child, 0)
        time.sleep(AGAIN)
        if os.getppid() != server:
            return
    vars(run_superexec)["make_simple_http_retry_invoker"] = lambda: patient(
        make_simple_http_retry_invoker(), None
    )
    flower_superexec()


if __name__ == "__main__":
    main()
