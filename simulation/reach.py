"""A SuperLink that somebody else has started: whether it is there, and a client of it."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import httpx
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from .errors import UsageError

_SECONDS = 10.0


class Superlink:
    """A SuperLink at an address, asked from inside: its Control API is for its own machine.

    `certificate`: the file of the CA that has signed the SuperLink's; None: it has no TLS.

    Raises `UsageError`, one line, if none answers, or not as it is asked.
    """

    def __init__(self, address: str, certificate: str | None = None) -> None:
        if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):\d{1,5}", address):
            raise UsageError(f"engine.address={address}: give HOST:PORT, as in 127.0.0.1:8000")
        self.address = address
        self.root = None if certificate is None else _read(certificate)
        verify = True if certificate is None else ssl.create_default_context(cafile=certificate)
        url = f"{'http' if certificate is None else 'https'}://{address}"
        self.http = httpx.Client(base_url=url, verify=verify, timeout=_SECONDS, trust_env=False)
        self._expect()

    def control(self) -> ControlHttpClient:
        """Return a client of the Control API, to be closed."""
        return ControlHttpClient.from_server_address(
            self.address,
            insecure=self.root is None,
            root_certificates=self.root,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    @property
    def bundles(self) -> bool:
        """Whether it is one of ours (`deploy.server`)."""
        found = self.http.get("/v1/fleet/edgewire")
        return found.status_code == 200 and found.text == "1"

    def close(self) -> None:
        """Let go of the connection."""
        self.http.close()

    def _expect(self) -> None:
        """Raise `UsageError` unless a SuperLink answers."""
        try:
            found = self.http.get("/health")
        except httpx.RemoteProtocolError as error:
            raise UsageError(self._tls()) from error
        except httpx.TransportError as error:
            self.close()
            raise UsageError(self._why(error)) from error
        if found.status_code == 403:
            raise UsageError(
                f"the SuperLink at {self.address} takes runs from its own machine alone: start "
                "this there, or through `ssh -L PORT:127.0.0.1:PORT`"
            )
        if not found.is_success:
            raise UsageError(f"no SuperLink answers at {self.address}: status {found.status_code}")

    def _why(self, error: httpx.TransportError) -> str:
        text = str(error)
        if "WRONG_VERSION_NUMBER" in text or "record layer" in text:
            return f"the SuperLink at {self.address} has no TLS: drop engine.certificate"
        if "CERTIFICATE_VERIFY_FAILED" in text:
            reason = text.rpartition("verify failed: ")[2].partition(" (_ssl")[0]
            return f"the certificate of {self.address} is not what it should be: {reason}"
        if isinstance(error, httpx.ReadError | httpx.ReadTimeout) and self.root is None:
            return self._tls()
        return f"no SuperLink answers at {self.address}: {text or type(error).__name__}"

    def _tls(self) -> str:
        return (
            f"what answers at {self.address} speaks no plain HTTP: if it has TLS, give "
            "engine.certificate=keys/ca.crt"
        )


def _read(certificate: str) -> bytes:
    try:
        content = Path(certificate).read_bytes()
        ssl.create_default_context(cadata=content.decode("ascii"))
    except OSError as error:
        raise UsageError(f"engine.certificate={certificate}: {error.strerror}") from error
    except (ValueError, ssl.SSLError) as error:
        raise UsageError(f"engine.certificate={certificate}: this is no certificate") from error
    return content
