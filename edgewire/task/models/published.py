"""Networks of torchvision, with first layers fitted to small images."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from edgewire.task.models.parts import MODELS, SMALL, need, stem


class Published(NamedTuple):
    """A network: its name in torchvision, its first layer, the least pixels of an image's side.

    Below 64 pixels the first layer is 3 x 3 with stride 1, images are not pooled by the layers
    `skipped`, and the layer `stride_1` has that stride; or `small` makes another network.
    `options`: of torchvision's function.
    """

    theirs: str
    first: str
    smallest: int = 1
    skipped: tuple[str, ...] = ()
    stride_1: str = ""
    options: dict[str, Any] | None = None
    small: Callable[[int, int, int], nn.Module] | None = None


def small_vgg(
    layers: str, batch_norm: bool, channels: int, size: int, classes: int, width: int = 64
) -> nn.Module:
    """Return VGG for images (channels, size, size) below 64 pixels.

    It has the features of torchvision's model and one linear layer, as usual for CIFAR. Pooling
    rounds up, so 28 x 28 images are large enough. `layers`: as in torchvision. `width`: the
    channels of the first layer, 64 in the paper; those of all others in proportion.
    """
    from torchvision.models import vgg

    # Building torchvision's whole model would initialise 119 million weights of its classifier.
    wide = [each if each == "M" else int(each) * width // 64 for each in vgg.cfgs[layers]]
    features = vgg.make_layers(wide, batch_norm=batch_norm)
    features[0] = stem(features[0], channels, size)
    for layer in features:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.MaxPool2d):
            layer.ceil_mode = True
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes)]
    return nn.Sequential(features, *head)


POOL = ("maxpool",)
SECOND_STAGE = "features.2.conv.1.0"  # its depthwise layer
# 8 groups of channels (Wu & He 2018, "Group normalization") in place of BatchNorm: no statistics
GROUPS = {"norm_layer": partial(nn.GroupNorm, 8)}
NETWORKS = {
    # ResNet-18 (He et al. 2015): 11,173,962 parameters on 3x32x32
    "resnet18": Published("resnet18", "conv1", skipped=POOL),
    "resnet18_gn": Published("resnet18", "conv1", skipped=POOL, options=GROUPS),
    # ResNet-50 (He et al. 2015): 23,520,842
    "resnet50": Published("resnet50", "conv1", skipped=POOL),
    # WRN-50-2 (Zagoruyko and Komodakis 2016): 66,847,050
    "wideresnet": Published("wide_resnet50_2", "conv1", skipped=POOL),
    # AlexNet (Krizhevsky 2014): 57,023,306 (61 million with 1,000 classes)
    "alexnet": Published("alexnet", "features.0", smallest=15),
    # GoogLeNet (Szegedy et al. 2014), BatchNorm, no auxiliary heads: 5,602,474
    "googlenet": Published(
        *("googlenet", "conv1.conv"),
        smallest=2,
        skipped=("maxpool1", "maxpool2"),
        options={"aux_logits": False, "init_weights": False},
    ),
    # MobileNetV2 (Sandler et al. 2018): 2,236,682
    "mobilenet": Published("mobilenet_v2", "features.0.0", stride_1=SECOND_STAGE),
    "mobilenet_gn": Published(
        "mobilenet_v2", "features.0.0", stride_1=SECOND_STAGE, options=GROUPS
    ),
    # VGG (Simonyan and Zisserman 2014) below 64 pixels: 9,231,114; 14,728,266; 14,719,818
    "vgg11": Published("vgg11_bn", "features.0", small=partial(small_vgg, "A", True)),
    "vgg16": Published("vgg16_bn", "features.0", small=partial(small_vgg, "D", True)),
    "vgg16_plain": Published("vgg16", "features.0", small=partial(small_vgg, "D", False)),
}


def _made(name: str, channels: int, size: int, classes: int) -> nn.Module:
    from torchvision import models

    net = NETWORKS[name]
    if net.small is not None and size < SMALL:
        return net.small(channels, size, classes)
    need(name, size, net.smallest)
    model: nn.Module = models.get_model(
        net.theirs, weights=None, num_classes=classes, **(net.options or {})
    )
    first: Any = model.get_submodule(net.first)
    owner, _, key = net.first.rpartition(".")
    setattr(model.get_submodule(owner), key, stem(first, channels, size))
    if size < SMALL:
        for pool in net.skipped:
            setattr(model, pool, nn.Identity())
        if net.stride_1:
            setattr(model.get_submodule(net.stride_1), "stride", (1, 1))  # noqa: B010  # no Tensor
    return model


MODELS.update({name: partial(_made, name) for name in NETWORKS})
