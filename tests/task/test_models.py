"""Every registered model has the stated size, and its seed decides its weights."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from edgewire.task.errors import TaskError
from edgewire.task.models import build_model
from edgewire.task.models.parts import MODELS, register
from edgewire.task.models.published import small_vgg
from edgewire.task.models.sequences import LSTM, Transformer
from edgewire.task.models.small import wide_mlp

CONF = Path(__file__).parents[2] / "conf" / "model"
# Numbers of parameters for 3x32x32 images and 10 classes, as in the docstrings.
PARAMETERS = {
    "resnet18": 11_173_962,
    "resnet18_gn": 11_173_962,
    "resnet50": 23_520_842,
    "wideresnet": 66_847_050,
    "vgg11": 9_231_114,
    "vgg16": 14_728_266,
    "alexnet": 57_023_306,
    "googlenet": 5_602_474,
    "mobilenet": 2_236_682,
    "mobilenet_gn": 2_236_682,
}
SMALLEST = {
    **dict.fromkeys(("four_layers", "four_layers_plain"), 4),
    **dict.fromkeys(("eight_layers", "eight_layers_plain"), 8),
    "lenet5": 12,
    "adacomp_cnn": 4,
    "cnn": 6,
    "alexnet": 15,
    "googlenet": 2,
}  # the smallest width of an image, in pixels


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_a_choice_sets_a_name_and_the_training_options_that_suit_its_model():
    for path in CONF.glob("*.yaml"):
        found = OmegaConf.load(path)
        if "_target_" in found:  # its other options are those of a function
            continue
        assert found.name == path.stem
        assert set(found) <= {"name", "lr", "momentum", "batch_size"}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_forward_and_backward_at_3x32x32(name):
    module = build_model(name, channels=3, size=32, classes=10)
    assert count(module) == PARAMETERS.get(name, count(module))
    logits = module(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    for parameter_name, parameter in module.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize(
    ("name", "size", "parameters"),
    [
        ("lenet5", 28, 61_706),
        ("adacomp_cnn", 28, 211_690),
        ("cnn", 28, 1_199_882),
        ("mlp", 28, 101_770),
        ("mlp", 8, 9_610),
    ],
)
def test_published_parameter_counts(name, size, parameters):
    assert count(build_model(name, channels=1, size=size, classes=10)) == parameters


# VGGs for large images have 128 million parameters, so only one case is tested.
SIZES = [
    (name, channels, size)
    for name in sorted(set(MODELS) - {"alexnet", "wideresnet"})
    for channels, size in ((1, 28), (2, 15), (1, 65))
    if (name, size) not in [("vgg16", 65), ("vgg16_plain", 65)]
]


@pytest.mark.few(7)
@pytest.mark.parametrize(("name", "channels", "size"), SIZES)
def test_images_of_other_sizes(name, channels, size):
    module = build_model(name, channels=channels, size=size, classes=7)
    with torch.inference_mode():
        assert module.eval()(torch.randn(2, channels, size, size)).shape == (2, 7)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_images_that_are_too_small_are_refused(name):
    smallest = SMALLEST.get(name, 1)
    if name in SMALLEST:
        says = rf"{name} needs images of at least .* dataset\.size={smallest} or more"
        with pytest.raises(TaskError, match=says) as error:
            build_model(name, channels=1, size=smallest - 1, classes=7)
        assert "\n" not in str(error.value)
    module = build_model(name, channels=1, size=smallest, classes=7).eval()
    with torch.inference_mode():
        assert module(torch.randn(2, 1, smallest, smallest)).shape == (2, 7)


@pytest.mark.parametrize("name", ["resnet18", "googlenet", "mobilenet", "vgg11"])
def test_large_images_get_torchvisions_own_network(name):
    from torchvision import models

    make = {
        "resnet18": models.resnet18,
        "googlenet": lambda **k: models.googlenet(aux_logits=False, init_weights=False, **k),
        "mobilenet": models.mobilenet_v2,
        "vgg11": models.vgg11_bn,
    }[name]
    with torch.device("meta"):  # without values: drawing 128 million values takes seconds
        module = build_model(name, channels=3, size=64, classes=10)
        plain = make(weights=None, num_classes=10)
    assert str(module) == str(plain)


@pytest.mark.parametrize("name", ["mlp", "resnet18", "googlenet", "vgg11"])
def test_weights_follow_from_the_seed_alone(name):
    before = torch.get_rng_state()
    first = build_model(name, channels=1, size=28, classes=10, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again = build_model(name, channels=1, size=28, classes=10, seed=5).state_dict()
    other = build_model(name, channels=1, size=28, classes=10, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    weights = [key for key in first if first[key].ndim > 1]
    assert not any(torch.equal(first[key], other[key]) for key in weights)


@pytest.mark.parametrize("kind", [LSTM, Transformer])
def test_a_model_of_tokens_can_predict_the_last_one_alone(kind):
    model, tokens = kind(last=True), torch.arange(10).reshape(2, 5)
    found = model(tokens)
    model.last = False
    torch.testing.assert_close(found, model(tokens)[:, -1])


def test_unknown_name_lists_the_names():
    with pytest.raises(
        TaskError, match=r"no model named lenet: choose one of adacomp_cnn, .*lenet5"
    ) as error:
        build_model("lenet", channels=1, size=28, classes=10)
    assert "\n" not in str(error.value)


def test_each_name_is_used_once():
    with pytest.raises(RuntimeError, match="two models are named mlp"):
        register("mlp")(wide_mlp)


def test_a_narrow_vgg16_is_vgg16_at_full_width():
    whole = small_vgg("D", True, 3, 32, 10)
    assert count(whole) == PARAMETERS["vgg16"]
    named = build_model("vgg16", channels=3, size=32, classes=10)
    assert [p.shape for p in whole.parameters()] == [p.shape for p in named.parameters()]
    narrow = small_vgg("D", True, 1, 28, 10, width=8)
    assert count(narrow) == 232_130
    assert narrow(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    plain = small_vgg("D", False, 1, 28, 10, width=8)
    assert not any("Norm" in type(m).__name__ for m in plain.modules())


def test_a_wide_mlp_is_the_mlp_with_its_hidden_units():
    named = build_model("mlp", channels=3, size=8, classes=5)
    ours = wide_mlp(3, 8, 5, hidden=[128])
    assert [p.shape for p in ours.parameters()] == [p.shape for p in named.parameters()]
    assert [type(m) for m in ours] == [type(m) for m in named]
    assert count(wide_mlp()) == 1_333_770
    assert wide_mlp(2, 4, 3, hidden=[])(torch.zeros(5, 2, 4, 4)).shape == (5, 3)
