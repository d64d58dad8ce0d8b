"""Local training is independent of the order of nodes, and equals a plain PyTorch loop."""

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from edgewire.client.node import Node, node_of
from edgewire.client.training import Trainer, trainer_for
from edgewire.compression.flower.headers import TrainConfig
from edgewire.conf.build import model_of
from edgewire.conf.schema import ConfigError
from tests.runs import configured, write_photos

NODES = 8


def trainer(*overrides):
    return Trainer(configured(f"nodes={NODES}", *overrides))


def start_of(t):
    return t.flat.state.numpy().copy()


@pytest.fixture(scope="module")
def plain():
    return trainer()


def result(t, node, number=1, lr=0.1, start=None, **options):
    start = start_of(t) if start is None else start
    vector, metrics = t.train(Node(node, NODES), start, TrainConfig(lr, number, **options))
    return vector.copy(), metrics


@pytest.mark.parametrize(
    "words", [[], ["optimizer.momentum=0.9", "model=four_layers", "local_steps=2"]]
)
def test_results_do_not_depend_on_the_order_of_nodes(words):
    """Momentum and BatchNorm statistics start anew with every message."""
    t = trainer(*words)
    start = start_of(t)
    forward = [result(t, n, start=start) for n in range(4)]
    backward = [result(t, n, start=start) for n in reversed(range(4))][::-1]
    for (a, m), (b, k) in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(a, b)
        assert m == k
    assert not np.array_equal(forward[0][0], forward[1][0])


def test_each_number_and_seed_has_a_different_stream(plain):
    start = start_of(plain)
    one = result(plain, 0, number=1, start=start)[0]
    assert not np.array_equal(one, result(plain, 0, number=2, start=start)[0])
    other = trainer("seed=1")
    other.flat.load(start)
    assert not np.array_equal(one, result(other, 0, start=start)[0])


@pytest.mark.parametrize(
    ("overrides", "make"),
    [
        (["optimizer.momentum=0"], lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            ["optimizer.momentum=0.9", "optimizer.weight_decay=0.01"],
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (["optimizer=adam"], lambda p: torch.optim.Adam(p, lr=0.1)),
    ],
)
def test_training_equals_a_plain_loop(overrides, make):
    """All samples are in one batch, so the order of samples does not matter."""
    t = trainer("local_steps=5", "batch_size=1000", *overrides)
    start = start_of(t)
    model = model_of(t.config, t.data)
    x, y = t.samples.of(Node(2, NODES), held_back=False)
    optimizer = make(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    vector, metrics = result(t, 2, start=start)
    expected = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    np.testing.assert_allclose(vector, expected, atol=2e-5)
    assert metrics["num-steps"] == 5
    assert metrics["num-examples"] == len(y)


def test_epochs_and_steps_are_counted():
    samples = len(trainer().samples.partition.indices(0))
    batches = -(-samples // 10)
    assert result(trainer("local_epochs=3"), 0)[1]["num-steps"] == 3 * batches
    assert result(trainer("local_steps=7"), 0)[1]["num-steps"] == 7
    assert result(trainer(f"local_steps={batches + 2}"), 0)[1]["num-steps"] == batches + 2


def test_the_strategy_s_proximal_term_pulls_towards_the_start():
    t = trainer("strategy=fedprox")
    start = start_of(t)
    free = result(t, 0, start=start)[0]
    held = result(t, 0, start=start, proximal_mu=1.0)[0]
    assert np.linalg.norm(held - start) < 0.9 * np.linalg.norm(free - start)


def test_held_back_samples_are_not_trained_on():
    t = trainer("dataset.holdout=0.25")
    node = Node(0, NODES)
    train, test = (t.samples.of(node, held_back=h)[0].flatten(1) for h in (False, True))
    assert len(test) == int(0.25 * (len(train) + len(test)))
    assert not {tuple(r) for r in train.tolist()} & {tuple(r) for r in test.tolist()}
    metrics = t.evaluate(node, start_of(t))
    assert metrics["num-examples"] == len(test)
    assert 0 <= metrics["accuracy"] <= len(test)


def test_a_batch_of_one_is_no_trouble_for_batchnorm():
    """BatchNorm fails on a single sample, so a last batch of one sample joins the batch before."""
    t = trainer("model=four_layers", "batch_size=4")
    node = next(n for n in range(NODES) if len(t.samples.partition.indices(n)) % 4 != 1)
    x, y = t.samples.of(Node(node, NODES), held_back=False)
    x, y = x[:9], y[:9]
    sizes = [len(b) for _, b in t.batches((x, y), torch.Generator())]
    assert sizes == [4, 5]


def test_a_node_trains_on_its_own_folder(tmp_path):
    write_photos(tmp_path)
    overrides = ["dataset=imagefolder", "dataset.size=8", "dataset.classes=[ant,cat,dog]"]
    t = trainer_for(configured(*overrides, "local_epochs=20"), str(tmp_path))
    assert set(t.data.train.targets.tolist()) == {1, 2}  # the class ids of all nodes
    vector, metrics = t.train(Node(0, 1, str(tmp_path)), start_of(t), TrainConfig(0.05, 1))
    assert metrics["num-examples"] == 20
    assert t.evaluate(Node(0, 1, str(tmp_path)), vector)["accuracy"] == 20
    with pytest.raises(ConfigError, match="such as csv or imagefolder"):
        trainer_for(configured(), str(tmp_path))
    with pytest.raises(ConfigError, match="names of all the run's classes"):
        trainer_for(configured(*overrides[:2]), str(tmp_path))


def test_a_node_reports_missing_data(tmp_path):
    with pytest.raises(ValueError, match="no data"):
        node_of(Context(1, 5, {}, RecordDict(), {}))
    config = {"partition-id": 3, "num-partitions": 10}
    assert node_of(Context(1, 5, config, RecordDict(), {})) == Node(3, 10)
    assert node_of(Context(1, 5, {"data": "/d"}, RecordDict(), {})).folder == "/d"
