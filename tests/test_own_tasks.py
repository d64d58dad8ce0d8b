"""A user's own data, model and objective, named by `_target_`, train without a change of ours."""

import textwrap

import numpy as np
import pytest
import torch

from edgewire.client.node import Node
from edgewire.client.training import trainer_for
from edgewire.command.job import prepare
from edgewire.compression.flower.headers import TrainConfig
from edgewire.conf.build import data_of, model_of, objective_of, server_data_of
from edgewire.conf.schema import ConfigError
from edgewire.task.datasets import Data, Split
from edgewire.task.datasets.data import expect_finite_targets, usable
from edgewire.task.errors import TaskError
from edgewire.task.steps import evaluate
from tests.local_runs import local_run
from tests.own_task import own_module
from tests.runs import configured, history_of, model_bytes, result_of

MINE = """
    def table(features: int = 6):
        x = noise(240, features)
        return data(x, x.sum(1) + 0.1 * noise(240))


    def unlabelled():
        return data(noise(240, 8))


    def text(length: int = 12):
        x = torch.arange(240)[:, None] + torch.arange(length + 1)
        return data(x[:, :-1] % 17, x[:, 1:] % 17)


    def pairs():
        x = noise(240, 4)
        return data({"left": x, "right": x.flip(1)}, (x.sum(1) > 0).long(), classes=2)


    def mlp(inputs: int, outputs: int = 1, norm: bool = False):
        norms = [nn.BatchNorm1d(16)] if norm else []
        return nn.Sequential(nn.Linear(inputs, 16), *norms, nn.ReLU(), nn.Linear(16, outputs))


    def three(inputs: int):
        return 3


    def mask():
        return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))


    class Tokens(nn.Module):
        def __init__(self, tokens: int = 17):
            super().__init__()
            self.embedded = nn.Embedding(tokens, 8)
            self.lstm = nn.LSTM(8, 16, batch_first=True)
            self.out = nn.Linear(16, tokens)

        def forward(self, x):
            return self.out(self.lstm(self.embedded(x))[0])


    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x):
            return self.left(x["left"]) + self.right(x["right"])


    def sorted_classes():
        return data(noise(240, 6), torch.arange(240) // 40, classes=6)


    def failing():
        return data(noise(240, 6), noise(240), transform=lambda x: x @ x)


    def exact():
        return data(noise(240, 6).double(), noise(240))


    def lost():
        return open("files/that/are/not/sent.csv")


    def wider_test():
        return Data(Split(noise(40, 6), noise(40)), Split(noise(40, 7), noise(40)))


    class Likelihood(Objective):
        metrics = (Metric("density", True),)

        def loss(self, model, inputs, targets):
            return -torch.distributions.Normal(0.0, 1e-3).log_prob(model(inputs) * 1e-4).mean()

        def sums(self, model, inputs, targets):
            value = self.loss(model, inputs, targets) * len(inputs)
            return {"loss": value, "density": -value}


    class Named(Likelihood):
        metrics = (Metric("seconds"),)


    class Each(Likelihood):
        def loss(self, model, inputs, targets):
            return model(inputs)[:, 0]


    class Detached(Likelihood):
        def loss(self, model, inputs, targets):
            return model(inputs).detach().mean()


    class Text(Likelihood):
        def measured(self, sums, samples):
            return {"loss": 1.0, "density": "high"}

    class Whole(Likelihood):
        def measured(self, sums, samples):
            return {"loss": sums["loss"] / samples, "density": len(range(sums["count"]))}

        def sums(self, model, inputs, targets):
            return {**super().sums(model, inputs, targets), "count": torch.tensor(len(inputs))}

    class Counting(Likelihood):
        def sums(self, model, inputs, targets):
            found = super().sums(model, inputs, targets)
            return {**found, "num-examples": found["loss"]}
"""
TASKS = {
    "a table": ["table", "mlp +model.inputs=6", "regression"],
    "windows": ["windows", "conv", "classification"],
    "an autoencoder": ["unlabelled", "mlp +model.inputs=8 +model.outputs=8", "reconstruction"],
    "segmentation": ["scenes", "mask", "segmentation"],
    "text": ["text", "Tokens", "next_token"],
    "two inputs": ["pairs", "Both", "classification"],
    "a loss below zero": ["table", "mlp +model.inputs=6", "mine"],
}


