"""Targets that do not count, and metrics that some nodes' samples do not define."""

import math
from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from edgewire.compression.base import PayloadError
from edgewire.compression.flower import CompressedGrid, CompressionMod
from edgewire.compression.flower.server.reply_checks import ReplyRules, SentMessage, rebuilt
from edgewire.compression.screening import Screening
from edgewire.conf.check import Codecs
from edgewire.strategy.federated import Federated
from edgewire.task.errors import TaskError
from edgewire.task.metric import Metric
from edgewire.task.objectives.base import Objective
from edgewire.task.objectives.classification import Classification
from edgewire.task.objectives.next_token import NextToken
from edgewire.task.objectives.reconstruction import Anomaly, Reconstruction
from edgewire.task.objectives.regression import Regression
from edgewire.task.objectives.segmentation import Segmentation
from edgewire.task.steps import evaluate, summed
from tests.compression.flower.apps import replies_to
from tests.compression.flower.federation import PLAIN, initial
from tests.grids import grid_of

pytestmark = pytest.mark.usefixtures("identity")
CLASSES = 3
SENT = SentMessage(1, 1, "evaluate", "arrays", False, None, None, 0)
COUNTING = {"next_token": (NextToken(), (4,)), "segmentation": (Segmentation(), (2, 2))}


class Logits(nn.Module):
    """Gives logits (B, ..., classes), or (B, classes, H, W) for images, from inputs (B, ...)."""

    def __init__(self, images=False):
        super().__init__()
        self.weight, self.images = nn.Parameter(torch.arange(1.0, 1 + CLASSES)), images

    def forward(self, inputs):
        return (inputs[..., None] * self.weight).movedim(-1, 1 if self.images else -1)


class Moment(Objective):
    """An objective whose metric divides by a count, as one's own may do."""

    metrics = (Metric("of_ones"),)

    def loss(self, model, inputs, targets):
        return model(inputs).mean()

    def sums(self, model, inputs, targets):
        one = targets == 1
        return {"loss": inputs.sum(), "ones": one.sum(), "of": inputs[one].sum()}

    def measured(self, sums, samples):
        return {"loss": sums["loss"] / samples, "of_ones": sums["of"] / sums["ones"]}


def case_of(name, count, seed):
    """Return model, objective, inputs and targets of `count` samples."""
    random = torch.Generator().manual_seed(seed)
    if name in COUNTING:
        objective, shape = COUNTING[name]
        targets = torch.randint(CLASSES, (count, *shape), generator=random)
        targets[torch.rand(targets.shape, generator=random) < 0.3] = -100
        targets[torch.rand(count, generator=random) < 0.4] = -100
        inputs = torch.randn(count, *shape, generator=random)
        return Logits(images=name == "segmentation"), objective, inputs, targets
    inputs, kinds = torch.randn(count, generator=random), torch.rand(count, generator=random) < 0.3
    if name == "classification":
        return Logits(), Classification(), inputs, kinds.long()
    if name == "own":
        return nn.Identity(), Moment(), inputs, kinds.long()
    rows = inputs[:, None].repeat(1, 2)
    if name == "anomaly":
        return nn.Flatten(), Anomaly(), rows * 1, kinds.long()
    if name == "regression":
        return nn.Identity(), Regression(), rows, rows.flip(0)
    return nn.Linear(2, 2), Reconstruction(), rows, ()


def aggregated(objective, replies):
    """Return what the server makes of nodes' replies, as a dict."""
    server = Federated(FedAvg(), Codecs(seed=0), objective=objective)
    sums = {"evaluate": partial(objective.defined, samples=1)}
    rules = ReplyRules(bounds=objective.bounds, sums=sums)
    asked = Message(RecordDict({"arrays": ArrayRecord()}), 1, "evaluate")
    made = []
    for metrics in replies:
        content = rebuilt(RecordDict({"m": MetricRecord(metrics)}), SENT, rules)
        made.append(Message(content, reply_to=asked))
    found = server.aggregate_evaluate(1, made)
    return None if found is None else dict(found)


@pytest.mark.parametrize(
    "name", [*COUNTING, "classification", "anomaly", "regression", "reconstruction", "own"]
)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 999))
@example([1, 1, 4, 3, 1], 0)  # the weights of a top5 of 1 add up to more than 1
def test_metrics_of_nodes_are_those_of_all_their_samples(name, sizes, seed):
    model, objective, inputs, targets = case_of(name, sum(sizes), seed)
    expected = evaluate(model, objective, inputs, targets)
    parts, start = [], 0
    for size in sizes:
        part = [x[start : start + size] if isinstance(x, torch.Tensor) else x
                for x in (inputs, targets)]  # fmt: skip
        parts.append({**summed(model, objective, *part), "num-examples": size})
        start += size
    found = aggregated(objective, parts)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize("name", COUNTING)
@given(seed=st.integers(0, 999))
def test_targets_that_do_not_count_leave_loss_and_gradient_at_zero(name, seed):
    model, objective, inputs, targets = case_of(name, 5, seed)
    logits = model(inputs)
    flat = logits.flatten(0, 1) if name == "next_token" else logits
    loss = objective.loss(model, inputs, targets)
    loss.backward()
    if (targets != -100).any():
        plain = cross_entropy(flat, targets.flatten() if name == "next_token" else targets)
        assert torch.equal(loss, plain)
    model.weight.grad = None
    ignored = torch.full_like(targets, -100)
    nothing = objective.loss(model, inputs, ignored)
    nothing.backward()
    assert nothing == 0
    assert torch.equal(model.weight.grad, torch.zeros(CLASSES))
    assert evaluate(model, objective, inputs, ignored) == {"loss": 0.0}


