"""A random combination of data, model, objective and method either runs, or ends in one line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewire.command.job import prepare
from edgewire.conf.schema import ConfigError
from edgewire.task.errors import TaskError
from tests.local_runs import local_run
from tests.own_task import own_module
from tests.runs import configured, result_of

MINE = """
    SHAPES = {"row": (6,), "signal": (3, 8), "image": (1, 8, 8), "number": ()}


    def drawn(rows, shape, dtype, most, random):
        kind = getattr(torch, dtype)
        if kind.is_floating_point:
            return torch.randn(rows, *shape, generator=random).to(kind)
        return torch.randint(most, (rows, *shape), generator=random).to(kind)


    def split(rows, shape, dtype, target, of, most, structure):
        random = torch.Generator().manual_seed(rows)
        inputs = drawn(rows, SHAPES[shape], dtype, 9, random)
        shapes = {"one": (), "column": (1,), "two": (2,), "same": SHAPES[shape]}
        shapes["pixels"] = SHAPES[shape][1:]
        targets = drawn(rows, shapes[target], of, most, random) if target != "none" else ()
        return Split({"a": inputs} if structure == "named" else inputs, targets)


    def data(shape: str, dtype: str, target: str, of: str, most: int, kinds: int, rows: int,
             tests: int, transform: str, structure: str):
        parts = (split(n, shape, dtype, target, of, most, structure) for n in (rows, tests))
        image = {"transform": ImageTransform((0.5,), (0.2,))} if transform == "image" else {}
        return Data(*parts, classes=kinds, **image)


    class First(nn.Module):
        def forward(self, x):
            return x[0]


    def model(kind: str, outputs: int):
        if kind == "mlp":
            return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))
        if kind == "norm":
            return nn.Sequential(
                nn.Flatten(), nn.LazyLinear(8) if outputs == 5 else nn.Linear(64, 8),
                nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))
        if kind == "tokens":
            return nn.Sequential(
                nn.Embedding(9, 8), nn.LSTM(8, 8, batch_first=True), First(), nn.Linear(8, outputs))
        if kind == "tuple":
            return nn.Sequential(nn.Linear(6, 8), nn.LSTM(8, outputs))
        if kind == "pixels":
            return nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, outputs, 1))
        return nn.Sequential(
            nn.Conv1d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
            nn.Linear(4, outputs))
"""
OBJECTIVES = ["classification", "regression", "next_token", "reconstruction", "segmentation"]
LIKELY = {  # combinations that fit; each value is then replaced by another one, or not
    "classes": ["row", "float32", "one", "int64", 3, 3, "mlp", 3, "classification"],
    "table": ["row", "float32", "one", "float32", 1, 0, "mlp", 1, "regression"],
    "targets": ["row", "float32", "two", "float64", 1, 0, "mlp", 2, "regression"],
    "tokens": ["row", "int64", "same", "int64", 9, 0, "tokens", 9, "next_token"],
    "copy": ["row", "float32", "none", "float32", 1, 0, "mlp", 6, "reconstruction"],
    "pixels": ["image", "uint8", "pixels", "int64", 2, 0, "pixels", 2, "segmentation"],
    "images": ["image", "uint8", "one", "int64", 3, 3, "norm", 3, "classification"],
    "signal": ["signal", "float32", "one", "int64", 2, 2, "signal", 2, "classification"],
}
OTHERS = [
    ["row", "signal", "image", "number"],
    ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"],
    ["one", "column", "two", "same", "pixels", "none"],
    ["float32", "float64", "float16", "int64", "int32", "uint8", "bool"],
    [1, 2, 9],
    [0, 1, 3],
    ["mlp", "norm", "tokens", "tuple", "pixels", "signal"],
    [1, 2, 5, 9],
    OBJECTIVES,
]
METHODS = [
    "algorithm=fedavg",
    "algorithm=esgd rounds=2",
    "algorithm=fedavg_f2i_both strategy.fraction_evaluate=1",
    "algorithm=synthetic_gradients eval_every=1",
    "algorithm=split_backprop eval_every=1 strategy.segments=2",
    "algorithm=adacomp strategy.pushes=2 eval_every=2 partition=sampled partition.samples=2",
]


@st.composite
def tasks(draw):
    """Return the overrides of a task, of which at most two values do not fit the others."""
    values = list(LIKELY[draw(st.sampled_from(sorted(LIKELY)))])
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(values) - 1))
        values[at] = draw(st.sampled_from(OTHERS[at]))
    shape, dtype, target, of, most, classes, kind, outputs, objective = values
    image = shape == "image" and dtype == "uint8"
    options = {
        **{"shape": shape, "dtype": dtype, "target": target, "of": of, "most": most},
        **{"kinds": classes, "rows": draw(st.sampled_from([8, 8, 7, 2])), "tests": 3},
        "transform": "image" if image != (draw(st.integers(0, 9)) == 7) else "none",
        "structure": "named" if draw(st.integers(0, 9)) == 7 else "one",
    }
    return [
        *draw(st.sampled_from(METHODS)).split(),
        *["dataset._target_=random_task.data", "model._target_=random_task.model"],
        *(f"+dataset.{key}={value}" for key, value in options.items()),
        *[f"+model.kind={kind}", f"+model.outputs={outputs}", f"objective={objective}"],
        *["nodes=2", "lr=0.01", "batch_size=4", "rounds=2"],
    ]


@pytest.fixture(scope="module", autouse=True)
def mine(tmp_path_factory):
    """Make the module `random_task` importable."""
    with own_module(tmp_path_factory.mktemp("own"), "random_task", MINE):
        yield


@settings(max_examples=settings.default.max_examples // 3)  # a run takes half a second
@given(words=tasks())
def test_a_task_runs_or_is_refused_in_one_line(tmp_path_factory, words):
    refused = None
    try:
        prepare(configured(*words))
    except (ConfigError, TaskError) as error:
        refused = str(error)
    if refused is not None:
        assert "\n" not in refused
        return
    folder = tmp_path_factory.mktemp("run")
    local_run(folder, *words)
    result = result_of(folder)
    assert result["failures"] == 0
    assert result["client_updates"] > 0
