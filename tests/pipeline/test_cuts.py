"""Each impossible cut or option raises an error with a one-line message."""

import logging

import numpy as np
import pytest

from tests.strategy.cut import QUICK, run


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy.cuts=[2,9]"], "numbers of layers from 1 to 3"),
        (["strategy.cuts=two"], "must be auto or a list"),
        (["strategy.cuts=[1,2]", "nodes=2"], "3 segments need as many nodes"),
        (["strategy.segments=9", "nodes=9"], "4 layers cannot be cut into 9"),
        (["strategy.schedule=fast"], "schedule must be one of"),
        (["strategy.batches_per_message=3"], "must be a multiple of"),
        (["strategy.micro_batches=2"], "micro_batches goes with"),
        (["downlink=f2i"], "downlink=full"),
        (["model=resnet18"], "must be an nn.Sequential"),
        (["partition=dirichlet"], "the first node holds all"),
        (["batch_size=1"], "2 samples or more"),
        (["strategy.module=own"], "module must be one of"),
        (["strategy.hidden=[8]"], "hidden has 1 numbers for 3 modules"),
        (["strategy.hidden=[8,8]", "strategy.segments=3"], "a list of hidden units needs the cuts"),
        (["strategy.trained_by=loss"], "goes with module=gradient_of_loss"),
        (
            [
                *("strategy.module=gradient_of_loss", "strategy.trained_by=loss"),
                *("dataset=sensor_table", "model=table_mlp", "objective=regression"),
            ],
            "this task has no classes",
        ),
        (["strategy.segments=0"], "segments must be a number of at least 1"),
        (["engine.memory_mb=1"], "is less than Python, torch and data take"),
        (["compression@gradients=topk", "gradients.density=2"], "density"),
    ],
)
def test_a_mistake_raises_an_error_of_one_line(command, words, said):
    code, printed, _ = command(*QUICK, "engine.workers=1", *words)
    assert code == 2
    assert said in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err


@pytest.mark.parametrize(
    "words",
    [["strategy.module=gradient_of_loss"], ["strategy.hidden=8"], ["strategy.hidden=[1,2]"],
     ["strategy.conditioned=false"]],
)  # fmt: skip
def test_backpropagation_refuses_options_of_modules(command, words):
    code, printed, _ = command("algorithm=split_backprop", *words)
    assert code == 2
    assert "go with synthetic gradients alone" in " ".join((printed.out + printed.err).split())


@pytest.fixture
def whole_numbers(tmp_path):
    """Return the overrides of a task whose targets are classes without names."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 300)
    x = (draw.normal(0, 2, (3, 8))[y] + draw.normal(size=(300, 8))).astype(np.float32)
    for part in ("train", "test"):
        np.savez(tmp_path / f"{part}.npz", x=x, y=y)
    return (
        "algorithm=synthetic_gradients", "dataset=npz", f"dataset.root={tmp_path}", "nodes=3",
        "model=table_mlp", "model.outputs=3", "batch_size=32", "rounds=60", "eval_every=60",
        "lr=0.01",
    )  # fmt: skip


def test_the_derivative_of_a_loss_takes_the_classes_of_whole_numbers(whole_numbers, tmp_path):
    result, _, _ = run(tmp_path / "run", *whole_numbers, "strategy.module=gradient_of_loss")
    assert result["accuracy"] > 0.9


@pytest.mark.few(1)
@pytest.mark.parametrize("conditioned", ["true", "false"])
def test_modules_without_labels_are_named_once(
    whole_numbers, conditioned, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("edgewire.conf.build.numbered", lambda data: 0)
    with caplog.at_level(logging.WARNING):
        run(tmp_path / "run", *whole_numbers, f"strategy.conditioned={conditioned}", "rounds=60")
    assert caplog.text.count("get no labels") == (conditioned == "true")


def test_modules_without_batchnorm_take_single_samples(tmp_path):
    words = ("strategy.module=gradient_of_loss", "strategy.conditioned=false", "batch_size=1")
    result, _, _ = run(tmp_path / "run", *QUICK, *words, "model=four_layers_plain")
    assert result["failures"] == 0
