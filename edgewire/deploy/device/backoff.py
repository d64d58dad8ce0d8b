"""A node's backoff after a failure: how long it waits, and what it logs. It never gives up."""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import Callable
from logging import getLogger

import httpx

from edgewire.deploy.device.client import (
    DUPLICATE_NODE,
    NOT_ACTIVATED,
    ONLY_REGISTERED,
    FleetClient,
    ServerRefusal,
)
from edgewire.machine.liveness import ONLINE_SECONDS
from edgewire.machine.proxies import by_proxy

FIRST, LONGEST, GROWTH = 0.5, 20.0, 1.6  # first and longest pause (seconds); growth
# Flower accepts a node's signature if its clock is at most this many seconds ahead or behind.
AHEAD, BEHIND = 5.0, 305.0
log = getLogger("edgewire")
_OTHER_NAME = "--superlink must be a name or address that is in the certificate"
_OTHER_CA = "--root-certificates must name the CA that has signed it"
_ADVICE = {  # words of OpenSSL's text -> what to do about a certificate that is not accepted
    "not yet valid": "is this machine's clock behind?",
    "expired": "renew it, or is this machine's clock ahead?",
    "mismatch": _OTHER_NAME,
    "not valid for": _OTHER_NAME,
}
WORTH_WAITING = (ServerRefusal, httpx.TransportError, OSError)


class Wait:
    """Makes growing pauses after failures, and logs one line when the reason changes."""

    def __init__(self, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self._pause, self._reason = FIRST, ""

    def after(self, reason: str) -> None:
        """Log the reason of a failure if it is new, then pause."""
        kind = re.sub(r"\d+", "", reason)  # the seconds in the line about the clock always differ
        if kind != self._reason:
            log.warning("waiting: %s", reason)
            self._reason = kind
        self._sleep(self._pause * random.uniform(0.8, 1.0))
        self._pause = min(self._pause * GROWTH, LONGEST)

    def over(self) -> None:
        """Note a success: log it if there were pauses; the next pause is the shortest again."""
        if self._reason:
            log.info("the node continues")
        self._pause, self._reason = FIRST, ""


def reason_of(error: Exception, fleet: FleetClient) -> str:
    """Return one line that says why a call failed, and what to do."""
    if isinstance(error, ServerRefusal):
        return _of_refusal(error, fleet.address + by_proxy(fleet.address, fleet.secure))
    if isinstance(error, httpx.TransportError):
        return _of_line(error, fleet.address, fleet.secure)
    if isinstance(error, OSError):
        return f"cannot write its state: {error.strerror or error} ({error.filename or 'disk'})"
    return f"{type(error).__name__}: {error}"


def clock_trouble(ahead: float | None) -> str | None:
    """Return one line of advice if this clock differs too much from the server's, else None.

    `ahead`: by how many seconds this clock is ahead of the server's; None: not known.
    """
    if ahead is None or -BEHIND < ahead < AHEAD:
        return None
    way = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {way} the server's: set it (systemd-timesyncd)"
    )


def _of_refusal(error: ServerRefusal, address: str) -> str:
    clock = clock_trouble(error.ahead)
    if error.status == 401:
        if clock is not None:
            return clock
        if error.path.endswith(("/activate-node", "/register-node")):
            return "the server does not accept this node's signature: is the key file damaged?"
        return (
            "the server does not know this node's key (any more): register it there, unless it was "
            "revoked or replaced"
        )
    if error.code == NOT_ACTIVATED:
        return (
            "the server does not know this node's key: register it there, unless it was revoked; "
            "or it still counts an earlier life of this node as online (for at most "
            f"{ONLINE_SECONDS:.0f} s), or another machine uses its key"
        )
    if error.code == ONLY_REGISTERED:
        return "the server takes registered keys alone: give --auth-supernode-private-key"
    if error.status == DUPLICATE_NODE:
        return (
            "another node has come online with this node's key and state: give each a key of "
            "its own; this node continues some minutes after the other one is stopped"
        )
    if error.status in (403, 404):
        return (
            f"{address} does not serve Flower's Fleet API (status {error.status}, "
            f"{error.detail}): is it the right server and port?"
        )
    return f"{address} answers {error.status}: {error.detail}"


def _of_line(error: httpx.TransportError, address: str, secure: bool) -> str:
    cause = _root(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = cause.verify_message.rstrip(".")
        advice = next((each for words, each in _ADVICE.items() if words in text), _OTHER_CA)
        return f"{address}'s certificate is not accepted: {text}; {advice}"
    if isinstance(cause, ssl.SSLError) or "SSL" in str(error):
        return (
            f"{address} does not speak TLS as this node does "
            f"({cause.reason if isinstance(cause, ssl.SSLError) else error}): "
            "does the server run with --insecure, or is it another port?"
        )
    text = " ".join(str(cause).split()) or type(error).__name__
    return f"{address} is not reached{by_proxy(address, secure)}: {text}"


def _root(error: BaseException) -> BaseException:
    """Return the error at the end of an error's chain of causes."""
    seen = {id(error)}
    while (cause := error.__cause__ or error.__context__) is not None and id(cause) not in seen:
        error = cause
        seen.add(id(error))
    return error
