"""The estimated time of a run on a link equals that of a real run on the virtual clock."""

from functools import cache

import numpy as np
import pytest
from omegaconf import OmegaConf

from edgewire.conf.network import Network
from edgewire.report.html.run_data import load
from edgewire.report.link_time import Progress, link_seconds, named_links, seconds_over
from edgewire.report.runs import read_settings
from edgewire.simulation.clock import VirtualClock
from tests.local_runs import local_run
from tests.report.made_runs import add_run, history
from tests.runs import composed, history_of, result_of

TOLERANCE = 0.02
SHORT = "rounds=6 eval_every=2 nodes=4 local_steps=3"
LIMITS = ("up_mbps", "down_mbps", "server_mbps", "latency_ms")
PRESETS = {
    "fedavg_f2i_both": SHORT,
    "fedavg_topk": SHORT,
    "edgewire": SHORT,
    "fedavg": "rounds=3 nodes=4 partition=dirichlet partition.alpha=0.3",  # unequal local epochs
    "sgd": "rounds=20 eval_every=5 nodes=3",
    "fedbuff": "strategy.pushes=24 eval_every=8 nodes=4 strategy.buffer=4 local_steps=3",
}


def made(folder, preset, *words):
    """Make a run; return its history, its result and its configuration, flat."""
    words = [f"algorithm={preset}", *PRESETS[preset].split(), *words]
    local_run(folder, *words)
    (folder / ".hydra").mkdir()
    OmegaConf.save(composed(*words), folder / ".hydra" / "config.yaml")
    return history_of(folder), result_of(folder), read_settings(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return a function: it returns the run of a preset without a link, which it makes once."""
    folder = tmp_path_factory.mktemp("plain")
    return cache(lambda name: made(folder / name, name, "network=ideal"))


def links():
    """Return links of all kinds: drawn at random, slow or fast, one with a shared server."""
    random = np.random.default_rng(7)
    for _ in range(2):
        down, up, latency = 10 ** random.uniform((-2, -2, 0), (2, 2, 3))
        yield Network(float(up), float(down), None, float(latency))
    yield Network(up_mbps=3.0, down_mbps=20.0, server_mbps=5.0, latency_ms=10)


@pytest.mark.few(2)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("number", range(3))
def test_the_estimate_equals_a_run_on_the_virtual_clock(preset, number, plain, tmp_path):
    network = list(links())[number]
    words = [f"network.{key}={getattr(network, key) or 'null'}" for key in LIMITS]
    rows, *real = made(tmp_path, preset, "network=ideal", *words)
    estimated = seconds_over(network, *plain(preset))
    assert len(estimated) == len(rows) > 1
    for seconds, row in zip(estimated[1:], rows[1:], strict=True):
        assert seconds == pytest.approx(row["virtual_seconds"], rel=TOLERANCE)
    # a run that was made on a link gives the same estimate
    again = seconds_over(network, rows, *real)
    assert again[-1] == pytest.approx(rows[-1]["virtual_seconds"], rel=TOLERANCE)


def test_the_parts_of_a_round_add_up():
    network = Network(1.0, 8.0, None, 50.0)
    rows = [Progress(0, 0, 0), Progress(2, 2e6, 1e6, 3), Progress(2, 2e6, 1e6, 3)]
    expected = 2 * 2 * 0.05 + 2e6 / 1e6 + 1e6 * 8 / 1e6 + 3
    assert link_seconds(rows, network, 5) == pytest.approx([0, expected, expected])
    assert link_seconds(rows, network, 5, True) == pytest.approx([0, expected, expected])


def on_the_clock(network, nodes, down, up, steps):
    """Return when the last reply of a round arrives on the virtual clock."""
    clock = VirtualClock(network)
    sent = [clock.send(node, 0.0, down, steps=steps) for node in range(nodes)]
    return max(clock.answer(journey, steps, up) for journey in sent)


def test_a_round_on_a_shared_link_takes_as_long_as_on_the_virtual_clock():
    random = np.random.default_rng(3)
    for _ in range(300):
        speeds = [float(speed) for speed in 10 ** random.uniform(-2, 2, 3)]
        own = [None if random.random() < 0.3 else speed for speed in speeds[:2]]
        latency, step, encoding = (float(each) for each in random.uniform(0, 1, 3))
        network = Network(*own, speeds[2], 1000 * latency, step, encoding)
        nodes, down, up = (int(each) for each in random.integers(1, (40, 10**5, 10**5)))
        steps = int(random.integers(0, 20))
        work = steps * step + (encoding if steps else 0.0)
        (found,) = link_seconds([Progress(1, down, up, work)], network, nodes)
        assert found == pytest.approx(on_the_clock(network, nodes, down, up, steps), rel=1e-9)


def test_an_asynchronous_node_waits_once_for_the_first_messages():
    network = Network(server_mbps=8.0)
    rows = [Progress(1, 1e5, 1e3, 10), Progress(2, 2e5, 2e3, 20)]
    first, second = link_seconds(rows, network, 5, asynchronous=True)
    assert first == pytest.approx(10 + 5 * 0.1, abs=0.01)
    assert second - first == pytest.approx(10 + 0.1, abs=0.01)


LINK = Network(up_mbps=1.0, down_mbps=2.0, latency_ms=100)
EACH = 0.2 + 8 * 1000 / 1e6 + 8 * 2000 / 2e6  # 1,000 bytes up, 2,000 down


def estimated(folder, result=(), config=None, **options):
    add_run(folder, "x=1 seed=0", (0.1, 0.5, 0.9), config, result, **options)
    (group,) = load([folder]).groups
    return seconds_over(LINK, group.histories[0], group.first, group.settings)


def test_the_devices_work_is_the_virtual_time_without_messages(tmp_path):
    config = "network: {up_mbps: 0.1, down_mbps: null, server_mbps: null, latency_ms: 50}"
    found = estimated(tmp_path, config=config)
    own = 2 * 0.05 + 8 * 1000 / 1e5
    assert found == pytest.approx([0, EACH + 0.5 - own, 2 * (EACH + 0.5 - own)])


def test_an_asynchronous_server_hears_from_all_nodes_in_one_exchange(tmp_path):
    add_run(tmp_path, "x=1 seed=0", result={"staleness": 3.0, "nodes": 5})
    (group,) = load([tmp_path]).groups
    # each row has ten replies, two of each node, and a further message is under way to four nodes
    made = [(reply, 1000 * reply, 2000 * (reply + 4)) for reply in (10, 20)]
    keys = ("round", "uplink_bytes", "downlink_bytes")
    rows = [dict(zip(keys, row, strict=True)) for row in made]
    found = seconds_over(LINK, rows, group.first, group.settings)
    assert found == pytest.approx([2 * EACH, 4 * EACH])


def test_rows_without_bytes_and_cut_models_have_no_time(tmp_path):
    assert estimated(tmp_path / "a", {"uplink_bytes": 0}, uplink_bytes=None) == [None] * 3
    cut = {"segments": [{"layers": ["a"]}]}
    assert estimated(tmp_path / "b", cut) == [None] * 3


def test_a_history_with_fewer_rows_has_the_same_total(tmp_path):
    add_run(tmp_path, "x=1 seed=0")
    (group,) = load([tmp_path]).groups
    rows = history((0.1, 0.2, 0.3, 0.4, 0.9))
    given = group.first, group.settings
    few = seconds_over(LINK, [rows[0], rows[2], rows[4]], *given)
    assert few[-1] == pytest.approx(seconds_over(LINK, rows, *given)[-1])


def test_the_named_links_are_those_with_a_speed():
    found = named_links()
    assert list(found) == ["lora", "adsl", "satellite", "lte", "cable", "wifi", "lan", "fibre"]
    assert [getattr(found["adsl"], key) for key in LIMITS] == [1.0, 24.0, None, 15.0]
    assert found["wifi"].server_mbps == 35.0
