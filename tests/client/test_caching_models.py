"""A model that caches tensors between its calls trains as a model without the cache."""

import pytest
import torch
from torch import nn

from edgewire.client.node import Node
from edgewire.client.training import Trainer
from edgewire.compression.flower.headers import TrainConfig
from edgewire.task.models.parts import MODELS
from tests.local_runs import local_run
from tests.runs import configured, history_of, model_bytes

WORDS = ["algorithm=fedavg", "model=mlp", "model.name=cached", "nodes=4", "local_steps=2"]
EVALUATED = ["strategy.fraction_evaluate=1", "dataset.holdout=0.3"]


class Cached(nn.Module):
    """A linear classifier with a weight for each class; `kind`: how the table is cached."""

    def __init__(self, kind, pixels, classes):
        super().__init__()
        self.kind, self.table, self.by_size = kind, None, {}
        self.out = nn.Linear(pixels, classes)

    def forward(self, x):
        logits = self.out(x.flatten(1))
        return logits * self.weights_of(logits)  # the gradient needs the weights again

    def weights_of(self, x):
        if self.kind == "by size":
            if len(x) not in self.by_size:
                self.by_size[len(x)] = torch.linspace(0.5, 1.5, x.shape[1]).repeat(len(x), 1)
            return self.by_size[len(x)]
        if self.kind == "none" or self.table is None:
            table = torch.linspace(0.5, 1.5, x.shape[1])
            if self.kind == "a view":
                table = torch.stack([table, table])[1]
            self.table = table
        return self.table


@pytest.fixture(params=["an attribute", "by size", "a view"])
def use(request, monkeypatch):
    """Return a function that makes `model.name=cached` a model with a cache, or one without."""

    def chosen(cached):
        kind = request.param if cached else "none"
        monkeypatch.setitem(
            MODELS.members, "cached", lambda channels, size, classes: Cached(kind, 64, classes)
        )

    return chosen


def test_an_evaluation_does_not_change_the_training_after_it(use):
    def trained(*, cached, before):
        use(cached)
        made = Trainer(configured(*WORDS))
        start, node = made.flat.state.numpy().copy(), Node(0, 4)
        for _ in range(before):
            made.evaluate(node, start)
        found = [made.train(node, start, TrainConfig(0.1, number))[0].copy() for number in (1, 2)]
        return *(each.tobytes() for each in found), made.evaluate(node, found[-1])

    assert trained(cached=True, before=1) == trained(cached=True, before=0)
    assert trained(cached=True, before=2) == trained(cached=False, before=0)


def test_results_do_not_depend_on_the_number_of_workers(use, tmp_path):
    use(cached=True)
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        local_run(folder, *WORDS, *EVALUATED, "rounds=3", workers=workers)
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "2")
    assert history_of(tmp_path / "1") == history_of(tmp_path / "2")
    assert history_of(tmp_path / "1")[-1]["failures"] == 0
