"""The asynchronous server against an event loop in a few lines, and what nodes may do to it."""

import heapq
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from compression import PayloadError, decode_update, make_codec
from conf import run_config
from conf.load import compose_config, to_config
from simulation.clock import NEVER, Ideal, VirtualClock
from simulation.job import Job
from simulation.local import run_local
from strategy.asynchronous import Asynchronous
from strategy.staleness import Global, Ignored, PerParameter, Polynomial
from tests.strategy.federation import (
    LAYOUT,
    NODES,
    SIZE,
    TRAINED,
    Federation,
    Trainer,
    gradient,
    start,
)

ROOT = Path(__file__).parents[2]
WAITS = Ideal(waiting="uniform", waiting_seconds=1.0)
POLICIES = {"none": Ignored, "global": Global, "polynomial": Polynomial, "parameter": PerParameter}
CODECS = {
    "dense": {},
    "adacomp": {"sparsifier": "selective", "density": 0.05, "scope": "tensor"},
    "topk": {"sparsifier": "topk", "density": 0.05},
}


def event_loop(network, pushes, policy, codec, nodes=NODES, seed=0, buffer=1, in_flight=1):
    """Return every model, and who pushed when: the scheme, without messages or any of our server.

    Staleness is counted from a full history of index sets.
    """
    clock, heap, x = VirtualClock(network, seed), [], start()
    sums, pending, version = np.zeros(SIZE, np.float32), 0, 0
    history, models, trace = [], [start()], []
    memories, count = {n: {} for n in range(1, nodes + 1)}, dict.fromkeys(range(1, nodes + 1), 0)

    def send(node, now):
        count[node] += 1
        arrival = clock.arrival(node, now, 0, 0, 0)
        if arrival < NEVER:
            seen = version, len(history)
            heapq.heappush(heap, (arrival, sum(count.values()), node, count[node], seen))

    for node in memories:
        for _ in range(in_flight):
            send(node, 0.0)
    while heap and len(trace) < pushes:
        now, _, node, number, (before, when) = heapq.heappop(heap)
        payload = codec.encode(gradient(node, number), LAYOUT, memory=memories[node])
        update = decode_update(payload, LAYOUT)
        at = np.arange(SIZE) if update.indices is None else update.indices
        touched = np.array([sum(i in u for u in history[when:]) for i in at])
        stale = version - before
        factor = {
            "none": np.float32(1),
            "global": np.float32(1 / max(stale, 1)),
            "polynomial": np.float32((1 + stale) ** -0.5),
            "parameter": (1 / np.maximum(touched, 1)).astype(np.float32),
        }[policy]
        sums[at] += update.values * factor
        history.append(set(at.tolist()))
        pending += 1
        if pending == buffer:
            mean = sums / np.float32(buffer)
            x[:TRAINED] -= np.float32(0.5) * mean[:TRAINED]
            x[TRAINED:] -= mean[TRAINED:]
            sums[:], pending, version = 0, 0, version + 1
        trace.append((now, node, number))
        models.append(x.copy())
        if len(trace) < pushes:
            send(node, now)
    return models, trace


def at_once(node, server_round):
    """Gradients take no time but the waiting."""
    return 0


