"""A model of the energy that a node's radio needs, with published constants.

A radio needs a base power while it sends or receives, and more for each Mbit/s. After its last
byte it stays awake for some time (the tail), if no other message comes. The model ignores the
energy of computing, retransmissions, signalling and the signal's strength. A device in the field
can differ by several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from edgewire.conf.network import Network, transfer_seconds
from edgewire.report.link_time import Progress


class Radio(NamedTuple):
    """The power of a radio in watts.

    `up`, `down`: watts for each Mbit/s; `base_up`, `base_down`: watts while it sends or receives;
    `tail`: watts in the `tail_seconds` after a transfer; `source`: where the numbers are from.
    """

    up: float
    down: float
    base_up: float
    base_down: float
    tail: float
    tail_seconds: float
    source: str


# by the name of a network: https://doi.org/10.1145/2307636.2307658, and at 3.3 V 29 mA up and 10.8
# mA down in the data sheet's table 6
RADIOS: Mapping[str, Radio] = {
    "lte": Radio(0.43839, 0.05197, 1.28804, 1.28804, 1.06, 11.576, "Huang et al. 2012"),
    "wifi": Radio(0.28317, 0.13701, 0.13286, 0.13286, 0.1193, 0.2381, "Huang et al. 2012"),
    "lora": Radio(0.0, 0.0, 0.029 * 3.3, 0.0108 * 3.3, 0.0, 0.0, "data sheet of Semtech SX1276"),
}


def joules(radio: Radio, network: Network, spent: Progress, seconds: float) -> float:
    """Return the joules of one node's radio until a point of a run.

    `spent`: what the node has done until then; `seconds`: the time until then. The tail of each
    message ends when the next transfer begins. A link without a limit transfers in no time.
    """
    sending = transfer_seconds(spent.up, network.up_mbps)
    receiving = transfer_seconds(spent.down, network.down_mbps)
    energy = sending * (radio.base_up + radio.up * (network.up_mbps or 0.0))
    energy += receiving * (radio.base_down + radio.down * (network.down_mbps or 0.0))
    idle = max(0.0, seconds - sending - receiving)
    transfers = 2 * spent.cycles  # a message to the node, and its reply
    return energy + radio.tail * min(idle, transfers * radio.tail_seconds)
