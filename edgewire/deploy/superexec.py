"""Flower's SuperExec, which starts the processes of runs, for a server that may be stopped.

Flower's own ends if the server does not answer a TLS handshake, for example after a SIGSTOP. Then
the server would start no run any more.
"""

from __future__ import annotations

from flwr.supercore.cli import flower_superexec
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.superexec import run_superexec

from edgewire.protocol.lost_calls import patient

if __name__ == "__main__":
    vars(run_superexec)["make_simple_http_retry_invoker"] = lambda: patient(
        make_simple_http_retry_invoker(), None
    )
    flower_superexec()
