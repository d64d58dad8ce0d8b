"""The asynchronous server trains like a short event loop."""

from itertools import pairwise, product

import numpy as np
import pytest

from edgewire.compression.decoder import decode_update
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.conf.check import codec_of
from edgewire.conf.network import Network
from edgewire.strategy.staleness import Polynomial
from tests.local_runs import local_run
from tests.runs import configured, history_of, model_bytes
from tests.strategy.event_loop import CODECS, POLICIES, WAITS, assert_same, at_once, event_loop
from tests.strategy.federation import (
    NODES,
    TRAINED,
    Federation,
    Trainer,
    gradient,
    start,
)

LIKE = [  # policy, codec, network, options of the server
    *product(POLICIES, CODECS, [WAITS], [{}]),
    *product(POLICIES, ["dense"], [WAITS], [{"buffer": 2}, {"buffer": 5}]),
    *product(["none"], ["topk"], [WAITS], [{"buffer": 3, "sender_exponent": e} for e in (0.5, 1)]),
    *(("global", "dense", Network(waiting=waiting, waiting_seconds=0.5, latency_ms=20), {})
      for waiting in ("exponential", "fixed", "none")),
    ("global", "dense", WAITS, {"downlink": make_codec()}),
]  # fmt: skip


@pytest.mark.few(9)
@pytest.mark.parametrize(("policy", "codec", "network", "options"), LIKE)
def test_the_server_equals_an_event_loop(policy, codec, network, options):
    federation = Federation(Trainer(steps=at_once, **CODECS[codec]), network, seed=3)
    strategy = federation.push(60, staleness=POLICIES[policy](), **options)
    again = {key: value for key, value in options.items() if key != "downlink"}  # it is lossless
    models, trace = event_loop(network, 60, policy, make_codec(**CODECS[codec]), seed=3, **again)
    assert len({node for _, node, _ in trace[:8]}) > 1
    assert_same(federation, models, trace)
    steps = sum(a.tobytes() != b.tobytes() for a, b in pairwise(federation.models))
    assert steps == 60 // options.get("buffer", 1)
    assert strategy.traffic.client_updates == 60
    assert strategy.traffic.failures == 0


def test_a_recorded_loss_is_the_mean_over_the_samples_since_the_last_record():
    strategy = Federation(Trainer(steps=at_once), WAITS).push(20, record_every=5)
    _, trace = event_loop(WAITS, 20, "none", make_codec())
    last = [(node, 1 / (number - 1) if number > 1 else 2.0) for _, node, number in trace[-5:]]
    mean = sum(node * loss for node, loss in last) / sum(node for node, _ in last)
    assert strategy.train_metrics["loss"] == pytest.approx(mean)


def test_downlink_errors_do_not_add_up():
    whole, changes = (Federation(Trainer(steps=at_once), WAITS) for _ in range(2))
    plain = whole.push(60)
    strategy = changes.push(60, downlink=make_codec(quantizer="int8"))
    assert strategy.traffic.failures == 0
    first_time = NODES * plain.traffic.downlink_bytes / (60 + NODES - 1)
    assert first_time < strategy.traffic.downlink_bytes < 0.6 * plain.traffic.downlink_bytes
    behind = [
        min(np.abs(model - server).max() for server in changes.models)
        for model in changes.trainer.models.values()
    ]
    assert 0 < max(behind) < 0.03  # int8 rounds the change by a few gradients


def test_mixing_moves_the_model_towards_the_nodes_model():
    federation = Federation(Trainer(update="delta", steps=at_once), WAITS, seed=2)
    federation.push(20, staleness=Polynomial(), server_lr=0.6, mix=True)
    _, trace = event_loop(WAITS, 20, "polynomial", make_codec(), seed=2)
    x = start()
    sent = dict.fromkeys(range(1, NODES + 1), (start(), 0))
    for version, (_, node, number) in enumerate(trace):
        model, before = sent[node]
        share = 0.6 * (1 + version - before) ** -0.5
        own = np.concatenate(
            [(model - gradient(node, number))[:TRAINED], gradient(node, number)[TRAINED:]]
        )
        x = (1 - share) * x + share * own
        # The mixed model includes running statistics.
        np.testing.assert_allclose(federation.models[version + 1], x, atol=1e-5)
        sent[node] = x, version + 1


SMALL = ["nodes=12", "strategy.pushes=40", "eval_every=20", "batch_size=10"]


def result_of(folder, name, workers, *words):
    """Run a preset on the local engine; return its weights and its history."""
    local_run(folder, f"algorithm={name}", *SMALL, *words, workers=workers)
    return model_bytes(folder), history_of(folder)


@pytest.mark.parametrize(("name", "sent"), [("comp_asgd", [10, 0]), ("adacomp", [9, 1])])
def test_comp_asgd_selects_over_the_whole_model_and_adacomp_in_each_tensor(name, sent):
    layout = Layout(("large", "small"), ((900,), (100,)), ("float32",) * 2)
    update = np.where(np.arange(1000) < 900, 1, 0.01).astype(np.float32)
    codec = codec_of(configured(f"algorithm={name}"))
    indices = decode_update(codec.encode(update, layout), layout).indices
    assert np.diff(np.searchsorted(indices, layout.offsets)).tolist() == sent


def test_nodes_are_told_fedasyncs_rho(monkeypatch):
    seen, update = set(), Trainer.update

    def noting(self, node, model, orders):
        seen.add(orders.proximal_mu)
        return update(self, node, model, orders)

    monkeypatch.setattr(Trainer, "update", noting)
    Federation(Trainer(update="delta")).push(4, proximal_mu=2.0)
    assert seen == {2.0}


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        (["schedule=cosine"], [0.1, 0.1, 0.05]),  # each row shows the rate used before that row
        (["schedule=plateau", "schedule.patience=1"], [0.1, 0.1, 0.1]),
    ],
)
def test_a_schedule_counts_asynchronous_updates(words, rates, tmp_path):
    _, rows = result_of(tmp_path, "adacomp", 1, *words)
    assert [row["lr"] for row in rows] == pytest.approx(rates)


def test_adacomp_that_sends_everything_is_asgd(tmp_path):
    """Every update changes every parameter, so each parameter is as stale as the whole update."""
    whole = ["compression.density=1.0", "compression.quantizer=float32"]
    weights, rows = result_of(tmp_path / "adacomp", "adacomp", 1, *whole)
    expected, reference = result_of(tmp_path / "asgd", "asgd", 1)
    assert weights == expected
    assert [row["loss"] for row in rows] == [row["loss"] for row in reference]