@pytest.fixture(autouse=True)
def mine(tmp_path):
    """Make the module `mine_tasks` importable."""
    (tmp_path / "own").mkdir()
    with own_module(tmp_path / "own", "mine_tasks", MINE):
        yield


def words_of(task):
    data, model, objective = TASKS[task]
    words = [f"dataset._target_=mine_tasks.{data}", f"model._target_=mine_tasks.{model}"]
    name = f"objective={objective}"
    if objective == "mine":
        name = "objective._target_=mine_tasks.Likelihood"
    return [*" ".join(words).split(), name, "nodes=4", "rounds=4", "lr=0.05", "batch_size=16"]


METHODS = [
    "algorithm=fedavg_f2i_both",
    "algorithm=esgd",
    "algorithm=adacomp strategy.pushes=16 eval_every=4 partition=sampled partition.samples=40",
]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("task", "method"), [(task, METHODS[at % 3]) for at, task in enumerate(TASKS)]
)
def test_own_tasks_learn_with_any_method_and_any_number_of_workers(task, method, tmp_path):
    words = [*method.split(), *words_of(task)]
    words = [w for w in words if "pushes" not in method or not w.startswith("rounds=")]
    local_run(tmp_path / "1", *words)
    local_run(tmp_path / "2", *words, workers=2)
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "2")
    result, rows = result_of(tmp_path / "1"), history_of(tmp_path / "1")
    assert (result["failures"], result["diverged"]) == (0, False)
    assert result["client_updates"] == 16
    config = configured(*words)
    objective, data = objective_of(config), data_of(config)
    assert result["loss"] < rows[0]["loss"]
    better = max if objective.main.higher else min
    values = [row[objective.main.name] for row in rows if row["loss"] is not None]
    assert result[f"best_{objective.main.name}"] == better(values)
    model = model_of(config, data)
    start = evaluate(model, objective, data.prepared(data.test.inputs), data.test.targets)
    for name in objective.names:
        assert rows[0][name] == pytest.approx(start[name], rel=1e-5)


WRONG = {
    "a module that lacks the name": (["model._target_=mine_tasks.nothing"], "cannot be imported"),
    "an option that the function lacks": (["+dataset.rows=3"], "rows is not an option"),
    "no data": (["dataset._target_=mine_tasks.mlp", "+dataset.inputs=2"], "Data is taken"),
    "no model": (["model._target_=mine_tasks.three"], "nn.Module is taken"),
    "a model of images": (["model=lenet5"], "no images"),
    "an objective for other targets": (["objective=classification"], "torch.int64"),
    "a partition of classes": (["partition=dirichlet"], "label needs targets that are classes"),
    "a key without a function": (["dataset._target_=null", "+dataset.rot=x"], "dataset.root?"),
    "images that each are normalised": (["dataset.per_image=true"], "is for images"),
    "inputs of another shape": (["+dataset.features=5"], "do not fit each other"),
    "inputs of another shape to test on": (["dataset._target_=mine_tasks.wider_test"], "not fit"),
    "inputs of another type": (["dataset._target_=mine_tasks.text"], "do not fit each other"),
    "targets of another shape": (["+model.outputs=2"], "as many outputs as there are targets"),
    "a class beyond the outputs": (
        [
            *("dataset._target_=mine_tasks.sorted_classes", "objective=classification"),
            "+model.outputs=5",
        ],
        "the model's outputs are for the targets 0 to 4, and there is a 5",
    ),
    "inputs of float64": (["dataset._target_=mine_tasks.exact"], "give inputs.float()"),
    "a file of its own": (["dataset._target_=mine_tasks.lost"], "No such file or directory"),
    "a transform that fails": (["dataset._target_=mine_tasks.failing"], "do not fit each other"),
    "a metric that is not measured": (["schedule=plateau", "schedule.metric=iou"], "mae, rmse"),
    "one sample for BatchNorm": (["batch_size=1", "+model.norm=true"], "batch_size= of 2 or more"),
    "a metric named as a counter": (["objective._target_=mine_tasks.Named"], "another name"),
    "a loss for each sample": (["objective._target_=mine_tasks.Each"], "give its mean"),
    "a loss without a gradient": (["objective._target_=mine_tasks.Detached"], "no gradient"),
    "a metric that is a text": (["objective._target_=mine_tasks.Text"], "density as a str"),
    "whole sums where nodes evaluate": (
        [
            *("objective._target_=mine_tasks.Whole", "strategy=fedavg", "dataset.holdout=0.2"),
            "strategy.fraction_evaluate=1",
        ],
        "nodes evaluate: measured() must take the sums' means (floats), and samples=1 (TypeError",
    ),
    "a sum that nodes add": (["objective._target_=mine_tasks.Counting"], "another name"),
}


