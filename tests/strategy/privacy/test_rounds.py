"""Without one node, each sum of a private run changes by at most the clipping norm, and no more."""

import json
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.compression.screening import Screening
from edgewire.conf.privacy import Privacy
from edgewire.conf.schema import ConfigError
from edgewire.report.card import write_card
from edgewire.strategy.privacy import rounds
from edgewire.strategy.privacy.accounting import Mechanism, epsilon_of
from edgewire.strategy.privacy.ledger import FILE
from edgewire.strategy.privacy.rounds import NoisyMean, NoisyRounds
from edgewire.strategy.run import checkpointer
from edgewire.strategy.synchronous import Rounds
from edgewire.task.errors import TaskError
from tests.local_runs import Stopped, at_row, local_run, raising
from tests.runs import history_of, model_bytes, nodes_of, result_of
from tests.strategy import federation
from tests.strategy.federation import Federation, Trainer

CLIP, ROUNDS, NODES = 0.5, 10, 4
FLAT = Layout(("fc.weight", "fc.bias"), ((20, 12), (18,)), ("float32",) * 2)
OPTIONS = Privacy(unit="node", clip=CLIP, noise=1.0, rate=0.5)
TOPK = {"sparsifier": "topk", "density": 0.05}  # what is not sent stays in the residual


class Learner(Trainer):
    """A trainer whose gradients depend on the model; their norms lie on both sides of `CLIP`."""

    longest = math.inf  # what a node clips its gradient to

    def gradient(self, node, model, natives=None, *, number):
        made, metrics = super().gradient(node, model, number=number)
        made = (made + model) * np.float32(0.004 * (1 + (node.index + number) % 20))
        share = min(self.longest / np.linalg.norm(made), 1)
        return made * np.float32(share), metrics


class Record:
    """What a run has released, and the sums behind it; `means`: what it releases, if given.

    Composition is about outputs that are the same: then the noise has made up for other sums.
    """

    def __init__(self, seed, monkeypatch, absent=None, means=None, **options):
        self.sums, self.means, self.sent, self.added = [], [], [], set()
        random, given, begun = np.random.default_rng(seed), iter(means or []), []
        coins = [random.random(NODES) for _ in range(ROUNDS)]
        present = [node for node in range(1, NODES + 1) if node != absent]
        add, take, this = NoisyMean.add, NoisyMean.take, self

        def tossed(size):
            """Return the coins of the present nodes."""
            assert size == len(present)
            return torch.from_numpy(coins[len(begun)][[node - 1 for node in present]])

        def adding(self, indices, values, weight=1.0):
            this.added.add((len(begun), values.tobytes()))
            add(self, indices, values, weight)

        def noting(self):
            total = self.total / self.expected  # before it is taken
            indices, values = take(self)
            this.sums.append((total, indices))
            this.means.append((indices, values))
            return next(given) if means else (indices, values)

        with monkeypatch.context() as patch:
            patch.setattr(rounds, "uniform", tossed)
            patch.setattr(NoisyMean, "add", adding)
            patch.setattr(NoisyMean, "take", noting)
            made = Federation(Learner("delta", **TOPK), seed=seed)
            made.trainer.longest = options.pop("longest", math.inf)
            made.grid.get_node_ids = lambda: present
            push = made.grid.push_messages

            def sending(messages, ttl=math.inf):
                for each in (messages := list(messages)):
                    about = each.metadata.dst_node_id, len(begun)
                    self.sent.append((*about, parts_of(each.content)))
                return push(messages, ttl)

            made.grid.push_messages = sending
            run(made, begun, ROUNDS, **options)
        self.models = made.models

    def sent_without(self, node):
        return [each for each in self.sent if each[0] != node]


def run(made, begun, number, rate=0.5, screen=None, **options):
    """Run private rounds; `begun` gets an entry for each, before it begins."""

    def change(strategy):
        strategy.screening = screen or Screening(None, None, None, None)
        strategy.count_round = lambda: begun.append(1)
        private = replace(OPTIONS, rate=rate)
        strategy.rounds = partial(NoisyRounds, privacy=private, nodes=NODES)

    given = {"downlink": None, "verify_every": 3, "fraction_train": rate, **options}
    return made.run(number, change=change, **given)


def parts_of(content):
    """Return all of a message's records as plain values."""
    return [(name, [(key, getattr(value, "data", value)) for key, value in record.items()])
            for name, record in content.items()]  # fmt: skip


def violations(pairs, monkeypatch, **options):
    """Return how often a pair of runs, with and without a node, breaks the promise, by kinds."""
    found = dict.fromkeys(("far", "support", "seen", "rounds", "moved"), 0)
    for seed in pairs:
        absent = 1 + seed % NODES
        whole = Record(seed, monkeypatch, **options)
        less = Record(seed, monkeypatch, absent, whole.means, **options)
        for (one, places), (other, others) in zip(whole.sums, less.sums, strict=False):
            far = np.linalg.norm(one - other) * OPTIONS.rate * NODES
            found["far"] += far > CLIP
            found["support"] += not np.array_equal(*map(str, (places, others)))
        found["moved"] += not less.added <= whole.added  # an update depends on another node
        found["rounds"] += not len(whole.sums) == len(less.sums) == ROUNDS
        found["seen"] += whole.sent_without(absent) != less.sent_without(absent)
        found["seen"] += any(map(np.any, np.subtract(whole.models, less.models)))
    return found


