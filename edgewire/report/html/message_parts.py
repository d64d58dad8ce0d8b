"""The parts of the messages to which the bytes of runs belong."""

from __future__ import annotations

from edgewire.report.html.run_data import ReportGroup
from edgewire.report.runs import number

VALUES, INDICES, HEADER, PAYLOAD = "values", "indices", "payload header", "payload"
RECORD, OTHER = "EdgeWire's record", "other records"
# the order in bars and of their colours; a payload whose parts are not known is one part
PARTS = (PAYLOAD, VALUES, INDICES, HEADER, RECORD, OTHER)


def parts_of(group: ReportGroup, way: str) -> dict[str, float]:
    """Return the mean bytes of a run in each part of the messages; their sum is all bytes.

    `way`: "uplink" or "downlink". Runs of earlier versions do not say how many bytes of a payload
    are indices and values. Then the payload is one part.
    """
    payload = _mean(group, f"{way}_bytes") or 0.0
    parts = {
        RECORD: _mean(group, f"{way}_header_bytes") or 0.0,
        OTHER: _mean(group, f"{way}_other_bytes") or 0.0,
    }
    indices, values = (_mean(group, f"{way}_{what}_bytes") for what in ("index", "value"))
    if indices is None or values is None or indices + values > payload:
        return {PAYLOAD: payload, **parts}
    return {VALUES: values, INDICES: indices, HEADER: payload - indices - values, **parts}


def _mean(group: ReportGroup, key: str) -> float | None:
    """Return the mean of a counter; None unless all runs have it."""
    found = [number(run.result.get(key)) for run in group.runs]
    known = [value for value in found if value is not None and value >= 0]
    return sum(known) / len(known) if known and len(known) == len(found) else None
