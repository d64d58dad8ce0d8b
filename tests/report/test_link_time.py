"""The estimated time of a run on a link equals that of a real run on the virtual clock."""

import math

import numpy as np
import pytest

from edgewire.conf.network import Network
from edgewire.report.advise.candidates import measured
from edgewire.report.errors import ResultsError
from edgewire.report.link_time import Progress, link_seconds, local_steps, network_of, parse_link
from edgewire.report.runs import Run, parse_overrides
from edgewire.simulation.clock import VirtualClock
from tests.local_runs import local_run
from tests.runs import history_of, result_of

TOLERANCE = 0.02
SHORT = "rounds=6 eval_every=2 nodes=4 local_steps=3"
PRESETS = {
    "fedavg_f2i_both": SHORT,
    "fedavg_topk": SHORT,
    "edgewire": SHORT,
    "fedavg": "rounds=3 nodes=4 partition=dirichlet partition.alpha=0.3",  # unequal local epochs
    "sgd": "rounds=20 eval_every=5 nodes=3",
    "fedbuff": "strategy.pushes=24 eval_every=8 nodes=4 strategy.buffer=4 local_steps=3",
}


def made(folder, preset, *words):
    """Make a run; return it as the adviser reads it."""
    words = [f"algorithm={preset}", *PRESETS[preset].split(), *words]
    local_run(folder, *words)
    result = result_of(folder)
    run = Run(parse_overrides(" ".join(words)), result, lambda: history_of(folder))
    found = measured(run, "", "")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return one run of each preset without a link."""
    folder = tmp_path_factory.mktemp("plain")
    return {name: made(folder / name, name, "network=ideal") for name in PRESETS}


def links():
    """Return links of all kinds: drawn at random, slow or fast, one with a shared server."""
    random = np.random.default_rng(7)
    for _ in range(2):
        down, up, latency = 10 ** random.uniform((-2, -2, 0), (2, 2, 3))
        yield Network(float(up), float(down), None, float(latency), 0.02)
    yield Network(up_mbps=3.0, down_mbps=20.0, server_mbps=5.0, latency_ms=10, seconds_per_step=0.1)


@pytest.mark.few(6)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("number", range(3))
def test_the_estimate_equals_a_run_on_the_virtual_clock(preset, number, plain, tmp_path):
    network = list(links())[number]
    keys = ("up_mbps", "down_mbps", "server_mbps", "latency_ms", "seconds_per_step")
    words = [f"network.{key}={getattr(network, key) or 'null'}" for key in keys]
    real = made(tmp_path, preset, "network=ideal", *words)
    run = plain[preset]
    estimated = link_seconds(run.progress, network, run.replies, run.asynchronous)
    assert len(estimated) == len(real.rows) > 1
    for seconds, row in zip(estimated[1:], real.rows[1:], strict=True):
        assert seconds == pytest.approx(row["virtual_seconds"], rel=TOLERANCE)
    # a run that was made on a link gives the same estimate
    again = link_seconds(real.progress, network, real.replies, real.asynchronous)
    assert again[-1] == pytest.approx(real.rows[-1]["virtual_seconds"], rel=TOLERANCE)


def test_the_parts_of_a_round_add_up():
    network = Network(1.0, 8.0, None, 50.0, 0.1)
    rows = [Progress(0, 0, 0, 0), Progress(2, 2e6, 1e6, 30), Progress(2, 2e6, 1e6, 30)]
    expected = 2 * 2 * 0.05 + 2e6 / 1e6 + 1e6 * 8 / 1e6 + 30 * 0.1
    assert link_seconds(rows, network, 5) == pytest.approx([0, expected, expected])
    assert link_seconds(rows, network, 5, True) == pytest.approx([0, expected, expected])


def test_a_shared_link_takes_longer_with_more_nodes():
    network = Network(server_mbps=8.0)
    rows = [Progress(1, 1e6, 1e3, 0)]
    times = [link_seconds(rows, network, nodes)[0] for nodes in (1, 2, 10)]
    assert times == pytest.approx([1.001, 2.001, 10.001], abs=0.01)
    assert link_seconds(rows, network, 10, asynchronous=True)[0] == pytest.approx(10, abs=0.01)


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
        (found,) = link_seconds([Progress(1, down, up, steps)], network, nodes)
        assert found == pytest.approx(on_the_clock(network, nodes, down, up, steps), rel=1e-9)


def test_a_round_of_many_devices_needs_no_simulation():
    network = Network(server_mbps=8.0)
    rows = [Progress(n, n * 1e6, 0, 0) for n in range(1, 1001)]
    assert link_seconds(rows, network, 100_000)[-1] == pytest.approx(1000 * 100_000)


def test_an_asynchronous_node_waits_once_for_the_first_messages():
    network = Network(server_mbps=8.0, seconds_per_step=1.0)
    rows = [Progress(1, 1e5, 1e3, 10), Progress(2, 2e5, 2e3, 20)]
    first, second = link_seconds(rows, network, 5, asynchronous=True)
    assert first == pytest.approx(10 + 5 * 0.1, abs=0.01)
    assert second - first == pytest.approx(10 + 0.1, abs=0.01)


def test_local_steps_follow_from_the_virtual_time():
    rows = [Progress(2, 1e6, 1e6, None), Progress(4, 2e6, 2e6, None)]
    own = Network(8.0, 8.0, None, 100.0, 0.5)
    seconds = [2 * 0.2 + 2 + 5 * 0.5, None]
    assert local_steps(rows, seconds, own, 3, False) == [pytest.approx(5), None]
    assert local_steps(rows, seconds, Network(), 3, False) == [None, None]
    waiting = Network(waiting="uniform", waiting_seconds=2.0, seconds_per_step=0.5)
    assert local_steps(rows, [5.0, 9.0], waiting, 3, True) == [pytest.approx(2), pytest.approx(2)]


def test_steps_of_asynchronous_nodes_that_share_a_link_are_unknown():
    rows = [Progress(2, 1e6, 1e6, None)]
    own = Network(server_mbps=8.0, seconds_per_step=1.0)
    assert local_steps(rows, [9.0], own, 3, True) == [None]
    assert local_steps(rows, [9.0], own, 3, False) != [None]


def test_unknown_steps_count_as_none():
    rows = [Progress(2, 1e6, 1e6, None)]
    assert link_seconds(rows, Network(8.0, 8.0, None, 0.0, 9.0), 3) == pytest.approx([2.0])


def test_links_are_speeds_or_names():
    link = parse_link("10/1")
    assert (link.down_mbps, link.up_mbps) == (10.0, 1.0)
    assert parse_link("lte").latency_ms == 40
    assert parse_link("satellite").down_mbps == 20


@pytest.mark.parametrize(
    "text",
    ["", "0/1", "1/0", "-1/1", "nan/1", "inf/1", "1/", "/", "1/2/3", "fast", "../../etc/passwd",
     "<script>/1", "mixed", "waits", "1e999/1", "10"],
)  # fmt: skip
def test_other_links_are_refused_in_one_line(text):
    with pytest.raises(ResultsError) as refused:
        parse_link(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_latency_out_of_bounds_is_refused(value):
    with pytest.raises(ResultsError, match="latency_ms"):
        network_of(parse_link("10/1"), latency_ms=value)
