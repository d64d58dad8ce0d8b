"""The energy of a node's radio equals a computation by hand."""

import pytest

from edgewire.conf.network import Network, network_named
from edgewire.report.link_time import RADIOS, Progress, joules

# ten rounds: 1 MB down and 0.5 MB up; lte: 20 Mbit/s down and 5 up, so 0.4 s and 0.8 s
SPENT = Progress(cycles=10, down=1e6, up=0.5e6)


def test_lte_by_hand():
    sending, receiving = 0.8 * (1.28804 + 0.43839 * 5), 0.4 * (1.28804 + 0.05197 * 20)
    tail = 20 * 11.576 * 1.06
    found = joules(RADIOS["lte"], network_named("lte"), SPENT, 1000.0)
    assert found == pytest.approx(sending + receiving + tail)


def test_a_tail_ends_with_the_next_transfer():
    found = joules(RADIOS["lte"], network_named("lte"), SPENT, 11.2)
    whole = joules(RADIOS["lte"], network_named("lte"), SPENT, 1.2)
    assert found - whole == pytest.approx(10 * 1.06)


def test_lora_by_hand():
    """27 kbit/s: 148.1 s up at 95.7 mW, 296.3 s down at 35.64 mW, and nothing between them."""
    found = joules(RADIOS["lora"], network_named("lora"), SPENT, 1000.0)
    assert found == pytest.approx(4e6 / 27e3 * 0.0957 + 8e6 / 27e3 * 0.03564)


def test_a_link_without_a_limit_needs_the_tail_alone():
    found = joules(RADIOS["wifi"], Network(), SPENT, 1000.0)
    assert found == pytest.approx(20 * 0.2381 * 0.1193)
