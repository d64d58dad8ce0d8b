"""A gradient's mini-batch depends only on the seed, the node and the message's number."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import edgewire.client.batches
from edgewire.client.batches import Samples
from edgewire.client.node import Node
from edgewire.client.training import Trainer
from edgewire.conf.build import model_of
from edgewire.task.datasets import Data
from edgewire.task.datasets.data import Split
from tests.runs import configured

NODES = 8


def make(*overrides):
    return Trainer(configured(f"nodes={NODES}", "batch_size=16", *overrides))


@pytest.fixture(scope="module")
def plain():
    return make()


def numbered(trainer):
    """Return a trainer's samples; their labels are their indices in the training split."""
    train = trainer.data.train
    places = Split(train.inputs, torch.arange(len(train.targets)))
    samples = Samples(trainer.config, replace(trainer.data, train=places))
    samples.partition = trainer.samples.partition  # the partition depends on the original labels
    return samples


def drawn(trainer, node, numbers):
    """Return the samples of a node's batches, by index in the training split: a tuple per batch."""
    return drawn_in_turn(trainer, [(node, number) for number in numbers])


def drawn_in_turn(trainer, calls):
    """Return the sample indices of each batch in `calls`, pairs (node, message number)."""
    samples = numbered(trainer)
    return [tuple(samples.batch(Node(node, NODES), n)[1].tolist()) for node, n in calls]


def part_of(trainer, node, held_back=False):
    """Return the indices of a node's training samples; with `held_back`, of its other samples."""
    return numbered(trainer).of(Node(node, NODES), held_back=held_back)[1].tolist()


def epoch_of(trainer, node):
    """Return the number of full batches in a node's epoch, and the indices of its samples."""
    samples = part_of(trainer, node)
    return len(samples) // trainer.config.batch_size, samples


@given(node=st.integers(0, NODES - 1), epoch=st.integers(0, 50))
def test_an_epoch_uses_each_sample_of_its_full_batches_once(plain, node, epoch):
    count, samples = epoch_of(plain, node)
    batches = drawn(plain, node, range(epoch * count, (epoch + 1) * count))
    used = [sample for batch in batches for sample in batch]
    assert all(len(batch) == 16 for batch in batches)
    assert len(set(used)) == len(used) == len(samples) - len(samples) % 16
    assert set(used) <= set(samples)
    assert used != samples[: len(used)]  # shuffled


def test_the_left_out_samples_change_from_epoch_to_epoch(plain):
    count, samples = epoch_of(plain, 0)
    assert len(samples) % 16
    epochs = [drawn(plain, 0, range(e * count, (e + 1) * count)) for e in range(20)]
    assert len({tuple(epoch) for epoch in epochs}) == 20
    assert set().union(*(batch for epoch in epochs for batch in epoch)) == set(samples)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=20))
def test_batches_do_not_depend_on_earlier_calls(plain, calls):
    first = {(node, n): drawn(plain, node, [n]) for node, n in calls}
    later = calls[::-1]
    assert drawn_in_turn(plain, later) == [first[call][0] for call in later]


@pytest.mark.parametrize("words", [[], ["dataset.per_image=true", "dataset.holdout=0.25"]])
def test_batches_do_not_depend_on_the_cache(words, monkeypatch):
    prepared, prepare = [], Data.prepared

    def counting(self, inputs, device):
        prepared.extend([len(inputs)] if len(inputs) > 1 else [])  # one sample shows its size
        return prepare(self, inputs, device)

    def batches(trainer):
        calls = [(Node(node, NODES), number) for node in range(3) for number in (0, 1, 14, 13, 40)]
        made = [tensor for call in calls for tensor in trainer.samples.batch(*call)]
        return made, [prepared.pop(0) for _ in prepared[:]]

    monkeypatch.setattr(Data, "prepared", counting)
    kept, at_once = batches(make(*words))
    # only the first node's samples fit into the cache
    monkeypatch.setattr(edgewire.client.batches, "PREPARED_BYTES", 60_000)
    made, piece_by_piece = batches(make(*words))
    assert all(map(torch.equal, kept, made))
    assert len(at_once) == 3
    assert piece_by_piece == [at_once[0], *[16] * 10]


def test_a_node_with_less_than_a_batch_uses_all_it_has():
    trainer = make("batch_size=1000", "dataset.holdout=0.25")
    _, samples = epoch_of(trainer, 1)
    for batch in drawn(trainer, 1, range(3)):
        assert sorted(batch) == sorted(samples)


@pytest.mark.parametrize("number", [0, 7, 30])
def test_a_gradient_is_what_autograd_gives(plain, number):
    start = plain.flat.state.numpy().copy() + np.float32(0.01)
    model = model_of(plain.config, plain.data)
    nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), model.parameters())
    x, y = plain.samples.batch(Node(3, NODES), number)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
    found, metrics = plain.gradient(Node(3, NODES), start, number=number)
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert metrics["loss"] == pytest.approx(loss.item())
    assert (metrics["num-examples"], metrics["num-steps"]) == (16, 1)


def test_statistics_are_sent_as_values():
    trainer = make("model=mobilenet", "batch_size=4")
    flat = trainer.flat
    start = flat.state.numpy().copy()
    node, cut = Node(0, NODES), flat.num_parameters
    first = trainer.gradient(node, start, number=2)[0].copy()
    moved = flat.state.numpy().copy()
    np.testing.assert_array_equal(moved[:cut], start[:cut])
    np.testing.assert_array_equal(first[cut:], moved[cut:])
    assert np.abs(first[cut:] - start[cut:]).max() > 0
    trainer.gradient(Node(1, NODES), moved, number=0)
    np.testing.assert_array_equal(trainer.gradient(node, start, number=2)[0], first)
