"""VGG, with and without BatchNorm (Simonyan and Zisserman 2014).

From 64 pixels on, these are torchvision's vgg11_bn, vgg16_bn and vgg16. Below 64 pixels, they are
the features of these models and one linear layer 512 -> classes, as usual for CIFAR. Pooling then
rounds up, so 28 x 28 images are large enough.
"""

from functools import partial
from typing import Any

from torch import nn

from edgewire.task.models.parts import MODELS, SMALL, stem


def narrow_vgg16(
    channels: int = 1, size: int = 28, classes: int = 10, width: int = 8, batch_norm: bool = True
) -> nn.Module:
    """Return VGG-16 for images (channels, size, size) below 64 pixels, with fewer channels.

    `width`: the channels of the first layer, 64 in the paper; those of all others in proportion.
    232,130 parameters with the default options. Raises `ValueError` for other numbers.
    """
    if min(channels, size, classes, width) < 1 or size >= SMALL:
        raise ValueError(
            f"channels, size, classes and width must be at least 1, and size below {SMALL}, not "
            f"{channels}, {size}, {classes} and {width}"
        )
    return _small("D", channels, size, classes, width, batch_norm=batch_norm)


def _vgg(torchvision_name: str, layers: str, channels: int, size: int, classes: int) -> nn.Module:
    from torchvision import models

    if size >= SMALL:
        model: Any = models.get_model(torchvision_name, weights=None, num_classes=classes)
        model.features[0] = stem(model.features[0], channels, size)
        return model  # type: ignore[no-any-return]  # torchvision has no types
    return _small(layers, channels, size, classes, batch_norm=torchvision_name.endswith("_bn"))


def _small(
    layers: str, channels: int, size: int, classes: int, width: int = 64, *, batch_norm: bool
) -> nn.Module:
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


# The numbers of parameters are those on 3x32x32.
MODELS.members |= {
    "vgg11": partial(_vgg, "vgg11_bn", "A"),  # 9,231,114
    "vgg16": partial(_vgg, "vgg16_bn", "D"),  # 14,728,266
    "vgg16_plain": partial(_vgg, "vgg16", "D"),  # 14,719,818
}
