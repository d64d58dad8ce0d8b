"""What counts as a layer, and where a model can be cut; the segments together equal the model."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from edgewire.pipeline.layers import check_cuts, empty_segment, layers_of, parts_of, segment_of
from edgewire.task.errors import TaskError
from edgewire.task.models import build_model
from edgewire.task.models.small import ChannelsLast


def make(name="eight_layers", size=16):
    return build_model(name, channels=3, size=size, classes=10)


@pytest.mark.parametrize(
    ("name", "count"), [("four_layers", 4), ("eight_layers", 8), ("vgg16", 14), ("mlp", 2)]
)
def test_layers_are_counted_as_papers_count_them(name, count):
    layers = layers_of(make(name, 32))
    assert len(layers) == count
    model = make(name, 32)
    modules = [m for m in model.modules() if not isinstance(m, nn.Sequential)]
    assert sum(len(layer.modules) for layer in layers) == len(modules)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["four_layers", "eight_layers_plain", "vgg16", "vgg16_plain"])
@pytest.mark.parametrize("training", [True, False])
def test_segments_in_sequence_equal_the_model(name, training):
    model, x = make(name, 32).train(training), torch.randn(3, 3, 32, 32)
    cuts = range(1, len(layers_of(model)))
    bounds = [0, *cuts, len(layers_of(model))]
    expected = make(name, 32).train(training)(x)
    for first, last in pairwise(bounds):
        segment = segment_of(model, first, last)
        x = segment(segment.from_wire(segment.to_wire(x)))
    assert torch.equal(x, expected)


def test_parts_name_every_tensor_of_the_model_once():
    parts = parts_of(make, (2, 5), torch.zeros(2, 3, 16, 16))
    names = [name for part in parts for name in part.names]
    floats = [n for n, t in make().state_dict().items() if t.is_floating_point()]
    assert sorted(names) == sorted(floats)
    assert [(part.first, part.last) for part in parts] == [(0, 2), (2, 5), (5, 8)]
    assert parts[0].input == (16, 16, 3)
    assert parts[0].output == parts[1].input == (8, 8, 32)
    assert parts[2].output == (10,)


def test_a_node_allocates_its_own_layers_only():
    segment = empty_segment(make, 6, 7)
    assert {t.device.type for t in (*segment.parameters(), *segment.buffers())} == {"cpu"}
    assert sum(p.numel() for p in segment.parameters()) == 256 * 256 + 3 * 256


@pytest.mark.parametrize("cuts", [(0,), (8,), (3, 3), (5, 2), (-1,), (True,), (1.5,), ("2",)])
def test_impossible_cuts_are_refused(cuts):
    with pytest.raises(TaskError, match="numbers of layers from 1 to 7"):
        check_cuts(cuts, 8)


def test_models_that_cannot_be_cut_are_refused():
    with pytest.raises(TaskError, match=r"nn.Sequential"):
        layers_of(make("resnet18"))
    shared = nn.Linear(4, 4)
    with pytest.raises(TaskError, match="share a parameter"):
        layers_of(nn.Sequential(shared, nn.ReLU(), shared))


def test_unusual_sequences_have_layers_too():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + x

    layers = layers_of(nn.Sequential(nn.Flatten(), nn.ReLU()))
    assert [layer.name for layer in layers] == ["no weights"]
    block = Own(nn.Linear(4, 4), nn.ReLU())
    layers = layers_of(nn.Sequential(nn.Flatten(), ChannelsLast(block, nn.ReLU()), nn.Linear(4, 2)))
    assert [len(layer.modules) for layer in layers] == [3, 1]
    assert layers[0].modules[1] is block  # it computes more than its children, so it stays whole
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu)
    assert [len(layer.modules) for layer in layers_of(model)] == [2, 2]