def assert_same(federation, models, trace):
    for found, expected in zip(federation.models, models, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert federation.grid.virtual_seconds == trace[-1][0]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_what_an_event_loop_does(policy, codec):
    federation = Federation(Trainer(steps=at_once, **CODECS[codec]), WAITS, seed=3)
    strategy = federation.push(60, staleness=POLICIES[policy]())
    models, trace = event_loop(WAITS, 60, policy, make_codec(**CODECS[codec]), seed=3)
    assert len({node for _, node, _ in trace[:8]}) > 1
    assert_same(federation, models, trace)
    assert strategy.traffic.client_updates == 60
    assert strategy.traffic.failures == 0


@pytest.mark.parametrize("waiting", ["exponential", "fixed", "none"])
def test_other_waits(waiting):
    network = Ideal(waiting=waiting, waiting_seconds=0.5, latency_ms=20)
    federation = Federation(Trainer(steps=at_once), network, seed=1)
    federation.push(30, staleness=Global())
    assert_same(federation, *event_loop(network, 30, "global", make_codec(), seed=1))


@pytest.mark.parametrize("buffer", [2, 5])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_buffer_makes_one_step_of_several_updates(policy, buffer):
    federation = Federation(Trainer(steps=at_once), WAITS)
    federation.push(23, staleness=POLICIES[policy](), buffer=buffer)
    models, trace = event_loop(WAITS, 23, policy, make_codec(), buffer=buffer)
    assert_same(federation, models, trace)
    steps = sum(a.tobytes() != b.tobytes() for a, b in pairwise(federation.models))
    assert steps == 23 // buffer


def test_several_messages_with_a_node_at_a_time():
    federation = Federation(Trainer(steps=at_once), WAITS)
    federation.push(40, staleness=Global(), in_flight=3)
    assert_same(federation, *event_loop(WAITS, 40, "global", make_codec(), in_flight=3))


def test_a_memory_does_not_go_with_several_messages_at_a_time():
    with pytest.raises(ValueError, match="in_flight above 1"):
        Federation(Trainer(**CODECS["topk"]), WAITS).push(4, in_flight=2)


def test_one_node_alone_is_plain_sgd():
    federation = Federation(Trainer(), nodes=1)
    federation.push(6, staleness=PerParameter())
    expected = [start()]
    for number in range(1, 7):
        x, g = expected[-1].copy(), gradient(1, number)
        x[:TRAINED] -= np.float32(0.5) * g[:TRAINED]
        x[TRAINED:] -= g[TRAINED:]
        expected.append(x)
    for found, model in zip(federation.models, expected, strict=True):
        assert found.tobytes() == model.tobytes()


def test_mixing_moves_the_model_towards_the_nodes_own():
    federation = Federation(Trainer(update="delta", steps=at_once), WAITS, seed=2)
    federation.push(20, staleness=Polynomial(), server_lr=0.6, mix=True)
    _, trace = event_loop(WAITS, 20, "polynomial", make_codec(), seed=2)
    x = start()
    sent = dict.fromkeys(range(1, NODES + 1), (start(), 0))
    for version, (_, node, number) in enumerate(trace):
        model, before = sent[node]
        share = 0.6 * (1 + version - before) ** -0.5
        x = (1 - share) * x + share * (model - gradient(node, number))
        np.testing.assert_allclose(federation.models[version + 1][:TRAINED], x[:TRAINED], atol=1e-5)
        sent[node] = x, version + 1


def test_crashed_nodes_are_not_waited_for():
    network = Ideal(waiting="uniform", waiting_seconds=1.0, crash=0.05)
    federation = Federation(Trainer(steps=at_once), network, nodes=20, seed=4)
    strategy = federation.push(150, staleness=Global())
    models, trace = event_loop(network, 150, "global", make_codec(), nodes=20, seed=4)
    assert_same(federation, models, trace)
    last = {node: now for now, node, _ in trace}
    assert 2 < sum(now < trace[-1][0] - 4 for now in last.values()) < 18  # some are gone
    assert strategy.traffic.failures == 0


def test_a_run_ends_when_all_have_crashed(caplog):
    network = Ideal(waiting="fixed", waiting_seconds=1.0, crash=0.3)
    federation = Federation(Trainer(steps=at_once), network, seed=1)
    strategy = federation.push(1000)
    assert 0 < strategy.traffic.client_updates < 100
    assert federation.grid.virtual_seconds < 100
    assert f"no node is left after {strategy.traffic.client_updates} of 1000" in caplog.text


def test_a_node_that_comes_back_has_lost_its_memory():
    network = Ideal(waiting="fixed", waiting_seconds=1.0, crash=0.2, rejoin_seconds=5.0)
    trainer, begun = Trainer(steps=at_once, **CODECS["topk"]), []

    def reply(key, answer):
        begun.append((key[1], bool(federation.pool._host._contexts)))  # none before the first one
        return answer

    federation = Federation(trainer, network, nodes=1, seed=3, reply=reply)
    federation.push(30)
    _, trace = event_loop(network, 30, "none", make_codec(), nodes=1, seed=3)
    returns = [after[2] for before, after in pairwise(trace) if after[0] - before[0] > 5]
    assert 2 < len(returns) < 15
    assert [number for number, known in begun if not known] == [1, *returns]


def test_nodes_join_when_they_come():
    network = Ideal(waiting="fixed", waiting_seconds=1.0, join_seconds=10.0)
    federation = Federation(Trainer(steps=at_once), network, nodes=8, seed=2)
    federation.push(80)
    clock, expected = VirtualClock(network, 2), dict.fromkeys(range(1, 9), 0)
    end = federation.grid.virtual_seconds
    for node in expected:
        expected[node] = int(end - clock.joined(node) + 1e-9)
    answered = {n: len([1 for key in federation.seen if key[0] == n]) for n in expected}
    assert all(0 <= answered[n] - expected[n] <= 1 for n in expected)
    assert max(map(clock.joined, expected)) > 3


def test_who_does_not_answer_in_time_is_sent_a_message_anew(caplog):
    network = Ideal(waiting="fixed", waiting_seconds=1.0, loss=0.3)
    federation = Federation(Trainer(steps=at_once), network, seed=1)
    strategy = federation.push(60, timeout=2.5)
    assert strategy.traffic.client_updates == 60
    assert strategy.traffic.failures > 5
    assert "no answer in time" in caplog.text
    assert len(federation.seen) >= 60 + strategy.traffic.failures
    assert len(strategy._late) <= NODES


def test_answers_that_come_too_late_are_not_applied_and_taken_back():
    """Every third message takes its node longer than the server waits."""
    slow = Ideal(seconds_per_step=1.0)
    trainer = Trainer(steps=lambda node, number: 4 if number % 3 == 0 else 1, **CODECS["topk"])
    federation = Federation(trainer, slow, seed=1)
    strategy = federation.push(40, timeout=3.0)
    assert strategy.traffic.failures > 5
    assert strategy.traffic.client_updates == 40
    assert len(federation.grid._arrivals) <= NODES
    for node in range(1, NODES + 1):
        answered = [number for n, number in federation.seen if n == node]
        assert answered == list(range(1, len(answered) + 1))


def test_a_node_that_was_away_is_greeted_again_and_its_answers_count():
    network = Ideal(waiting="fixed", waiting_seconds=1.0, crash=0.2, rejoin_seconds=20.0)
    trainer = Trainer(steps=at_once, **CODECS["topk"])
    federation = Federation(trainer, network, nodes=6, seed=1)
    strategy = federation.push(150, timeout=3.0)
    assert strategy.traffic.client_updates == 150
    last = max(number for _, number in federation.seen)
    assert last > 20


def test_what_cannot_be_used_is_counted_and_the_node_asked_again(caplog):
    def nan(made):
        made[5] = np.nan
        return made

    spoil = {(2, number): nan for number in (1, 3)}
    federation = Federation(Trainer(steps=at_once, spoil=spoil), WAITS)
    strategy = federation.push(40)
    assert strategy.traffic.failures == 2
    assert strategy.traffic.client_updates == 38
    assert (2, 4) in federation.seen
    assert caplog.text.count("node 2 left out") == 1
    assert np.isfinite(federation.models[-1]).all()


def test_a_run_in_which_nothing_is_of_use_any_more_ends():
    def nan(made):
        return made * np.float32(np.nan)

    spoil = {(node, number): nan for node in range(1, NODES + 1) for number in range(5, 999)}
    federation = Federation(Trainer(steps=at_once, spoil=spoil), WAITS)
    with pytest.raises(PayloadError, match=r"80 updates in a row were of no use: .*NaN"):
        federation.push(5000)


WRONG = [
    ({"pushes": 0}, "pushes must be at least 1"),
    ({"buffer": 0}, "buffer must be at least 1"),
    ({"in_flight": -1}, "in_flight must be at least 1"),
    ({"update": "model"}, "update must be one of gradient, delta"),
    ({"server_lr": 0.0}, "server_lr must be a number above 0"),
    ({"mix": True}, "mix goes with update=delta"),
    ({"mix": True, "update": "delta", "buffer": 2}, "mix goes with"),
    ({"staleness": 3}, "staleness is chosen by"),
    ({"downlink": make_codec()}, "downlink=full"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Asynchronous(**options)


PRESETS = ["asgd", "comp_asgd", "adacomp", "fedasync", "fedbuff"]
SMALL = ["nodes=12", "strategy.pushes=40", "eval_every=20", "batch_size=10"]


def result_of(folder, name, workers, *words):
    """Run a preset on the local engine; return its weights and its history, without seconds."""
    composed = compose_config([f"algorithm={name}", *SMALL, *words])
    config = to_config(composed)
    values = run_config(composed, output=str(folder))
    job = Job(ROOT, values, config.nodes, folder, config.seed, config.network)
    run_local(job, workers=workers)
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    return (folder / "model.safetensors").read_bytes(), rows


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_for_any_number_of_workers(name, tmp_path):
    weights, rows = result_of(tmp_path / "1", name, 1)
    assert result_of(tmp_path / "2", name, 2) == (weights, rows)
    assert [row["round"] for row in rows] == [0, 20, 40]
    assert rows[-1]["client_updates"] == 40
    assert rows[-1]["staleness"] > 0.5
    assert rows[-1]["train_loss"] < rows[1]["train_loss"]


SLOW = ["network.up_mbps=0.02", "network.seconds_per_step=0.1", "network.crash=0.02"]


def test_where_bytes_decide_the_order_it_is_the_same_too(tmp_path):
    weights, rows = result_of(tmp_path / "1", "adacomp", 1, *SLOW)
    assert result_of(tmp_path / "3", "adacomp", 3, *SLOW) == (weights, rows)


def test_adacomp_that_sends_everything_is_asgd(tmp_path):
    """Every update touches every parameter: the staleness of each is that of the update."""
    whole = ["compression.density=1.0", "compression.quantizer=float32"]
    weights, rows = result_of(tmp_path / "adacomp", "adacomp", 1, *whole)
    expected, reference = result_of(tmp_path / "asgd", "asgd", 1)
    assert weights == expected
    assert [row["loss"] for row in rows] == [row["loss"] for row in reference]
