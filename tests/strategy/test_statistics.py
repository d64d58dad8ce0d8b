"""Running statistics are a convex mix of old and reported ones, for any staleness and optimiser."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from edgewire.compression.base import PayloadError
from edgewire.compression.decoder import Update
from edgewire.compression.flower.native_tensors import Initial
from edgewire.compression.layout import Layout
from edgewire.strategy.aggregation import NodeMeans, ReportedState, ReportedTensors
from edgewire.strategy.run.serialization import from_bytes, to_bytes
from tests.strategy.event_loop import POLICIES, WAITS, at_once
from tests.strategy.federation import MOMENTUM, TRAINED, Federation, Trainer, always, start
from tests.strategy.test_node_means import vectors_of

BN = Layout(
    ("fc.weight", "bn.running_mean", "bn.running_var"), ((4, 3), (4,), (4,)), ("float32",) * 3
)
trimmed = partial(trim_mean, proportiontocut=0.2)
ROOM = 1e-6  # start() lies within -1..1, the nodes' statistics within 2..3


def positive(values):
    """Replace the statistics of a node's update by values within 2..3."""
    values[TRAINED:] = 2 + np.abs(values[TRAINED:])
    return values


def trainer(update="gradient", **options):
    return Trainer(update, spoil=always(positive, range(1, 40)), steps=at_once, **options)


def assert_within(federation):
    low = start()[TRAINED:].min()
    for model in federation.models:
        assert (model[TRAINED:] >= low).all()
        assert (model[TRAINED:] <= 3 + ROOM).all()
    assert (np.abs(federation.models[-1][TRAINED:] - start()[TRAINED:]) > 0.01).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "options",
    [{}, {"buffer": 3}, {"update": "delta", "mix": True, "server_lr": 0.6},
     {"update": "delta", "server_lr": 7.0}],
    ids=str,
)  # fmt: skip
def test_asynchronous_statistics_stay_within_the_reported_range(policy, options):
    federation = Federation(trainer(options.get("update", "gradient")), WAITS)
    federation.push(60, staleness=POLICIES[policy](), **options)
    assert_within(federation)


@pytest.mark.parametrize("downlink", ["full", "average"])
@pytest.mark.parametrize("options", [{}, {"server_lr": 5.0}, {"fraction_train": 0.5}], ids=str)
def test_synchronous_statistics_stay_within_the_reported_range(downlink, options):
    update = "delta" if "server_lr" in options else "gradient"
    made = trainer(update, optimizer=MOMENTUM, sparsifier="topk", density=0.1)
    federation = Federation(made)
    federation.run(6, **options, **({"downlink": None} if downlink == "full" else {}))
    assert_within(federation)


shares = st.floats(0, 2)


@given(data=st.data(), nodes=st.integers(1, 6), scale=st.floats(1e-6, 1e6))
def test_a_mix_is_convex(data, nodes, scale):
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    there = np.abs(draw.normal(size=20)).astype(np.float32) * np.float32(scale)
    mix, reported, expected, total = ReportedTensors(BN), [there[12:]], 0.0, 0.0
    for _ in range(nodes):
        own = (np.abs(draw.normal(size=8)) * scale).astype(np.float32)
        share, weight = data.draw(shares), data.draw(st.floats(0.1, 100))
        mix.add(own, {}, share, weight)
        reported.append(own)
        a = min(share, 1.0)
        expected = expected + weight * ((1 - a) * there[12:].astype(np.float64) + a * own)
        total += weight
    _, values = mix.joined(None, np.zeros(12, np.float32), there)
    np.testing.assert_allclose(values[12:], expected / total, rtol=1e-5)
    assert (values[12:] >= np.min(reported, axis=0)).all()
    assert (values[12:] <= np.max(reported, axis=0)).all()


def of(indices, values):
    return Update(BN, indices, np.asarray(values, np.float32), object)


def test_an_update_without_all_statistics_is_refused():
    mix = ReportedTensors(BN)
    indices = np.r_[1:3, 13:20].astype(np.uint32)  # entry 12 is missing
    with pytest.raises(PayloadError, match="leaves out statistics"):
        mix.split_update(of(indices, np.ones(9)))


