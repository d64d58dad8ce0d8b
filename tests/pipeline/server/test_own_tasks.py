"""Cut models train a user's own data, layers and objective as a model that is not cut."""

import numpy as np
import pytest
from safetensors.torch import load_file

from edgewire.client.batches import Samples
from edgewire.client.node import Node
from edgewire.command.job import prepare
from edgewire.conf.build import data_of, model_of, objective_of, optimizer_of
from edgewire.task.errors import TaskError
from edgewire.task.flat_model import FlatModel
from edgewire.task.steps import evaluate
from tests.local_runs import local_run
from tests.own_task import own_module
from tests.runs import configured, history_of, model_bytes, result_of

MINE = """
    def table(dtype: str = "float32", nan: bool = False):
        x = noise(160, 6)
        y = torch.stack([x.sum(1), x[:, 0] * x[:, 1]], 1).to(getattr(torch, dtype))
        if nan:
            y[::3, 0] = float("nan")
        return data(x, y)


    def text():
        x = torch.arange(160)[:, None] + torch.arange(13)
        y = (x[:, 1:] % 17).clone()
        y[:, :2] = -100  # padding
        return data(x[:, :-1] % 17, y)


    def photos():
        x = (noise(160, 1, 6, 6) * 40 + 128).clamp(0, 255).to(torch.uint8)
        labels = (x.float().mean((1, 2, 3)) > 128).long()
        return data(x, labels, classes=2, transform=ImageTransform((0.5,), (0.25,)))


    def pairs():
        x = noise(160, 4)
        return data({"left": x, "right": x.flip(1)}, {"sum": x.sum(1), "big": x[:, 0] > 0})


    def mlp(outputs: int = 2, frozen: bool = False):
        made = nn.Sequential(
            nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 8), nn.Dropout(0.0),
            nn.Linear(8, outputs))
        made[:4].requires_grad_(not frozen)  # all of the first segment, if it is cut at 1
        return made


    class First(nn.Module):
        def forward(self, x):
            return x[0]


    class Last(nn.Linear):
        def forward(self, x):
            return super().forward(x[0] if isinstance(x, tuple) else x)


    class Rows(nn.Module):
        def forward(self, x):
            return x.T


    class Back(nn.Linear):
        def forward(self, x):
            return super().forward(x.T)


    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = mlp()

        def forward(self, x):
            return self.layers(x)


    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.full((2,), 2.0)

        def forward(self, x):
            return x * self.scale


    def scaled():
        return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2), Scaled())


    def lstm(first: bool = True):
        after = [First()] if first else []
        return nn.Sequential(
            nn.Embedding(17, 8), nn.LSTM(8, 16, batch_first=True), *after, Last(16, 17))


    def turned():
        return nn.Sequential(nn.Linear(6, 4), Rows(), Back(4, 2))


    def transformer():
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        return nn.Sequential(nn.Embedding(17, 8), layer, nn.Linear(8, 17))


    def mask():
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1),
            nn.Conv2d(4, 2, 1))


    def autoencoder():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))


    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.left(x["left"]) + self.right(x["right"])


    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.value, self.logit = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            return {"sum": self.value(x)[:, 0], "big": self.logit(x)[:, 0]}


    def two_heads():
        return nn.Sequential(Both(), nn.ReLU(), Heads())


    class Likelihood(Objective):
        metrics = (Metric("density", True),)

        def loss(self, model, inputs, targets):
            found = targets.nan_to_num()
            return -torch.distributions.Normal(0.0, 1e-2).log_prob(
                (model(inputs) - found) * 1e-3).mean()

        def sums(self, model, inputs, targets):
            value = self.loss(model, inputs, targets) * len(inputs)
            return {"loss": value, "density": -value}


    class Several(Likelihood):
        def loss(self, model, inputs, targets):
            found = model(inputs)
            return (nn.functional.mse_loss(found["sum"], targets["sum"])
                    + nn.functional.binary_cross_entropy_with_logits(
                        found["big"], targets["big"].float()))

        def sums(self, model, inputs, targets):
            value = self.loss(model, inputs, targets) * len(targets["sum"])
            return {"loss": value, "density": -value}


    class Penalty(Likelihood):
        def loss(self, model, inputs, targets):
            return super().loss(model, inputs, targets) + sum(
                p.square().sum() for p in model.parameters())


    class Twice(Likelihood):
        def loss(self, model, inputs, targets):
            return super().loss(model, inputs, targets) + model(inputs).mean()


    class Inputs(Likelihood):
        def loss(self, model, inputs, targets):
            return super().loss(model, inputs, targets) + inputs.mean()
"""
TASKS = {
    "regression": ["table", "mlp", "regression"],
    "frozen layers": ["table", "mlp +model.frozen=true", "regression"],
    "half floats": ["table +dataset.dtype=bfloat16", "mlp", "regression"],
    "missing targets": ["table +dataset.nan=true", "mlp", "mine_cut.Likelihood"],
    "a loss below zero": ["table", "mlp", "mine_cut.Likelihood"],
    "an LSTM": ["text", "lstm", "next_token"],
    "a transformer": ["text", "transformer", "next_token"],
    "segmentation": ["scenes", "mask", "segmentation"],
    "reconstruction": ["photos", "autoencoder", "reconstruction"],
    "classes of windows": ["windows", "conv", "classification"],
    "several inputs and outputs": ["pairs", "two_heads", "mine_cut.Several"],
}