@pytest.fixture(autouse=True)
def flat(monkeypatch):
    """Let the nodes train a model without BatchNorm."""
    for name, value in (("LAYOUT", FLAT), ("TRAINED", FLAT.size)):
        monkeypatch.setattr(federation, name, value)
    monkeypatch.setattr(Trainer, "layout", FLAT)
    monkeypatch.setattr(Trainer, "trained", FLAT.size)


DOWNLINKS = [{}, {"downlink": make_codec()}, {"downlink": make_codec("topk", density=0.1)},
             {"downlink": make_codec(quantizer="qsgd"), "follow": "weights"}]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("part", range(20))
def test_the_sums_of_neighbours_differ_by_at_most_the_norm(part, monkeypatch):
    """200 pairs of runs of ten rounds, with residuals."""
    for at, options in enumerate(DOWNLINKS):
        pairs = range(10 * part + at, 10 * part + 10, len(DOWNLINKS))
        found = violations(pairs, monkeypatch, **options)
        assert not any(found.values())


def unclipped(self, indices, values, weight=1.0):
    self.total[slice(None) if indices is None else indices] += values


def weighted(self, indices, values, weight=1.0):
    for _ in range(int(weight)):
        add(self, indices, values)


def sent_alone(self, indices, values, weight=1.0):
    """Clip, and remember what was sent, for noise on nothing else."""
    add(self, indices, values)
    self.places = np.union1d(getattr(self, "places", []), indices)


def union(self):
    """Return the noisy mean where a node has sent something, as `SparseMean` does."""
    _, values = take(self)
    places = np.array(getattr(self, "places", []), np.uint32)
    self.places = []
    return places, values[places]


def counting(self, indices, values, weight=1.0):
    add(self, indices, values)
    self.expected = self.count = getattr(self, "count", 0) + 1


def by_count(self):
    """Return the noisy mean of the updates that came."""
    self.count = 0
    return take(self)


def counted(self, number):
    """Draw nodes, and tell them how many they are."""
    self.updates = 0
    return drawn(self, number)


def stopping(self, used, rate):
    """Leave out the step of a round without updates."""
    if used:
        use(self, used, rate)