def test_a_variance_below_zero_is_refused():
    values = np.ones(20)
    values[17] = -1e-9
    with pytest.raises(PayloadError, match="running variance below 0"):
        ReportedTensors(BN).split_update(of(None, values))
    values[17], values[13] = 0, -5  # a mean may be below 0
    assert len(ReportedTensors(BN).split_update(of(None, values))[2]) == 8


@pytest.mark.parametrize(("kind", "middle"), [("median", np.median), ("trimmed", trimmed)])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_robust_mix_is_the_median_or_the_trimmed_mean(kind, middle, share):
    draw = np.random.default_rng(0)
    there, reported = np.ones(20, np.float32), draw.uniform(1, 3, (7, 8)).astype(np.float32)
    mix = ReportedTensors(BN, kind=kind, trim=0.2)
    for _ in range(2):  # the second pass keeps nothing of the first
        for weight, each in enumerate(reported, 1):
            mix.add(each, {}, share, weight)
        _, values = mix.joined(None, np.zeros(12, np.float32), there)
        mix.take()
        expected = middle(1 - share + share * reported, axis=0)
        np.testing.assert_allclose(values[12:], expected, rtol=1e-6)


NATIVE = {
    "scale": np.float64([-np.inf, 0.5, 3]), "count": np.asarray(5),
    "mask": np.asarray([True, False]), "constant": np.ones(2, np.float32),
    "local:c": np.zeros(TRAINED, np.float32),
}  # fmt: skip


def reports_of(draw, nodes):
    """Return reports of native tensors; a node that changes nothing sends the server's arrays."""
    changed = [
        {
            "scale": draw.normal(size=3), "count": np.asarray(draw.integers(0, 9)),
            "mask": draw.random(2) > 0.5, "local:c": draw.normal(size=TRAINED).astype(np.float32),
        }
        for _ in range(nodes)
    ]  # fmt: skip
    kept = draw.random((nodes, len(NATIVE))) < 0.4
    return [
        {name: NATIVE[name] if same else each.get(name, NATIVE[name])
         for name, same in zip(NATIVE, row, strict=True)}
        for row, each in zip(kept, changed, strict=True)
    ]  # fmt: skip


@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 5), share=st.floats(0, 2))
def test_native_tensors_are_the_weighted_means_of_the_reports(seed, nodes, share):
    """Halfway through, the sums travel in a checkpoint, in which the arrays are copied."""
    draw, state = np.random.default_rng(seed), ReportedState()
    initial = Initial({n: a for n, a in NATIVE.items() if n != "local:c"}, vectors=vectors_of())
    there = initial.arrays
    reports = [
        {n: there[n] if a is NATIVE[n] else a for n, a in each.items()}
        for each in reports_of(draw, nodes)
    ]
    weights = draw.uniform(0.1, 5, nodes)
    for node, (report, weight) in enumerate(zip(reports, weights, strict=True)):
        mix = ReportedTensors(BN.without([1, 2]), initial, state)
        mix.add(np.empty(0, np.float32), report, share, weight, node)
        state = from_bytes(ReportedState, to_bytes(state))
    mix = ReportedTensors(BN.without([1, 2]), initial, state)
    mix.take()
    a, found = min(share, 1.0), mix.natives
    with np.errstate(invalid="ignore"):
        means = {n: np.average([r[n] for r in reports], axis=0, weights=weights) for n in NATIVE}
        scale = np.where(a < 1, (1 - a) * there["scale"], 0) + (a * means["scale"] if a else 0)
    np.testing.assert_allclose(found["scale"], scale, rtol=1e-9)
    assert found["count"] == pytest.approx(means["count"], abs=0.5 + 1e-9)
    assert found["count"].dtype == np.int64
    odd = np.abs(means["mask"] - 0.5) > 1e-9
    np.testing.assert_array_equal(found["mask"][odd], means["mask"][odd] > 0.5)
    np.testing.assert_array_equal(found["constant"], there["constant"])
    vectors = NodeMeans(vectors_of(), {}).update(there, means, dict(enumerate(weights)))
    np.testing.assert_allclose(found["local:c"], vectors["local:c"], rtol=1e-5, atol=1e-6)
    assert not state.sums
    assert not state.nodes
