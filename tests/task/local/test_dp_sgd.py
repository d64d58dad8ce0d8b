"""DP-SGD: single gradients are clipped, the noise has its size, and nothing else leaves a node."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from scipy.stats import kstest
from torch import nn

from edgewire.client.node import Node
from edgewire.client.training import Trainer
from edgewire.compression.flower.headers import TrainConfig
from edgewire.task.errors import TaskError
from edgewire.task.flat_model import FlatModel, to_array
from edgewire.task.local import LocalAlgorithm
from edgewire.task.local.dp_sgd import DpSgd, SampleGradients, expect_private
from edgewire.task.local.secret_draws import normal, uniform
from edgewire.task.objectives.classification import Classification
from edgewire.task.objectives.regression import Regression
from tests.runs import configured

CLIP, ROUNDED = 0.7, 1e-3
PRIVATE = ["dataset=digits", "model=mlp", "nodes=3", "privacy=sample", "privacy.noise=1"]


class Tied(nn.Module):
    """Has a tied, a frozen and an unused parameter, dropout at a rate of 0, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = self.mean + x.mean(0)
        x = torch.tanh(self.first(x)) * self.frozen
        return self.second(nn.functional.dropout(x, 0.0))


MODELS = {
    "linear": lambda: nn.Linear(4, 4),
    "tied": Tied,
    "frozen norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval()),
    "personal": lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)),
    "half": lambda: nn.Sequential(nn.Linear(4, 8).half(), nn.Linear(8, 4).half()),
}


def gradients_of(module, objective=None):
    # Personal parameters are the first in the vector, and not the first of this module.
    flat = FlatModel(module, personal=[n for n, _ in module.named_parameters() if n[:2] == "1."])
    return flat, SampleGradients(flat, objective or Classification(), LocalAlgorithm().precision)


def samples(count, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    x = torch.from_numpy(scale * random.standard_normal((count, 4))).float()
    return x, torch.from_numpy(random.integers(0, 4, count))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [0.3, 1e6])
def test_the_total_is_the_sum_of_each_samples_clipped_gradient(name, clip):
    torch.manual_seed(0)
    flat, gradients = gradients_of(MODELS[name]())
    dtype = torch.float16 if name == "half" else torch.float32
    x, y = samples(7)
    x = x.to(dtype)
    before = flat.natives()
    found = gradients.total((x, y), clip)
    expected = np.zeros(flat.num_parameters)
    for at in range(7):
        flat.zero_grad()
        flat.module.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(flat.module(x[at : at + 1]), y[at : at + 1]).backward()
        own = flat.gradient.double().numpy()
        expected += own * min(1, clip * (1 - ROUNDED) / max(np.linalg.norm(own), 1e-30))
    atol = 2e-2 if name == "half" else 1e-5
    np.testing.assert_allclose(found, expected, atol=atol)
    assert np.linalg.norm(expected) > 0.1
    if name != "tied":  # the plain passes have changed its buffer
        assert all(np.array_equal(a, before[n]) for n, a in flat.natives().items())


def test_a_sample_changes_the_total_by_at_most_the_clip():
    """200 pairs of data sets; without the clip nearly all of them are further apart."""
    torch.manual_seed(0)
    _, gradients = gradients_of(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)))
    random, odd = np.random.default_rng(0), (math.nan, math.inf, 1e30, 1e-30, 0.0)
    apart, without = [], []
    for seed in range(200):
        x, y = samples(int(random.integers(1, 40)), seed, scale=float(10 ** random.uniform(-2, 3)))
        at = int(random.integers(len(x)))
        if seed % 5 == 0:
            x[at, 0] = odd[seed // 5 % len(odd)]
        kept = torch.arange(len(x)) != at
        for clip, into in ((CLIP, apart), (1e9, without)):
            one, other = (gradients.total(each, clip) for each in ((x, y), (x[kept], y[kept])))
            into.append(np.linalg.norm(one - other))
    assert max(apart) <= CLIP
    assert np.mean(np.array(without) > CLIP) > 0.5


def test_chunks_change_only_the_last_bits(monkeypatch):
    module = nn.Linear(4, 4)
    whole = gradients_of(module)[1].total(samples(10), CLIP)
    monkeypatch.setattr("edgewire.task.local.dp_sgd.CHUNK", 3)
    chunked = gradients_of(module)[1].total(samples(10), CLIP)
    np.testing.assert_allclose(whole, chunked, rtol=1e-5, atol=1e-7)


def test_the_noise_is_normal_with_the_deviation_z_c_over_q_n():
    _, gradients = gradients_of(nn.Linear(1000, 200, bias=False))
    private = DpSgd(gradients, (torch.zeros(50, 1000), torch.zeros(50)), 0.2, CLIP, 3.0)
    none = torch.zeros(0, 1000), torch.zeros(0)  # an empty mini-batch
    noise = np.concatenate([private.gradient(none).numpy() for _ in range(5)])
    assert noise.size == 10**6
    scaled = noise.astype(np.float64) * (0.2 * 50) / (3.0 * CLIP)
    assert abs(scaled.var() - 1) < 0.01
    assert abs(scaled.mean()) < 0.005
    assert kstest(scaled[: 10**5], "norm").pvalue > 1e-6
    assert len(np.unique(noise)) > 0.95 * 10**6  # no part of the stream occurs twice


def test_each_sample_is_in_a_mini_batch_with_the_probability_q():
    x = torch.arange(1000.0)[:, None]
    batches = DpSgd(None, (x, x), 0.3, CLIP, 1.0).batches()
    drawn = [next(batches) for _ in range(200)]
    assert all(torch.equal(inputs, targets) for inputs, targets in drawn)
    sizes = np.array([len(inputs) for inputs, _ in drawn])
    assert abs(sizes.mean() - 300) < 5  # 5 standard errors
    assert 0.5 < sizes.var() / (1000 * 0.3 * 0.7) < 1.7
    counts = torch.bincount(torch.cat([inputs for inputs, _ in drawn]).flatten().long())
    assert abs(counts.float().var() / (200 * 0.3 * 0.7) - 1) < 0.25  # they are independent
    assert len(next(DpSgd(None, (x, x), 1.0, CLIP, 1.0).batches())[0]) == 1000


def test_draws_depend_on_no_seed():
    for make in (partial(uniform, 9), partial(normal, 9)):
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        one = make()
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        assert not np.isin(one, make()).any()
    assert not np.isin(uniform(9), uniform(9)).any()


def normed(layer):
    return nn.Sequential(nn.Unflatten(1, (2, 2)), layer, nn.Flatten())


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (normed(nn.BatchNorm1d(2)), "^privacy=sample: BatchNorm mixes samples: take GroupNorm, as"),
        (normed(nn.InstanceNorm1d(2, track_running_stats=True)), "no change of buffers in place"),
        (Branching(4, 4), "torch cannot vectorise the model"),
    ],
)
def test_a_model_without_gradients_of_single_samples_is_refused_in_one_line(module, line):
    class Data:
        class train:
            inputs, targets = samples(3)

        prepared = staticmethod(lambda inputs: inputs)

    with pytest.raises(TaskError, match=line) as caught:
        expect_private(module, Classification(), LocalAlgorithm().precision, Data)
    assert "\n" not in str(caught.value)