@pytest.mark.few(10)
@pytest.mark.parametrize("engine", ["local", "ray", "superlink"])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_use_is_one_line_before_the_run(case, engine):
    more, line = WRONG[case]
    more = [*more, f"engine={engine}"]
    images = case == "a model of images"
    words = [word for word in words_of("a table") if not images or "model" not in word]
    with pytest.raises((ConfigError, TaskError)) as caught:
        prepare(configured(*words, *more))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


OWN_FILES = """
    from pathlib import Path
    import torch
    from edgewire.task.datasets import Data, Split


    def rows(root: str, scale: float = 1.0, on_device: bool = False):
        lines = Path(root).read_text().split()
        x = torch.tensor([[float(line)] for line in lines]) * scale
        test = x[:0] if on_device else x[-2:]
        return Data(Split(x, x[:, 0]), Split(test, test[:, 0]))


    def line(inputs: int = 1):
        return torch.nn.Linear(inputs, 1)
"""


@pytest.fixture
def own_files(tmp_path):
    """Add functions that read a file of the user's; return a file with the numbers 0 to 9."""
    with (tmp_path / "own" / "mine_tasks.py").open("a") as module:
        module.write(textwrap.dedent(OWN_FILES))
    file = tmp_path / "numbers.txt"
    file.write_text("\n".join(map(str, range(10))))
    return file


def words_of_files(*more):
    words = ["dataset._target_=mine_tasks.rows", "model._target_=mine_tasks.line"]
    return [*words, "objective=regression", "nodes=2", "lr=0.01", *more]


def test_a_function_with_a_root_reads_the_user_s_file_or_a_device_s_own(own_files, tmp_path):
    config = configured(*words_of_files(f"dataset.root={own_files}", "dataset.validate=0.3"))
    assert (len(data_of(config).train), len(data_of(config).test)) == (7, 3)
    other = tmp_path / "device.txt"
    other.write_text("20 30 40")
    data = data_of(config, str(other))
    assert data.train.inputs[:, 0].tolist() == [20, 30, 40]  # no samples for `validate`
    assert len(data.test) == 0
    other.write_text("20 30 50")
    assert data_of(config, str(other)).train.inputs[:, 0].tolist() == [20, 30, 50]
    trainer = trainer_for(config, str(other))
    node = Node(0, 2, str(other))
    start = trainer.flat.state.detach().numpy().copy()
    vector, metrics = trainer.train(node, start, TrainConfig(0.0001, 1))
    assert metrics["num-examples"] == 3
    assert trainer.evaluate(node, vector)["loss"] < trainer.evaluate(node, start)["loss"]


@pytest.mark.parametrize(
    "words", [[], ["dataset=digits"], words_of("a table")], ids=["default", "digits", "table"]
)
def test_a_devices_own_data_are_not_ignored(words, tmp_path):
    with pytest.raises(ConfigError, match="own data need a dataset= that reads them"):
        data_of(configured(*words), str(tmp_path))


