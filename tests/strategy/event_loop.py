"""A short event loop that trains asynchronously; tests compare the server with this loop."""

import heapq

import numpy as np

from edgewire.compression.decoder import decode_update
from edgewire.conf.network import Network
from edgewire.simulation.clock import NEVER, VirtualClock
from edgewire.strategy.staleness import Global, Ignored, PerParameter, Polynomial
from tests.strategy.federation import LAYOUT, NODES, SIZE, TRAINED, gradient, start

WAITS = Network(waiting="uniform", waiting_seconds=1.0)
POLICIES = {"none": Ignored, "global": Global, "polynomial": Polynomial, "parameter": PerParameter}
CODECS = {
    "dense": {},
    "adacomp": {"sparsifier": "selective", "density": 0.05, "scope": "tensor"},
    "topk": {"sparsifier": "topk", "density": 0.05},
}


def event_loop(network, pushes, policy, codec, nodes=NODES, seed=0, buffer=1, sender_exponent=0.0):
    """Train without messages or server code; return all models, and each update's time and sender.

    Staleness is counted from the index sets of all earlier steps of the server.
    """
    clock, heap, x = VirtualClock(network, seed), [], start()
    sums, pending, version, share = np.zeros(SIZE, np.float32), 0, 0, 0.0
    history, models, trace, changed = [], [start()], [], set()
    held = np.zeros(SIZE, np.float32)
    memories, count = {n: {} for n in range(1, nodes + 1)}, dict.fromkeys(range(1, nodes + 1), 0)

    def send(node, now):
        count[node] += 1
        arrival = clock.arrival(node, now, 0, 0, 0)
        if arrival < NEVER:
            seen = version, len(history)
            heapq.heappush(heap, (arrival, sum(count.values()), node, count[node], seen))

    for node in memories:
        send(node, 0.0)
    while heap and len(trace) < pushes:
        now, _, node, number, (before, when) = heapq.heappop(heap)
        payload = codec.encode(gradient(node, number), LAYOUT, memory=memories[node])
        update = decode_update(payload, LAYOUT)
        at = np.arange(SIZE) if update.indices is None else update.indices
        touched = np.array([sum(i in u for u in history[when:]) for i in at])
        stale = version - before
        factor = {
            "none": np.float32(1),
            "global": np.float32(1 / max(stale, 1)),
            "polynomial": np.float32((1 + stale) ** -0.5),
            "parameter": (1 / np.maximum(touched, 1)).astype(np.float32),
        }[policy]
        sums[at] += update.values * factor
        # Running statistics get one factor for all entries.
        share += float(factor if np.ndim(factor) == 0 else factor[-1])
        changed |= set(at.tolist())
        held[at] += 1
        pending += 1
        if pending == buffer:
            mean = sums / np.float32(buffer)
            few = np.float32(buffer) / np.where(held > 0, held, buffer)
            mean *= few ** np.float32(sender_exponent)
            x[:TRAINED] -= np.float32(0.5) * mean[:TRAINED]
            mixed = (buffer - share) * x[TRAINED:].astype(np.float64) + sums[TRAINED:]
            x[TRAINED:] = mixed / buffer
            held[:] = 0
            sums[:], pending, version, share = 0, 0, version + 1, 0.0
            history.append(changed)
            changed = set()
        trace.append((now, node, number))
        models.append(x.copy())
        if len(trace) < pushes:
            send(node, now)
    return models, trace


def at_once(node, server_round):
    """Return 0 training steps: a gradient takes no virtual time, so only the waiting counts."""
    return 0


def assert_same(federation, models, trace):
    for found, expected in zip(federation.models, models, strict=True):
        np.testing.assert_array_equal(found[:TRAINED], expected[:TRAINED])
        np.testing.assert_allclose(found[TRAINED:], expected[TRAINED:], rtol=1e-6, atol=1e-6)
    assert federation.grid.virtual_seconds == trace[-1][0]
