"""Codecs that keep what they do not send, and a record of the updates that a server applies."""

from types import SimpleNamespace

import numpy as np

from edgewire.compression.decoder import decode_update
from edgewire.compression.flower.server.acks import AckTracker

CODECS = {
    "topk": {"sparsifier": "topk", "density": 0.05},
    "topk-int8": {"sparsifier": "topk", "density": 0.05, "quantizer": "int8", "feedback": True},
    "threshold": {"sparsifier": "threshold", "threshold": 0.8},
    "randomk": {"sparsifier": "randomk", "density": 0.1},
    "gradient_dropping": {"sparsifier": "gradient_dropping", "drop": 0.9},
    "sign": {"quantizer": "sign"},
    "powersgd": {"quantizer": "powersgd", "rank": 1},
    "selective": {"sparsifier": "selective", "density": 0.05, "feedback": True},
    "cesgd": {"sparsifier": "cesgd", "feedback": True},
    "dgc": {"sparsifier": "dgc", "sparsity": 0.9, "momentum": 0.0},
    "esgd": {"sparsifier": "esgd", "drop": 0.8, "beta": 1.0, "cap": 0.2},
}


def record_applied(monkeypatch):
    """Record the applied updates: their sum by node, (node, sequence) of each, the tracker."""
    applied, decoded = SimpleNamespace(total={}, seen=[], tracker=None), {}
    decode, resolve = AckTracker.decode, AckTracker.resolve

    def decoding(self, node, payload, sequence, *options):
        update = decode(self, node, payload, sequence, *options)
        decoded[node], applied.tracker = (sequence, update.dense().astype(np.float64)), self
        return update

    def resolving(self, node, **options):
        if options["applied"] and node in self.pending:
            sequence, values = decoded[node]
            applied.total[node] = applied.total.get(node, 0) + values
            applied.seen.append((node, sequence))
        resolve(self, node, **options)

    monkeypatch.setattr(AckTracker, "decode", decoding)
    monkeypatch.setattr(AckTracker, "resolve", resolving)
    return applied


def still_kept(codec, state, applied, node, layout):
    """Return a node's unsent part: its residual, plus its last update if it was not applied."""
    kept = state.memory[codec.sparsifier.residual_key or "error"]
    if (node, state.sequence) not in applied.seen:
        sent = state.memory.get("sent")
        before = None if sent is None else np.flatnonzero(sent).astype(np.uint32)
        kept = kept + decode_update(state.last, layout, before=before).dense()[: len(kept)]
    return kept


def expect_nothing_lost(codec, state, applied, node, layout, given):
    """Assert that a node's applied and unsent parts add up to the sum of its updates, `given`."""
    kept = still_kept(codec, state, applied, node, layout)
    given = given[: len(kept)]
    scale = max(np.abs(given).max(), np.abs(kept).max(), 1)
    sent = applied.total.get(node, np.zeros(len(kept)))[: len(kept)]
    np.testing.assert_allclose(sent + kept, given, atol=2e-5 * scale)
