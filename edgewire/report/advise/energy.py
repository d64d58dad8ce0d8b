"""A model of the energy that a device's radio needs, with published constants.

A radio needs a base power while it sends or receives, and more for each Mbit/s. After its last
byte it stays awake for some time (the tail), if no other message comes. The model ignores the
energy of computing, retransmissions, signalling and the signal's strength. A device in the field
can differ by several times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from edgewire.conf.network import Network
from edgewire.report.errors import ResultsError
from edgewire.report.link_time import Progress, transfer_seconds

HUANG = "Huang et al. 2012, A close examination of performance and power characteristics of 4G LTE"
SEMTECH = "Semtech SX1276 datasheet, table 6, at 3.3 V: 29 mA at +13 dBm, 10.8 mA receiving"


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


RADIOS: Mapping[str, Radio] = {
    "lte": Radio(0.43839, 0.05197, 1.28804, 1.28804, 1.0600, 11.576, HUANG),
    "wifi": Radio(0.28317, 0.13701, 0.13286, 0.13286, 0.1193, 0.2381, HUANG),
    "lora": Radio(0.0, 0.0, 0.029 * 3.3, 0.0108 * 3.3, 0.0, 0.0, SEMTECH),
}


def radio_named(name: str) -> Radio:
    """Return a radio by its name. Raises `ResultsError` for an unknown one."""
    if name not in RADIOS:
        choices = ", ".join(RADIOS)
        raise ResultsError(
            f"there is no radio {name or 'for this link'}: --energy takes {choices}, or give "
            "--watts UP/DOWN"
        )
    return RADIOS[name]


def own_radio(text: str) -> Radio:
    """Return a radio that needs constant watts, from "UP/DOWN". Raises `ResultsError`."""
    try:
        up, down = (float(each) for each in text.split("/"))
    except ValueError as error:
        raise ResultsError(
            f"--watts takes the radio's watts UP/DOWN, such as 1.2/0.8, not {text}"
        ) from error
    if not (0 <= up < 1e6 and 0 <= down < 1e6):
        raise ResultsError(f"--watts takes two numbers of at least 0, not {text}")
    return Radio(0.0, 0.0, up, down, 0.0, 0.0, "your watts")


def joules(radio: Radio, network: Network, spent: Progress, seconds: float) -> float:
    """Return the joules of one device's radio until a point of a run.

    `spent`: what the device has done until then; `seconds`: the time until then. The tail of each
    message ends when the next transfer begins. A link without a limit transfers in no time.
    """
    sending = transfer_seconds(spent.up, network.up_mbps)
    receiving = transfer_seconds(spent.down, network.down_mbps)
    energy = sending * (radio.base_up + radio.up * (network.up_mbps or 0.0))
    energy += receiving * (radio.base_down + radio.down * (network.down_mbps or 0.0))
    idle = max(0.0, seconds - sending - receiving)
    transfers = 2 * spent.cycles  # a message to the device, and its reply
    return energy + radio.tail * min(idle, transfers * radio.tail_seconds)