TRAINED = {
    "sgd": [],
    "accumulated": ["local.accumulate=2", "local_steps=4"],
    "kept": ["local=kept_optimizer", "optimizer=adam", "lr=0.001"],
    "scaffold": ["local=scaffold"],
    "fedprox": ["local=fedprox", "local.mu=0.1"],
    "bfloat16": ["local.autocast=bfloat16"],
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_node_sends_a_noisy_model_and_no_loss(name):
    config = configured(*PRIVATE, "privacy.rate=0.25", *TRAINED[name])
    trainer, state = Trainer(config), RecordDict()
    start = to_array(trainer.flat.state).copy()
    beside = {"local:control": np.zeros(trainer.flat.num_parameters, np.float32)}
    count, steps = len(trainer.samples.of(Node(0, 3), held_back=False)[1]), 4
    steps //= trainer.local.accumulate
    sent = []
    for _ in range(2):
        found, metrics = trainer.train(Node(0, 3), start, TrainConfig(0.1, 1), beside, state)
        sent.append(found.copy())
        assert metrics == {"loss": 0.0, "num-examples": count, "num-steps": steps}
    assert not np.array_equal(*sent)
    assert not np.array_equal(sent[0], start)
    orders = TrainConfig(0.1, 1, most_steps=1)
    assert trainer.train(Node(0, 3), start, orders, beside, state)[1]["num-steps"] == 1


def test_a_gradient_is_noisy_and_has_no_loss():
    trainer = Trainer(configured(*PRIVATE, "algorithm=sgd", "privacy.noise=0.5", "privacy.rate=1"))
    start = to_array(trainer.flat.state).copy()
    both = [trainer.gradient(Node(0, 3), start, number=0) for _ in range(2)]
    assert {metrics["loss"] for _, metrics in both} == {0.0}
    noise = (both[0][0] - both[1][0]) / math.sqrt(2)
    expected = 0.5 / both[0][1]["num-examples"]
    assert abs(noise.std() / expected - 1) < 0.05


class Counting(nn.Linear):
    """Counts its samples' mean in a buffer, which is sent."""

    def __init__(self):
        super().__init__(64, 10)
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, x):
        self.seen = self.seen + x.flatten(1).mean(0)
        return super().forward(x.flatten(1))


def test_buffers_that_layers_change_are_sent_as_they_came(monkeypatch):
    monkeypatch.setattr("edgewire.conf.build.model_of", lambda config, data: Counting())
    for words in ([], ["algorithm=sgd"]):
        trainer = Trainer(configured(*PRIVATE, *words))
        start, came = to_array(trainer.flat.state).copy(), {"seen": np.full(64, 3, np.float32)}
        trainer.update(Node(0, 3), start, TrainConfig(0.1, 1), came, RecordDict())
        assert np.array_equal(trainer.natives()["seen"], came["seen"])


def test_the_loss_may_be_below_0():
    class Below(Regression):
        def loss(self, model, inputs, targets):
            return -10 + super().loss(model, inputs, targets)

    _, gradients = gradients_of(nn.Linear(4, 1), Below())
    x, _ = samples(5)
    assert gradients.total((x, x[:, :1]), CLIP).isfinite().all()
