"""Checks of `deploy.doctor`: a certificate's names, and the date on which it expires."""

from __future__ import annotations

import datetime

from cryptography import x509

from deploy.findings import OK, SOON, WARNING, WRONG, Finding


def lasting(what: str, name: str, certificate: x509.Certificate, renew: str) -> Finding:
    """Return a finding (one line of the doctor's output): whether a certificate is valid now.

    `what`: the name of the check; `name`: the name of the certificate in the line; `renew`: the
    advice for a certificate that has expired or soon expires.
    """
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    days = (ends - now).days
    if begins > now:
        return Finding(WRONG, what, f"{name} is valid from {begins:%Y-%m-%d} on: set the clock")
    if ends <= now:
        return Finding(WRONG, what, f"{name} has ended on {ends:%Y-%m-%d}: {renew}")
    if days < SOON:
        return Finding(WARNING, what, f"{name} ends in {days} days: {renew}")
    return Finding(OK, what, f"{name}, until {ends:%Y-%m-%d}")


def names_of(certificate: x509.Certificate) -> str:
    """Return the names and addresses that a certificate is valid for, separated by commas."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    return ", ".join(str(each.value) for each in found)
