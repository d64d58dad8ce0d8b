"""What crossed the network, counted; and whom a server leaves out, named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message

from compression.flower.arrays import STYPE


@dataclass
class Traffic:
    """Counters of a run. Bytes are lengths of payloads that were put into messages.

    `*_float32`: the bytes of the same content as Flower sends it without compression, one Array a
    tensor, in the model's own types (float32, as a rule).
    """

    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_bytes_float32: int = 0
    downlink_bytes_float32: int = 0
    client_updates: int = 0
    failures: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return dict(vars(self))


def flower_bytes(arrays: ArrayRecord) -> int:
    """Return the bytes of a model as Flower sends it: of the very Arrays, in their own types."""
    return sum(len(array.data) for array in arrays.values())


def reason_of(reply: Message) -> str:
    """Return the last line of an error's reason: of a traceback, what was raised."""
    lines = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
    return lines[-1]


HINTS = {
    STYPE: "the ClientApp was handed a payload: give it mods=[CompressionMod(...)], "
    "before any other mod",
    "CompressionMod": "give the ClientApp mods=[CompressionMod(...)], before any other mod",
    "_mod expects": "put CompressionMod before any other mod",
    "ArrayRecord": "a reply must hold one ArrayRecord, the model, and one MetricRecord",
}


def nobody_usable(reasons: Iterable[str], answers: int) -> str:
    """Return one line on a round of which no reply could be used: why, and what to do."""
    reason = Counter(reasons).most_common(1)[0][0]
    hint = next((hint for sign, hint in HINTS.items() if sign in reason), "")
    return f"not one of {answers} replies could be used: {reason}{hint and '; ' + hint}"
