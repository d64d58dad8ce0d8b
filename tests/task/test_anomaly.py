"""`objective=anomaly`: the area under the ROC curve of the errors."""

import pytest
import torch
from torch import nn

from edgewire.task.objectives.reconstruction import Anomaly
from edgewire.task.steps import evaluate


class Scaled(nn.Module):
    """Gives an output whose squared error is the input's own first column squared."""

    def forward(self, inputs):
        return inputs - inputs[:, :1]


def measured(errors, targets):
    roots = torch.tensor(errors, dtype=torch.float64).sqrt()
    inputs = roots[:, None].expand(-1, 3).contiguous()
    return evaluate(Scaled(), Anomaly(), inputs, torch.tensor(targets))


def test_the_area_is_that_of_all_pairs():
    random = torch.Generator().manual_seed(0)
    targets = torch.randint(2, (600,), generator=random)
    errors = torch.exp(torch.randn(600, generator=random, dtype=torch.float64) + 0.8 * targets)
    normal, odd = errors[targets == 0], errors[targets == 1]
    pairs = (odd[:, None] > normal).double().mean().item()
    found = measured(errors.tolist(), targets.tolist())
    assert found["auroc"] == pytest.approx(pairs, abs=1e-6)
    assert found["loss"] == pytest.approx(normal.mean().item())


@pytest.mark.parametrize(
    ("errors", "targets", "area"),
    [
        ([0.1, 0.2, 5.0], [0, 0, 1], 1.0),
        ([0.1, 0.2, 0.01], [0, 0, 1], 0.0),
        ([0.1, 0.1], [0, 1], 0.5),
        ([0.1, 0.2], [0, 0], None),
        ([0.1, 0.2], [1, 1], None),
        ([0.0, 1e30], [0, 1], 1.0),
    ],
)
def test_the_area_of_few_samples(errors, targets, area):
    assert measured(errors, targets).get("auroc") == area


def test_a_diverged_model_has_no_nan_for_an_area():
    assert 0 <= measured([float("nan"), float("inf"), 1.0], [1, 0, 1])["auroc"] <= 1