add, take, drawn, use = NoisyMean.add, NoisyMean.take, NoisyRounds.drawn, NoisyRounds.use
BN = Layout(("fc.weight", "bn.running_mean"), ((20, 12), (18,)), ("float32",) * 2)
DIFFERENCES = {"downlink": make_codec(quantizer="int8"), "follow": "differences"}
WITHOUT = {  # what is put in place of a check, the options that it allows, and what breaks then
    "clip after decoding": ({"add": unclipped}, {"longest": CLIP}, "far"),
    "equal weights": ({"add": weighted}, {"weighted_by_key": "num-examples"}, "far"),
    "noise everywhere": ({"add": sent_alone, "take": union}, {}, "support"),
    "fixed divisor": ({"add": counting, "take": by_count}, {}, "far"),
    "a draw for each node": ({"drawn": Rounds.drawn}, {}, "far"),
    "empty rounds": ({"use": stopping}, {}, "rounds"),
    "updates told as expected": ({"drawn": counted}, {}, "seen"),
    "no differences": ({}, DIFFERENCES, "seen"),
    "screen.clip=null": ({}, {"screen": Screening(None, None, 1.0, None)}, "moved"),
    "no statistics": ({"expect_changes": lambda *_: None}, {"rate": 0.9}, "seen"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("check", WITHOUT)
def test_each_check_is_needed(check, monkeypatch):
    changes, options, kind = WITHOUT[check]
    if check == "no statistics":
        for owner, name, value in (
            (federation, "LAYOUT", BN), (federation, "TRAINED", 240),
            (Trainer, "layout", BN), (Trainer, "trained", 240),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, value)
    for name, change in changes.items():
        monkeypatch.setattr(NoisyMean if name in ("add", "take") else NoisyRounds, name, change)
    assert violations(range(8), monkeypatch, **options)[kind] > 0


def test_the_noise_is_normal_with_the_deviation_z_c_over_q_n_everywhere():
    mean = NoisyMean(10**6, clip=0.5, noise=3.0, expected=40.0)
    updates = [(np.array([3], np.uint32), np.full(1, 1e30, np.float32)), (None, np.ones(10**6))]
    for update in [*updates, (np.zeros(0, np.uint32), np.zeros(0, np.float32))]:
        mean.add(update[0], update[1].astype(np.float32), 1e6)
    indices, values = mean.take()
    assert (indices, values.dtype) == (None, np.float32)
    scaled = values.astype(np.float64) * 40 / (3.0 * 0.5)
    assert abs(scaled.var() - 1) < 0.01
    assert abs(scaled.mean()) < 0.005
    assert kstest(scaled[10:100_000], "norm").pvalue > 1e-6
    assert abs(np.corrcoef(scaled, mean.take()[1])[0, 1]) < 0.005  # each round has its own
    assert abs(scaled[3] - 0.5 / 1.5) < 7  # the update of 1e30 is clipped


def test_each_node_is_drawn_by_itself(monkeypatch):
    """The rounds of each node, their number, and two nodes at a time; no seed repeats them."""
    drawn = []
    for _ in range(2):
        made, begun = Federation(Learner("delta", **TOPK)), []
        run(made, begun, 300, rate=0.3, lr=1e-9)
        drawn.append(
            [[(node, each) in made.seen for node in range(1, 5)] for each in range(1, 301)]
        )
        assert len(begun) == 300
    one, two = np.array(drawn)
    assert (one != two).mean() > 0.3  # 2 q (1 - q) is 0.42
    every = np.concatenate([one, two])
    assert abs(every.mean(0) - 0.3).max() < 0.08  # 4 standard errors
    assert 0.8 < every.sum(1).var() / (4 * 0.3 * 0.7) < 1.25
    assert abs(np.corrcoef(every.T) - np.eye(4)).max() < 0.17


RUN = ["algorithm=fedavg_topk", "strategy.weighted_by_key=null", "dataset=digits", "nodes=6",
       "privacy=node", "privacy.anyway=true", "privacy.noise=1", "strategy.fraction_train=0.4",
       "rounds=4", "local_steps=1", "downlink=full"]  # fmt: skip


def test_a_run_and_what_its_files_say(tmp_path):
    for name in ("one", "two"):
        local_run(tmp_path / name, *RUN)
    assert model_bytes(tmp_path / "one") != model_bytes(tmp_path / "two")  # one seed
    result = result_of(tmp_path / "one")["privacy"]
    assert result["text"].endswith("at delta 1e-05 (4 rounds, q=0.4, z=1)")
    lines = [json.loads(each) for each in (tmp_path / "one" / FILE).read_text().splitlines()]
    assert [line["spent"] for line in lines] == [[[0.4, 1.0, each]] for each in (1, 2, 3, 4)]
    assert not any("nodes" in line for line in lines)
    assert {row["train_loss"] for row in history_of(tmp_path / "one")} == {None}
    for node in nodes_of(tmp_path / "one")["nodes"]:
        assert node["samples"] is node["train_loss"] is None
    write_card(tmp_path / "one")
    card = (tmp_path / "one" / "README.md").read_text()
    bound = "PLD, for one node. Other models that were trained on the same samples are not counted,"
    assert f"Noise hides each node: {result['text']} by {bound}" in " ".join(card.split())
    assert not re.search("bytes up|up, down", card)


@pytest.mark.parametrize("words", ["strategy.fraction_train=0.01", "model.file=OTHER", "epsilon"])
def test_the_ledger_counts_rounds_also_without_nodes(words, tmp_path):
    other = tmp_path / "other"
    if words == "epsilon":
        budget = epsilon_of({Mechanism(0.4, 1.0): 2}, 1e-5)
        local_run(tmp_path, *RUN, f"privacy.epsilon={budget}")
        assert result_of(tmp_path)["round"] == 2
        assert "with more steps, epsilon by RDP would exceed" in result_of(tmp_path)["stopped"]
    elif words.startswith("model.file"):  # it has another unit
        local_run(other, "algorithm=fedavg", "rounds=1", "dataset=digits", "privacy=sample",
                  "privacy.noise=2")  # fmt: skip
        with pytest.raises(ConfigError, match="counts for privacy=sample, which does not add up"):
            local_run(tmp_path, *RUN, f"model.file={other}")
    else:
        local_run(tmp_path, *RUN, words)
        assert result_of(tmp_path)["privacy"]["spent"] == [[0.01, 1.0, 4]]
        assert result_of(tmp_path)["client_updates"] < 4


def test_a_resumed_run_counts_repeated_rounds_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    words = [*RUN, "checkpoint_every=1", "privacy.epsilon=1000", "rounds=3"]
    at_row(monkeypatch, 3, raising(Stopped))
    with pytest.raises(Stopped):
        local_run(tmp_path, *words)
    local_run(tmp_path, *words, resume=True)
    assert result_of(tmp_path)["privacy"]["spent"] == [[0.4, 1.0, 4]]
    assert result_of(tmp_path)["round"] == 3


def test_batchnorm_is_refused_or_personal(tmp_path):
    words = [*RUN, "dataset=digits", "model=mobilenet", "rounds=1", "nodes=1"]
    with pytest.raises(TaskError, match="and BatchNorm's statistics would be sent as values"):
        local_run(tmp_path, *words)
    local_run(tmp_path, *words, "personal=batchnorm")
    assert result_of(tmp_path)["round"] == 1
