"""Takes up the server's renewed certificate without a restart, and warns before one ends."""

from __future__ import annotations

import datetime
import ssl
import time
from logging import getLogger
from pathlib import Path

from edgewire.deploy.certificates import SOON, certificate_in
from edgewire.machine.errors import UsageError

LOOKS = 10.0  # seconds between two looks at the files
DAY = 86400.0
RENEW = "`python -m edgewire.deploy.keys server --renew NAME` makes a new one"
log = getLogger("edgewire")


class CertificateFile:
    """The files of the certificate and of its key, which `tls` holds for new connections.

    Connections that are open keep the certificate that they began with.
    """

    def __init__(self, files: tuple[Path, Path], tls: ssl.SSLContext) -> None:
        self._files, self._tls = files, tls
        self._seen, self._warned, self._failed = self._marks(), -DAY, ""

    def look(self) -> None:
        """Load changed files, and warn once a day of a certificate that ends soon.

        Files that do not fit each other change nothing: the next look tries them again.
        """
        try:
            if (marks := self._marks()) != self._seen:
                # A context that fails to load files has lost its own, so another one tries them.
                for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._tls):
                    context.load_cert_chain(*self._files)
                self._seen, self._warned, self._failed = marks, -DAY, ""
                log.info("new connections get the new certificate in %s", self._files[0])
            if time.monotonic() - self._warned >= DAY:
                self._warn()
        except (OSError, ValueError, UsageError) as error:  # ssl.SSLError is an OSError
            if self._failed != (found := str(error)):
                self._failed = found
                log.warning("the certificate in use stays: %s: %s", self._files[0], found)

    def _warn(self) -> None:
        ends = certificate_in(self._files[0]).not_valid_after_utc
        self._warned = time.monotonic()
        if (left := ends - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(days=SOON):
            log.warning("the server's certificate ends in %d days: %s", max(left.days, 0), RENEW)

    def _marks(self) -> list[tuple[int, int, int]]:
        found = [file.stat() for file in self._files]
        return [(each.st_ino, each.st_mtime_ns, each.st_size) for each in found]