def test_classification_refuses_targets_that_do_not_count():
    """Its accuracy would count them as wrong."""
    with pytest.raises(TaskError, match="targets of -100, which do not count, are for"):
        evaluate(Logits(), Classification(), torch.ones(2), torch.tensor([1, -100]))


HONEST = {"loss": 1.0, "num-counted": 2, "scores/keys": [4, 2]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": math.nan}, "'loss' must be a finite number"),
        ({"loss": -1.0}, "its loss must be from 0 to inf"),
        ({"num-counted": -2, "loss": -1.0}, "its loss must be from 0 to inf, not nan"),
        ({"num-counted": 0, "loss": -1.0}, "its loss must be from 0 to inf, not nan"),
        ({"scores/keys": [3, -1]}, "its 'scores/keys' are not the keys of 2 samples"),
        ({"scores/keys": [1, 2, 2]}, "its 'scores/keys' are not the keys of 2 samples"),
        ({"scores/keys": []}, "its 'scores/keys' are not the keys of 2 samples"),
        ({"scores/keys": [0.5]}, "its 'scores/keys' are not the keys of 2 samples"),
        ({"scores/keys": 3}, "its 'scores/keys' are not the keys of 2 samples"),
        ({"scores/keys": None}, r"its sums give no metrics \(KeyError\)"),
        ({"num-examples": 0}, "num-examples must be a number above 0"),
    ],
)
def test_sums_that_no_samples_have_are_refused(change, said):
    sums = {**HONEST, "num-examples": 2, **change}
    with pytest.raises(PayloadError, match=said):
        aggregated(Anomaly(), [{k: v for k, v in sums.items() if v is not None}])
    assert aggregated(Anomaly(), [{**HONEST, "num-examples": 2}]) == {"loss": 0.5}


@pytest.mark.parametrize(
    "table",
    [[1, 0, 0, 2], [3, -1, 0, 0], [2, 0, 0, 0, 0], [1.0, 0.0, 0.0, math.inf], [0, 0, 0, 0], [2, 0]],
)
def test_confusions_that_no_samples_have_are_refused(table):
    sums = {"loss": 0.0, "accuracy": 1, "num-examples": 2}
    with pytest.raises(PayloadError):
        aggregated(Classification(["accuracy"]), [{**sums, "confusion": table}])
    fair = aggregated(Classification(["accuracy"]), [{**sums, "confusion": [1, 0, 1, 0]}])
    assert fair == {"loss": 0.0, "accuracy": 0.5}


@pytest.mark.parametrize(("hit", "union"), [([1, 0], [0, 2]), ([-1, 1], [-1, 1]), ([3], [2])])
def test_more_hits_than_pixels_are_refused(hit, union):
    sums = {"loss": 0.0, "accuracy": 0, "num-counted": 2, "hit": hit, "union": union}
    with pytest.raises(PayloadError, match="its iou must be from 0 to 1, not nan"):
        aggregated(Segmentation(), [{**sums, "num-examples": 2}])


def received(objective, replies, **options):
    """Return what a strategy gets of nodes' sums, the metrics or None, and their mean metrics."""
    app = ClientApp(mods=[CompressionMod(PLAIN)])

    @app.evaluate()
    def reply(message, context):
        metrics = MetricRecord(replies[context.node_config["partition-id"]])
        return Message(RecordDict({"m": metrics}), reply_to=message)

    rules = ReplyRules(
        bounds=objective.bounds, sums={"evaluate": partial(objective.defined, samples=1)}
    )
    grid = CompressedGrid(grid_of(app, len(replies)), replies=rules, screening=Screening(**options))
    found = replies_to(grid, initial(), "evaluate")
    used = [each for each in found if not each.has_error()]
    mean = Federated(FedAvg(), Codecs(seed=0), objective=objective).aggregate_evaluate(1, used)
    return [None if r.has_error() else dict(r.content["metrics"]) for r in found], dict(mean)


ANY = st.sampled_from([0.0, -1.0, 1e-9, 1e15, 1e300]) | st.floats(0, 100)
SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=3, max_size=5)


@settings(max_examples=60)
@given(SIZES, st.tuples(ANY, ANY, ANY), st.integers(1, 1 << 62), st.booleans())
def test_one_nodes_sums_count_as_ten_usual_ones_at_most(honest, false, samples, equal):
    """Metrics are divided by sums, so these are weights, and not only the number of samples."""
    replies = [
        {"loss": 2.0 * n * c, "num-counted": n * c, "accuracy": n * c / 2, "num-examples": n}
        for n, c in honest
    ]
    lie = dict(zip(("loss", "num-counted", "accuracy"), false, strict=True))
    used, mean = received(NextToken(), [*replies, {**lie, "num-examples": samples}], equal=equal)
    weights = [0 if m is None else m["num-examples"] * m["num-counted"] for m in used]
    total = sum(weights[:-1])
    factor = 1 if equal else 10
    most = factor * max(weights[:-1]) * (1 + 1e-9)
    assert all(weight <= most for weight in weights)
    assert mean["loss"] >= 2 * total / (total + most) * (1 - 1e-9)
    assert 0.5 * total / (total + most) <= mean["accuracy"] * (1 + 1e-9)
    assert mean["accuracy"] <= (0.5 * total + most) / (total + most) * (1 + 1e-9)
