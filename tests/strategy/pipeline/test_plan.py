"""Each impossible cut or option raises an error with a one-line message."""

import pytest

from tests.strategy.cut import QUICK


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["strategy.cuts=[2,9]"], "numbers of layers from 1 to 3"),
        (["strategy.cuts=two"], "must be auto or a list"),
        (["strategy.cuts=[1,2]", "nodes=2"], "3 segments need as many nodes"),
        (["strategy.segments=9", "nodes=9"], "4 layers cannot be cut into 9"),
        (["strategy.memory_mb=0.01", "strategy.segments=2"], "no cut into 2 segments fits"),
        (["strategy.memory_mb=[1]"], "memory_mb must be"),
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
            "trained_by=loss needs labels",
        ),
        (["strategy.segments=0"], "segments must be at least 1"),
        (["engine.memory_mb=1"], "is less than Python, torch and data take"),
        (["compression@gradients=topk", "gradients.density=2"], "density"),
    ],
)
def test_a_mistake_raises_an_error_of_one_line(command, words, said):
    code, printed, _ = command(*QUICK, "engine.workers=1", *words)
    assert code == 2
    assert said in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err
