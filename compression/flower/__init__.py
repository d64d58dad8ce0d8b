"""Flower's side of compression: a mod for the ClientApp and a wrapper for any Strategy.

`Compressed(FedAvg(...))` sends the model as one payload and hands the wrapped strategy what the
nodes' compressed deltas decode to; `CompressionMod` does the reverse at the node. Neither the
strategy nor the ClientApp sees a payload. Works with every message-API strategy that averages,
sorts or measures arrays, since these treat a model as one long vector.
"""

from .arrays import (
    FlatArray,
    filled,
    flat_record,
    layout_of,
    payload_of,
    payload_record,
    to_arrays,
    to_vector,
)
from .mod import CompressionMod
from .traffic import Traffic, reason_of
from .wrapper import Compressed

__all__ = [
    "Compressed",
    "CompressionMod",
    "FlatArray",
    "Traffic",
    "filled",
    "flat_record",
    "layout_of",
    "payload_of",
    "payload_record",
    "reason_of",
    "to_arrays",
    "to_vector",
]
