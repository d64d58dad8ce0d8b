"""Batches and evaluation of a model on a split."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgewire.task.errors import TaskError
from edgewire.task.models import build_model
from edgewire.task.objectives import Objective
from edgewire.task.objectives.classification import Classification
from edgewire.task.steps import batches, evaluate, evaluation_batch, summed
from edgewire.task.transforms import ImageTransform
from tests.local_runs import local_run

CLASSES = Classification()
sizes = given(
    count=st.integers(0, 5),
    channels=st.integers(1, 4),
    side=st.integers(1, 9),
    seed=st.integers(0, 1000),
)


@sizes
def test_prepare_normalises_as_usual(count, channels, side, seed):
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=random)
    mean = tuple(torch.rand(channels, generator=random).tolist())
    std = tuple((0.1 + torch.rand(channels, generator=random)).tolist())
    images = images.transpose(2, 3) if seed % 2 else images
    before = images.clone()
    out = ImageTransform(mean, std)(images)
    shape = (1, channels, 1, 1)
    expected = (images.double() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(
        shape
    )
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(images, before)


@sizes
def test_without_a_mean_each_image_is_normalised_by_itself(count, channels, side, seed):
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=random)
    out, least = ImageTransform()(images), (channels * side * side) ** -0.5
    assert out.dtype == torch.float32
    assert out.shape == images.shape
    for image, prepared in zip(images.double() / 255, out, strict=True):
        expected = (image - image.mean()) / max(image.std(correction=0), least)
        torch.testing.assert_close(prepared, expected.float(), rtol=1e-4, atol=1e-5)
    grey = torch.full((2, channels, side, side), 77, dtype=torch.uint8)
    torch.testing.assert_close(
        ImageTransform()(grey), torch.zeros(grey.shape), rtol=0, atol=1e-4 / least
    )


@given(count=st.integers(0, 30), batch_size=st.integers(1, 12), seed=st.integers(0, 1000))
def test_batches_give_every_sample_once_with_its_label(count, batch_size, seed):
    images = torch.arange(count).float().view(count, 1, 1, 1)
    labels = torch.arange(count) * 3

    def epoch():
        return list(batches(images, labels, batch_size, torch.Generator().manual_seed(seed)))

    given_out = epoch()
    assert [len(x) for x, _ in given_out[:-1]] == [batch_size] * (math.ceil(count / batch_size) - 1)
    seen = [int(v) for x, _ in given_out for v in x]
    assert sorted(seen) == list(range(count))
    for x, y in given_out:
        assert torch.equal(x.flatten().long() * 3, y)
    assert seen == [int(v) for x, _ in epoch() for v in x]


def test_evaluate_is_the_mean_over_all_samples():
    model = build_model("lenet5", channels=1, size=28, classes=10)
    images, labels = torch.randn(23, 1, 28, 28), torch.randint(10, (23,))
    with torch.no_grad():
        logits = model(images)
    for batch_size in (1, 5, 23, 1000):
        loss, accuracy, top5 = evaluate(model, CLASSES, images, labels, batch_size).values()
        assert loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
        assert accuracy == (logits.argmax(1) == labels).sum().item() / 23
        better = (logits > logits.gather(1, labels[:, None])).sum(1)
        assert top5 == (better < 5).sum().item() / 23


class Contrast(Objective):
    """A loss that depends on the batch: the mean of the outputs, times the batch's size."""

    batch_loss = True

    def loss(self, model, inputs, targets):
        return model(inputs).mean() * len(inputs)

    def sums(self, model, inputs, targets):
        return {"loss": self.loss(model, inputs, targets) * len(inputs)}


def test_a_loss_that_depends_on_the_batch_is_evaluated_in_the_runs_batches(tmp_path, monkeypatch):
    """The server's evaluation and that of the nodes take batches of `batch_size` samples."""
    seen, sums = [], Contrast.sums

    def noting(self, model, inputs, targets):
        seen.append(len(inputs))
        return sums(self, model, inputs, targets)

    monkeypatch.setattr(Contrast, "sums", noting)
    words = ["strategy=fedavg", "strategy.fraction_evaluate=1", "nodes=2", "rounds=1"]
    words += [f"objective._target_={__name__}.Contrast", "batch_size=32", "local_steps=1"]
    local_run(tmp_path, *words)
    assert {32} <= {*seen} <= {*range(33)}
    assert seen.count(32) > 2 * (359 // 32)  # the test split twice, and the nodes' samples
    assert evaluation_batch(CLASSES, 32) == 100


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_changes_nothing(training):
    model = build_model("resnet18", channels=1, size=8, classes=10)
    model.train(training)
    model.bn1.eval()  # a frozen layer stays frozen
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images, labels = torch.randn(6, 1, 8, 8), torch.randint(10, (6,))
    result = evaluate(model, CLASSES, images, labels)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert result == evaluate(model, CLASSES, images, labels)
    model(images).sum().backward()  # training still works


def test_evaluate_calls_a_function_between_batches():
    model = build_model("mlp", channels=1, size=8, classes=10)
    images, labels, calls = torch.randn(23, 1, 8, 8), torch.randint(10, (23,)), []
    given = (model, CLASSES, images, labels, 5)
    result = summed(*given, between=lambda: calls.append(torch.is_grad_enabled()))
    assert calls == [True] * 5  # a worker that starts here must be able to train
    assert result == summed(*given)


class Caching(nn.Module):
    """A linear classifier with a weight for each class, in a table that its first call makes."""

    def __init__(self):
        super().__init__()
        self.out, self.table = nn.Linear(64, 10), None

    def forward(self, x):
        logits = self.out(x.flatten(1))
        if self.table is None:
            self.table = torch.stack([torch.linspace(0.5, 1.5, 10)] * 2)[1]
        return logits * self.table  # the gradient needs the table again


def test_a_model_may_keep_tensors_of_an_evaluation_for_its_training():
    model, images = Caching(), torch.randn(6, 1, 8, 8)
    evaluate(model, CLASSES, images, torch.randint(10, (6,)))
    model(images).sum().backward()
    kept = model.out.weight.grad.clone()
    model.table = model.out.weight.grad = None
    model(images).sum().backward()
    assert torch.equal(model.out.weight.grad, kept)


def test_evaluate_restores_the_mode_after_an_error():
    model = build_model("lenet5", channels=1, size=28, classes=10)
    with pytest.raises(RuntimeError):
        evaluate(model, CLASSES, torch.randn(2, 3, 28, 28), torch.zeros(2, dtype=torch.int64))
    assert model.training


def test_evaluate_without_samples():
    model = build_model("mlp", channels=1, size=8, classes=10)
    with pytest.raises(TaskError, match="no samples"):
        evaluate(model, CLASSES, torch.empty(0, 1, 8, 8), torch.empty(0, dtype=torch.int64))