@pytest.fixture(autouse=True, scope="module")
def mine(tmp_path_factory):
    """Make the module `mine_cut` importable."""
    with own_module(tmp_path_factory.mktemp("own"), "mine_cut", MINE):
        yield


def words_of(data, model, objective):
    name = f"objective={objective}"
    if "." in objective:
        name = f"objective._target_={objective}"
    words = [f"dataset._target_=mine_cut.{data}", f"model._target_=mine_cut.{model}"]
    return [*" ".join(words).split(), name, "lr=0.05", "batch_size=16", "rounds=6", "eval_every=3"]


def trained(config):
    """Train in one loop without any message; return the model and each step's loss."""
    data, objective = data_of(config), objective_of(config)
    flat = FlatModel(model_of(config, data))
    optimizer = optimizer_of(config, [flat.parameters])
    flat.module.train()
    samples, losses = Samples(config, data, whole=True), []
    for number in range(config.rounds):
        inputs, targets = samples.batch(Node(0, 1), number)
        flat.zero_grad()
        loss = objective.loss(flat.module, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    flat.collect_state()
    return flat, losses


@pytest.mark.few(1)
@pytest.mark.parametrize(  # each task with a cut, and without one or with cuts by costs
    ("task", "cuts"),
    [*((task, cut) for at, task in enumerate(TASKS) for cut in ("[1]", ("[]", "auto")[at % 2])),
     ("segmentation", "[2]")],
)  # fmt: skip
def test_backpropagation_over_cuts_is_a_plain_loop_bit_for_bit(task, cuts, tmp_path):
    words = ["algorithm=split_backprop", f"strategy.cuts={cuts}", *words_of(*TASKS[task])]
    # torch's fused Adam rounds the last entries of a vector differently, and a cut has more ends.
    words += ["nodes=2", "optimizer.fused=false"]
    local_run(tmp_path, *words)
    config = configured(*words)
    flat, losses = trained(config)
    found = load_file(tmp_path / "model.safetensors")
    for name, value in flat.state_dict().items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    result, rows = result_of(tmp_path), history_of(tmp_path)
    assert (result["failures"], result["diverged"]) == (0, False)
    assert rows[-1]["train_loss"] == pytest.approx(sum(losses[3:]) / 3, rel=1e-6)
    data, objective = data_of(config), objective_of(config)
    measured = evaluate(flat.module, objective, data.prepared(data.test.inputs), data.test.targets)
    for name in objective.names:
        assert result[name] == pytest.approx(measured[name], rel=1e-5)
    better = max if objective.main.higher else min
    assert result[f"best_{objective.main.name}"] == better(row[objective.main.name] for row in rows)


METHODS = [
    "algorithm=synthetic_gradients strategy.schedule=async compression=f2i",
    "algorithm=synthetic_gradients strategy.batches_per_message=3",
    "algorithm=split_backprop strategy.schedule=pipeline strategy.micro_batches=4",
]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("task", "method"), [(task, METHODS[at % 3]) for at, task in enumerate(TASKS)]
)
def test_every_schedule_learns_and_does_not_depend_on_the_workers(task, method, tmp_path):
    words = [*method.split(), *words_of(*TASKS[task]), "nodes=2", "strategy.cuts=[1]"]
    for workers in (1, 2):
        local_run(tmp_path / str(workers), *words, workers=workers)
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "2")
    result, rows = result_of(tmp_path / "1"), history_of(tmp_path / "1")
    assert (result["failures"], result["diverged"]) == (0, False)
    assert result["loss"] < rows[0]["loss"]


@pytest.mark.system
def test_integers_take_few_bytes_and_inputs_travel_only_for_a_loss_that_needs_them(tmp_path):
    """Of 6 mini-batches of 16 samples, each target passes the server twice."""
    sizes = {}
    for task in ("an LSTM", "reconstruction", "classes of windows"):
        words = ["algorithm=split_backprop", *words_of(*TASKS[task]), "nodes=2"]
        local_run(tmp_path / task, *words, "strategy.cuts=[1]")
        sizes[task] = result_of(tmp_path / task)["labels_bytes"] / (2 * 6 * 16)
    head = sizes["classes of windows"] - 1
    assert 0 < head < 4
    assert sizes["an LSTM"] < 12 + head + 1  # tokens and the padding -100, a byte each
    assert 36 < sizes["reconstruction"] < 36 + 1 + head + 2  # a photo's bytes and its label


WRONG = {
    "a layer that gives a tuple": (["text", "lstm +model.first=false", "next_token"], 2, "tuple"),
    "a layer that mixes samples": (["table", "turned", "regression"], 1, "row for each sample"),
    "a loss of the weights": (["table", "mlp", "mine_cut.Penalty"], 1, "parameters"),
    "a loss of two outputs": (["table", "mlp", "mine_cut.Twice"], 1, "more than once"),
    "a loss of the inputs": (["table", "mlp", "mine_cut.Inputs"], 1, "needs_inputs = True"),
    "a model that is no Sequential": (["table", "Whole", "regression"], 1, "nn.Sequential"),
    "a tensor that is no buffer": (["table", "scaled", "regression"], 1, "register_buffer"),
    "a cut beyond the layers": (["table", "mlp", "regression"], 7, "from 1 to 2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_cut_is_refused_in_one_line(case):
    task, cut, line = WRONG[case]
    words = ["algorithm=split_backprop", *words_of(*task), f"strategy.cuts=[{cut}]", "nodes=2"]
    with pytest.raises(TaskError) as caught:
        prepare(configured(*words))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