def test_a_server_may_have_no_data(own_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(server_data_of(configured(*words_of_files())).train) == 0
    given = configured(*words_of_files(f"dataset.root={own_files}"))
    assert len(server_data_of(given).train) == 10
    lost = configured(*words_of_files(f"dataset.root={own_files}x"))
    for read in (server_data_of, data_of):
        with pytest.raises(TaskError, match=r"numbers\.txtx"):
            read(lost)
    with pytest.raises(TaskError, match=r"give dataset\.root=PATH"):
        data_of(configured(*words_of_files()))
    table = [*words_of_files()[1:], "dataset=csv", "dataset.classes=[a,b,c]"]
    empty = server_data_of(configured(*table))
    assert (len(empty.train), len(empty.test), empty.classes) == (0, 0, 3)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("x,target\n1,a\n2,b\n3,a\n4,b\n")
    assert len(server_data_of(configured(*table)).train) == 2
    table[-1] = "dataset.classes=[a,c]"
    with pytest.raises(TaskError, match="'b' is no known class"):
        server_data_of(configured(*table))


def test_what_devices_must_share_is_told_to_the_server_and_no_more(tmp_path):
    (tmp_path / "t.csv").write_text("x,target\n1,d\n")
    with pytest.raises(ConfigError, match=r"dataset\.inputs=") as caught:
        data_of(configured("dataset=csv"), str(tmp_path))
    assert str(tmp_path) not in str(caught.value)
    words = ["dataset=csv", "dataset.inputs=[x]", "dataset.classes=[a,b]", "dataset.mean=[0]"]
    with pytest.raises(TaskError, match="'d' is no known class"):
        data_of(configured(*words, "dataset.std=[1]"), str(tmp_path))


def test_a_devices_images_are_scaled_and_it_needs_none_to_test_on(tmp_path):
    images = np.zeros((6, 8, 8), np.uint8)
    np.savez(tmp_path / "train.npz", x=images, y=np.array([0, 1] * 3))
    words = ["dataset=npz", "dataset.images=true", "dataset.classes=[0,1]", "dataset.size=4"]
    data = data_of(configured(*words), str(tmp_path))
    assert (data.train.inputs.shape, len(data.test)) == ((6, 1, 4, 4), 0)


def test_a_name_chooses_no_data_set():
    with pytest.raises(ConfigError, match="give dataset=NAME"):
        configured("dataset.name=mnist")


@pytest.mark.parametrize(
    "word", ["dataset.size=8", "dataset.classes=[a,b]", "dataset.download=true"]
)
def test_an_option_that_a_function_lacks_is_not_ignored(word, own_files):
    with pytest.raises(ConfigError, match="is not an option of mine_tasks"):
        data_of(configured(*words_of_files(f"dataset.root={own_files}", word)))
    with pytest.raises(ConfigError, match=r"dataset\.root is not an option"):
        data_of(configured(*words_of("a table"), "dataset.root=x"))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.tensor(3.0), r"are float32 \(\): give a dense tensor"),
        (torch.eye(9).to_sparse(), "are float32 sparse_coo"),
        (torch.eye(9, requires_grad=True), "are float32 with a gradient"),
    ],
)
def test_inputs_that_cannot_be_batched_are_named_before_the_run(inputs, said):
    with pytest.raises(TaskError, match=f"train.inputs {said}"):
        usable("mine", Data(Split(inputs, torch.zeros(9)), Split(torch.zeros(1, 9))))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("part", "check"), [("inputs", usable), ("targets", expect_finite_targets)]
)
def test_a_value_that_is_not_finite_is_named_before_the_run(value, part, check):
    tensors = {"inputs": torch.zeros(9, 3), "targets": torch.zeros(9)}
    tensors[part][4] = value
    good = Split(torch.zeros(9, 3), torch.zeros(9))
    for data in (Data(good, Split(**tensors)), Data(good, Split(**tensors), transform=torch.neg)):
        with pytest.raises(TaskError, match=f"test.{part} have NaN or infinity in row 5"):
            check("mine", data)
    usable("mine", Data(good, Split(**tensors), transform=lambda x: x.nan_to_num()))
