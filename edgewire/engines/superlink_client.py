"""A client of a SuperLink that is already running."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from logging import getLogger
from pathlib import Path

import click
import httpx
from flwr.cli.utils import flwr_cli_exc_handler
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import RetryInvoker, RetryState, exponential

from edgewire.machine.errors import EngineError, UsageError, one_line
from edgewire.machine.proxies import (
    by_proxy,
    expect_address,
    expect_usable_proxies,
    keep_loopback_direct,
)

_SECONDS = 10.0
PATIENCE = 120.0  # seconds without an answer until a SuperLink counts as gone
log = getLogger("edgewire")


def is_refused(error: BaseException | None) -> bool:
    """Return whether an error comes from a refused connection: nothing listens at the address."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _warn(state: RetryState) -> None:
    if state.tries == 2:
        log.warning("the SuperLink does not answer: it is asked for %.0f s", PATIENCE)


# Repeats a call whose answer is lost, for a busy server may answer late. A refused connection ends
# it at once: the server has ended, and another one would not know the run.
REPEATED = RetryInvoker(
    partial(exponential, 0.5, 2, 10),
    httpx.TransportError,
    None,
    PATIENCE,
    jitter=None,
    should_giveup=is_refused,
    on_backoff=_warn,
)


def control_client(
    address: str, root: bytes | None = None, repeated: RetryInvoker | None = None
) -> ControlHttpClient:
    """Return a client of a SuperLink's Control API.

    `root`: the CA's certificate; None: no TLS. `repeated`: repeats lost calls; None: none is.
    """
    return ControlHttpClient.from_server_address(
        address,
        insecure=root is None,
        root_certificates=root,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        retry_invoker=repeated,
    )


class Superlink:
    """A running SuperLink at an address, and its clients.

    `certificate`: the file of the CA that has signed the SuperLink's certificate; None: no TLS.
    `names`: what error messages call the options for the address and the certificate.

    Raises `EngineError` with a one-line message if no SuperLink answers, or if only one side uses
    TLS. Raises `UsageError` if the SuperLink accepts only clients on its machine.
    """

    def __init__(
        self,
        address: str,
        certificate: str | None = None,
        names: tuple[str, str] = ("engine.address=", "engine.certificate="),
    ) -> None:
        expect_address(address, names[0])
        self.address = address
        keep_loopback_direct(address)
        expect_usable_proxies()
        self.root: bytes | None = None
        verify: ssl.SSLContext | bool = True
        url = f"http://{address}"
        if certificate is not None:
            try:
                verify = ssl.create_default_context(cafile=certificate)
                self.root, url = Path(certificate).read_bytes(), f"https://{address}"
            except OSError as error:  # `SSLError` is one, too
                raise UsageError(f"{names[1]}{certificate}: {error.strerror}") from error
        self.http = httpx.Client(base_url=url, verify=verify, timeout=_SECONDS)
        self._expect(names[1])

    def control(self, repeated: RetryInvoker | None = None) -> ControlHttpClient:
        """Return a new client of the Control API; the caller closes it. See `control_client`."""
        return control_client(self.address, self.root, repeated)

    @property
    def bundles(self) -> bool:
        """Whether the SuperLink is this project's server (`edgewire.deploy.server`)."""
        found: httpx.Response = REPEATED.invoke(self.http.get, "/v1/fleet/edgewire")
        return found.status_code == 200 and found.text == "1"

    def close(self) -> None:
        """Close the connection."""
        self.http.close()

    def _expect(self, option: str) -> None:
        """Raise `EngineError` unless a SuperLink answers that accepts clients of this machine."""
        proxy = by_proxy(self.address, self.root is not None)
        none = f"no SuperLink answers at {self.address}{proxy}"
        try:
            found = self.http.get("/health")
        except httpx.TransportError as error:
            self.close()
            reason = str(error) or type(error).__name__
            advice = "does it have TLS, with a certificate of this CA?"
            if self.root is None:
                advice = f"if it has TLS, give {option}keys/ca.crt"
            raise EngineError(f"{none}: {reason}; {advice}") from error
        if found.status_code == 403:
            raise UsageError(
                f"the SuperLink at {self.address} takes runs from its own machine alone: start "
                "this there, or through `ssh -L PORT:127.0.0.1:PORT`"
            )
        if not found.is_success:
            kind = EngineError if found.is_server_error else UsageError
            raise kind(f"{none}: status {found.status_code}")


@contextmanager
def one_line_errors(address: str) -> Iterator[None]:
    """In this context, errors of the Control API and lost connections become `EngineError`."""
    try:
        with flwr_cli_exc_handler():
            yield
    except click.ClickException as error:
        if "is unavailable" in error.message:  # Flower's message names a missing file
            raise EngineError(f"the SuperLink at {address} is gone") from error
        raise EngineError(f"the SuperLink at {address} says: {one_line(error.message)}") from error
    except httpx.HTTPError as error:
        reason = one_line(str(error)) or type(error).__name__
        raise EngineError(f"the SuperLink at {address} is gone: {reason}") from error
