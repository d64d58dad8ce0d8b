"""The estimated time over a link follows its formula, and the virtual clock's own times."""

import pytest

from edgewire.conf.network import Network
from edgewire.report.html.link_estimate import Link, named_links, own_link, seconds_over
from edgewire.report.html.run_data import load
from tests.report.html.made_runs import add_run, history

LINK = Link("made", Network(up_mbps=1.0, down_mbps=2.0, latency_ms=100))
SHARED = ("network=ideal", "algorithm=fedavg", "network.down_mbps=10", "network.latency_ms=20")
EACH = 0.2 + 8 * 1000 / 1e6 + 8 * 2000 / 2e6  # 1,000 bytes up, 2,000 down


def estimated(folder, link, result=(), config=None, **options):
    add_run(folder, "x=1 seed=0", (0.1, 0.5, 0.9), config, result, **options)
    (group,) = load([folder]).groups
    return seconds_over(link, group.histories[0], group)


def test_rounds_add_up(tmp_path):
    found = estimated(tmp_path, LINK, virtual_seconds=None)
    assert found == pytest.approx([0, EACH, 2 * EACH])


def test_the_devices_work_is_the_virtual_time_without_messages(tmp_path):
    config = "network: {up_mbps: 0.1, down_mbps: null, server_mbps: null, latency_ms: 50}"
    found = estimated(tmp_path, LINK, config=config)
    own = 2 * 0.05 + 8 * 1000 / 1e5
    assert found == pytest.approx([0, EACH + 0.5 - own, 2 * (EACH + 0.5 - own)])


def test_nodes_share_the_servers_link(tmp_path):
    found = estimated(tmp_path, Link("", Network(100.0, 100.0, 1.0)), virtual_seconds=None)
    last = 8 * 10 * 2000 / 1e6 + 8 * 1000 / 1e8  # it sends after the messages to all ten nodes
    assert found[-1] == pytest.approx(2 * last)


def test_an_asynchronous_server_hears_from_all_nodes_in_one_exchange(tmp_path):
    add_run(tmp_path, "x=1 seed=0", result={"staleness": 3.0, "nodes": 5})
    (group,) = load([tmp_path]).groups
    # each row has ten replies, two of each node, and a further message is under way to four nodes
    made = [(reply, 1000 * reply, 2000 * (reply + 4)) for reply in (10, 20)]
    keys = ("round", "uplink_bytes", "downlink_bytes")
    found = seconds_over(LINK, [dict(zip(keys, row, strict=True)) for row in made], group)
    assert found == pytest.approx([2 * EACH, 4 * EACH])


def test_rows_without_bytes_and_cut_models_have_no_time(tmp_path):
    assert estimated(tmp_path / "a", LINK, {"uplink_bytes": 0}, uplink_bytes=None) == [None] * 3
    cut = {"segments": [{"layers": ["a"]}]}
    assert estimated(tmp_path / "b", LINK, cut) == [None] * 3


def test_a_history_with_fewer_rows_has_the_same_total(tmp_path):
    add_run(tmp_path, "x=1 seed=0")
    (group,) = load([tmp_path]).groups
    rows = history((0.1, 0.2, 0.3, 0.4, 0.9))
    few = seconds_over(LINK, [rows[0], rows[2], rows[4]], group)
    assert few[-1] == pytest.approx(seconds_over(LINK, rows, group)[-1])


def test_the_named_links_are_those_with_a_speed():
    found = {link.name: link for link in named_links()}
    assert list(found) == ["lora", "adsl", "satellite", "lte", "cable", "wifi", "lan", "fibre"]
    assert found["adsl"] == Link("adsl", Network(1.0, 24.0, None, 15.0))
    assert found["wifi"].network.server_mbps == 35.0


@pytest.mark.parametrize(
    "overrides",
    [
        ["network=ideal", "algorithm=edgewire"],
        ["network=wifi", "algorithm=fedavg"],
        ["network=lte", "algorithm=adacomp", "nodes=5", "strategy.pushes=100", "eval_every=50"],
        [*SHARED, "network.server_mbps=5", "network.up_mbps=2"],
        [*SHARED, "network.server_mbps=2", "network.up_mbps=1"],
    ],
)
def test_the_estimate_is_close_to_the_virtual_clock(overrides, command):
    code, _, folder = command("rounds=3", "dataset=digits", "model=mlp", *overrides)
    assert code == 0
    (group,) = load([folder]).groups
    own = own_link(group)
    link = (
        own if own.network.up_mbps else Link("", Network(2.0, 10.0))
    )  # what the clock assumes without a limit
    found = seconds_over(link, group.histories[0], group)
    assert found[-1] == pytest.approx(group.first["link_seconds"], rel=0.02)
